package keeper

import (
	"syscall"
	"testing"
	"time"
)

// P38: ranks that were sent a signal by whoever sent it to all processes do not get it again when word of it comes from
// the head; later ones, and others, they do.
func TestP38EachSignalOnce(t *testing.T) {
	at := time.Unix(1000, 0)
	h := heard{}
	had := func(s syscall.Signal, after time.Duration, want bool) {
		t.Helper()
		if got := h.had(s, at.Add(after)); got != want {
			t.Errorf("%v after %v: had is %v, want %v", s, after, got, want)
		}
	}
	had(syscall.SIGTERM, 0, false)
	h.note(syscall.SIGTERM, at)
	had(syscall.SIGINT, time.Millisecond, false)
	had(syscall.SIGTERM, time.Millisecond, true)
	had(syscall.SIGTERM, 2*time.Millisecond, false)
	h.note(syscall.SIGUSR1, at)
	had(syscall.SIGUSR1, echoWithin, false)
	had(syscall.SIGUSR1, echoWithin+1, false)
}
