package keeper

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// A batch system, or a service manager, that ends or informs a job sends its signal to all processes that it knows of: to
// agents and keepers as well as to ranks. Those two must live on until the ranks have ended.

// Ending are signals that are to end programs, Passing others that would end one that does not expect them.
var (
	Ending  = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}
	Passing = []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGIO, syscall.SIGPWR, syscall.SIGXCPU}
)

// Withstand lets no signal of those end this process; the channel gets them. Signals that are ignored stay so.
func Withstand(to chan<- os.Signal) {
	for _, s := range slices.Concat(Ending, Passing) {
		if !signal.Ignored(s) { // as under nohup
			signal.Notify(to, s)
		}
	}
}

// echoWithin is how long after a signal that all processes of a job were sent word of the same one may come from the head.
const echoWithin = 3 * time.Second

// heard is when this process was sent signals. Nobody means a keeper alone: its ranks were sent the same.
type heard map[syscall.Signal]time.Time

// take takes in what has come.
func (h heard) take(signals <-chan os.Signal, at time.Time) {
	for {
		select {
		case sig := <-signals:
			h.note(sig, at)
		default:
			return
		}
	}
}

func (h heard) note(sig os.Signal, at time.Time) {
	if s, ok := sig.(syscall.Signal); ok {
		h[s] = at
	}
}

// had reports whether the ranks have had a signal, which they are to be sent at a time, from whoever sent it to all. It
// counts once.
func (h heard) had(s syscall.Signal, at time.Time) bool {
	came, ok := h[s]
	delete(h, s)
	return ok && at.Sub(came) < echoWithin
}
