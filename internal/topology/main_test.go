package topology

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	for _, name := range settingsThatDecide { // of the machine that runs the tests
		_ = os.Unsetenv(name)
	}
	goleak.VerifyTestMain(m)
}
