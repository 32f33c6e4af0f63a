package launch

import (
	"testing"
	"testing/synctest"
	"time"
)

// passes reports whether a rank may send n bytes now.
func passes(w *outputWindow, rank, n int) (done chan struct{}, now bool) {
	done = make(chan struct{})
	go func() { w.enter(rank, n); close(done) }()
	synctest.Wait()
	select {
	case <-done:
		return done, true
	default:
		return done, false
	}
}

func TestOutputWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newOutputWindow(100)
		if _, ok := passes(w, 0, 100); !ok {
			t.Fatal("a window's worth was held back")
		}
		held, ok := passes(w, 0, 1)
		if ok {
			t.Fatal("more than the window was sent")
		}
		w.taken(50)
		<-held

		// A rank that has ended has its last words at once, but no more than pipes hold; others stay where they are.
		if _, ok := passes(w, 0, 49); !ok {
			t.Fatal("there was room")
		}
		begun := time.Now()
		w.end(1, begun.Add(2*time.Second))
		if _, ok := passes(w, 1, lastWordsRoom); !ok {
			t.Error("the last words of a rank were held back")
		}
		other, ok := passes(w, 0, 1)
		if ok {
			t.Error("a rank that runs was let past the window")
		}
		// What it left behind goes on writing: it is held back until its output is not waited for any longer.
		left, ok := passes(w, 1, 1)
		if ok {
			t.Error("what a rank left behind was let past the window")
		}
		<-left
		if waited := time.Since(begun); waited != 2*time.Second {
			t.Errorf("a rank's end was held up for %v", waited)
		}
		w.close()
		<-other
	})
}

func TestNodeWindow(t *testing.T) {
	for nodes, want := range map[int]uint64{0: maxNodeWindow, 1: maxNodeWindow, 16: maxNodeWindow, 64: 1 << 20, 1024: minNodeWindow} {
		if got := nodeWindow(nodes); got != want {
			t.Errorf("%d nodes: %d, want %d", nodes, got, want)
		}
	}
}
