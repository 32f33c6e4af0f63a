package launch

import (
	"fmt"
	"time"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

const (
	// firstPause is before the second restart in a row; before the first there is none, and each further one doubles it.
	firstPause = time.Second
	maxPause   = 30 * time.Second
	// steady is how long ranks have to run for their failure to be no more of the same.
	steady = time.Minute
)

// restarts is when ranks are started again that failed. A program that cannot run is given ever more time for what it
// lacks to come (a file server, a port), instead of using up its restarts at once.
type restarts struct {
	running time.Time        // since when all ranks of this generation run; zero if they do not
	inARow  int              // of failures of ranks that had not run for long
	at      <-chan time.Time // when they are started again; nil: they are not to be
}

// pause is how long to wait for the next restart, after a failure at a time.
func (r *restarts) pause(now time.Time) time.Duration {
	if !r.running.IsZero() && now.Sub(r.running) >= steady {
		r.inARow = 0
	}
	r.running = time.Time{}
	r.inARow++
	wait := time.Duration(0)
	for i := 1; i < r.inARow && wait < maxPause; i++ {
		wait = min(max(firstPause, 2*wait), maxPause)
	}
	return wait
}

// restartLater has the ranks started again, of which one has failed and all have ended.
func (l *launcher) restartLater(now time.Time) {
	l.giveUp = nil
	cause := l.machine.cause
	cause.Rank = int32(l.job.Number(int(cause.GetRank())))
	wait := l.restarts.pause(now)
	l.events.next(cause, wait)
	l.opts.Output.generationEnded()
	when := ""
	if wait > 0 {
		when = fmt.Sprintf(" in %v", wait)
	}
	fmt.Fprintf(l.notices, "%s\nmkrun: starting all ranks again%s (restart %d of %d)\n", CauseText(cause), when, l.machine.restarts()+1, l.job.MaxRestarts)
	l.machine.pause()
	l.restarts.at = time.After(wait)
}

// restart starts the ranks again.
func (l *launcher) restart() {
	l.restarts.at = nil
	l.order(l.machine.restart())
}

// restartableKind reports whether ranks that failed in some way may be started again.
func restartableKind(k pb.Cause_Kind) bool {
	return k == pb.Cause_RANK_EXIT || k == pb.Cause_RANK_ABORT
}
