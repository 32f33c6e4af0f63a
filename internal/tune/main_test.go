package tune

import (
	"testing"

	"github.com/mkrun/mkrun/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
