package launch

import (
	"slices"
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

// gatherFor is how long a signal that ends nothing waits until it is passed on. Equal ones that come meanwhile are one, as for
// a process that has not been given the first yet: whoever signals a process and its group (timeout -s USR1) sends two.
// One that comes later is passed on, also if the ranks were given the first just now, since it may be news.
const gatherFor = 50 * time.Millisecond

// gathered are signals that wait to be passed on, each once, in the order in which they came first.
type gathered []syscall.Signal

// add takes in a signal, and reports whether it is the first that waits.
func (g *gathered) add(s syscall.Signal) (first bool) {
	first = len(*g) == 0
	if !slices.Contains(*g, s) {
		*g = append(*g, s)
	}
	return first
}

func (g *gathered) take() []syscall.Signal {
	all := *g
	*g = nil
	return all
}
