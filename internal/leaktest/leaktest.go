// Package leaktest looks for goroutines that tests have left.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a goroutine may take to end. Some end when a bound of their own has passed, as a gossip's last probe
// does, and on a busy machine any may take a while.
const patience = time.Minute

// Main runs a package's tests, from its TestMain, and wants that they leave no goroutine.
func Main(m *testing.M) {
	status := m.Run()
	if status == 0 {
		if err := Find(); err != nil {
			fmt.Fprintln(os.Stderr, "leaktest:", err)
			status = 1
		}
	}
	os.Exit(status)
}

// Find returns what goroutines are left, or nil if the last one ends in time.
func Find() error { return within(patience) }

func within(patience time.Duration) (err error) {
	for end := time.Now().Add(patience); ; {
		if err = goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
