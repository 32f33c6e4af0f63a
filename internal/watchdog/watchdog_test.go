package watchdog

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchdog(t *testing.T) {
	const bound, slack = 3 * time.Second, 500 * time.Millisecond
	for _, test := range []struct {
		name string
		live func(w *Watchdog)
		want time.Duration // after the start, when it fires
	}{
		{"silent", func(*Watchdog) {}, 3 * time.Second},
		{"alive for a while", func(w *Watchdog) {
			for range 10 {
				time.Sleep(500 * time.Millisecond)
				w.Alive()
			}
		}, 8 * time.Second},
		{"paused", func(w *Watchdog) {
			w.Pause()
			time.Sleep(time.Minute)
			w.Resume()
		}, 63 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				fired := make(chan time.Duration, 2)
				w := New(bound, slack, func() { fired <- time.Since(start) })
				test.live(w)
				if got := <-fired; got != test.want {
					t.Errorf("fired after %v, want %v", got, test.want)
				}
				time.Sleep(time.Minute)
				if len(fired) > 0 {
					t.Error("fired twice")
				}
				w.Stop()
			})
		})
	}
}

func TestWatchdogStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(time.Second, time.Second, func() { t.Error("fired") })
		w.Stop()
		time.Sleep(time.Minute)
	})
}

// A process that was stopped finds all its timers due; the peer gets time to be heard.
func TestWatchdogForgivesOwnSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fired := make(chan time.Duration, 1)
		w := New(3*time.Second, 500*time.Millisecond, func() { fired <- time.Since(start) })
		w.mu.Lock()
		w.due = w.due.Add(-10 * time.Second) // as if the timer came ten seconds late
		w.mu.Unlock()
		if got, want := <-fired, 4*time.Second; got != want {
			t.Errorf("fired after %v, want %v: two heartbeats of grace", got, want)
		}
	})
}

func TestWatchdogWaitsWhileThereIsAnExcuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fired := make(chan time.Duration, 1)
		excuse := func() bool { return time.Since(start) < time.Minute }
		NewLenient(3*time.Second, 500*time.Millisecond, excuse, func() { fired <- time.Since(start) })
		if got, want := <-fired, time.Minute; got != want {
			t.Errorf("fired after %v, want %v", got, want)
		}
	})
}

func TestWatchdogExcusesNothingForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fired := make(chan time.Duration, 1)
		NewLenient(3*time.Second, 500*time.Millisecond, func() bool { return true }, func() { fired <- time.Since(start) })
		if got, want := <-fired, 2*time.Minute; got != want {
			t.Errorf("fired after %v, want %v", got, want)
		}
	})
}
