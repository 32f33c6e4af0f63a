package launch

import (
	"syscall"
	"time"
)

// sameWish is how long after a signal another one is no wish of its own. What ends a process and its group (timeout,
// a service manager, a batch system) signals both, so a process that leads its group, or is in it, hears it twice; some
// send SIGHUP right behind SIGTERM. A person who wants to say something again takes longer.
const sameWish = 200 * time.Millisecond

// endings counts the user's wishes to end the job.
type endings struct {
	within time.Duration // in which signals are one wish
	count  int
	first  syscall.Signal
	at     time.Time // of the last that counted
}

// add takes in a signal that ends programs, and reports whether it is another wish.
func (e *endings) add(s syscall.Signal, at time.Time) bool {
	if e.count > 0 && at.Sub(e.at) < e.within {
		return false
	}
	if e.count == 0 {
		e.first = s
	}
	e.count++
	e.at = at
	return true
}
