package leaktest

import (
	"strings"
	"testing"
	"time"
)

// One that ends later than goleak waits is not left; one that does not end is named.
func TestFind(t *testing.T) {
	go func() { time.Sleep(2 * time.Second) }()
	if err := Find(); err != nil {
		t.Errorf("of one that ends: %v", err)
	}
	over := make(chan struct{})
	go func() { <-over }()
	if err := within(0); err == nil || !strings.Contains(err.Error(), "TestFind") {
		t.Errorf("of one that does not: %v", err)
	}
	close(over)
}
