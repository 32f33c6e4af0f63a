package topology

import (
	"os"
	"testing"

	"github.com/mkrun/mkrun/internal/leaktest"
)

func TestMain(m *testing.M) {
	for _, name := range settingsThatDecide { // of the machine that runs the tests
		_ = os.Unsetenv(name)
	}
	leaktest.Main(m)
}
