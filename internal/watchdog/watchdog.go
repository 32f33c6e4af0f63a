// Package watchdog tells when a peer that should say something now and then has been silent for too long.
package watchdog

import (
	"sync"
	"time"
)

// Watchdog calls a function once when a peer has been silent for too long. Time during which this
// side did not listen (it was paused, or this process did not run) does not count as the peer's silence.
type Watchdog struct {
	mu     sync.Mutex
	bound  time.Duration // of silence
	slack  time.Duration // a peer's next sign of life is due within this
	heard  time.Time
	due    time.Time
	paused bool
	timer  *time.Timer
	fire   func()
	excuse func() bool
}

// New starts watching. fire runs on a goroutine of its own.
func New(bound, slack time.Duration, fire func()) *Watchdog {
	return NewLenient(bound, slack, func() bool { return false }, fire)
}

// mostExcused bounds excused silence, in bounds: a peer that is busy for ever says nothing for ever.
const mostExcused = 40

// NewLenient is New for a peer whose silence may have an excuse. As long as it has one it is waited for, up to mostExcused bounds.
func NewLenient(bound, slack time.Duration, excuse func() bool, fire func()) *Watchdog {
	now := time.Now()
	w := &Watchdog{bound: bound, slack: slack, heard: now, due: now.Add(bound), fire: fire, excuse: excuse}
	w.mu.Lock()
	w.timer = time.AfterFunc(bound, w.check)
	w.mu.Unlock()
	return w
}

func (w *Watchdog) check() {
	w.mu.Lock()
	if w.timer == nil {
		w.mu.Unlock()
		return
	}
	now := time.Now()
	wait := w.bound - now.Sub(w.heard)
	late := now.Sub(w.due) > w.slack
	switch {
	case w.paused:
		wait = w.bound
	case wait > 0:
	case late: // this process was stopped or starved; what the peer said meanwhile is still unread
		wait = 2 * w.slack
	case now.Sub(w.heard) < mostExcused*w.bound && w.excuse():
		wait = w.slack
	default:
		w.timer = nil
		w.mu.Unlock()
		w.fire()
		return
	}
	w.due = now.Add(wait)
	w.timer.Reset(wait)
	w.mu.Unlock()
}

// Alive notes a sign of life.
func (w *Watchdog) Alive() {
	w.mu.Lock()
	w.heard = time.Now()
	w.mu.Unlock()
}

// Pause stops the count until Resume, which starts it anew.
func (w *Watchdog) Pause() {
	w.mu.Lock()
	w.paused = true
	w.mu.Unlock()
}

// Resume ends Pause: the count begins anew.
func (w *Watchdog) Resume() {
	w.mu.Lock()
	w.paused = false
	w.heard = time.Now()
	w.mu.Unlock()
}

// Stop ends the watch; fire will not start any more.
func (w *Watchdog) Stop() {
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.mu.Unlock()
}
