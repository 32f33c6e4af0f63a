package launch

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// maxLater bounds what waits in a laterWriter, in bytes.
const maxLater = 16 << 20

// laterWriter writes in a goroutine of its own, so that nobody waits for a file or pipe that takes nothing. After its first
// error it takes no more.
type laterWriter struct {
	to io.Writer

	mu      sync.Mutex
	changed *sync.Cond
	wait    []byte
	written int64
	closing bool
	err     error
	idle    []chan struct{} // of those who wait until all is written
	done    chan struct{}
}

func newLaterWriter(to io.Writer) *laterWriter {
	w := &laterWriter{to: to, done: make(chan struct{})}
	w.changed = sync.NewCond(&w.mu)
	go w.run()
	return w
}

func (w *laterWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && len(w.wait)+len(b) > maxLater {
		w.err = fmt.Errorf("nobody takes them, and %d MiB wait", len(w.wait)>>20)
	}
	if w.err != nil {
		return 0, w.err
	}
	w.wait = append(w.wait, b...)
	w.changed.Broadcast()
	return len(b), nil
}

func (w *laterWriter) run() {
	defer close(w.done)
	for {
		w.mu.Lock()
		for len(w.wait) == 0 && !w.closing {
			for _, idle := range w.idle {
				close(idle)
			}
			w.idle = nil
			w.changed.Wait()
		}
		piece := w.wait
		w.wait = nil
		w.mu.Unlock()
		if len(piece) == 0 {
			return
		}
		n, err := w.to.Write(piece)
		w.mu.Lock()
		w.written += int64(n)
		if err != nil {
			w.err = err
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
	}
}

// close waits until all is written, or nothing was taken for some time, and returns the first error.
func (w *laterWriter) close(patience time.Duration) error {
	w.mu.Lock()
	w.closing = true
	w.changed.Broadcast()
	w.mu.Unlock()
	return w.await(w.done, patience)
}

// flush is close for a writer that goes on.
func (w *laterWriter) flush(patience time.Duration) error {
	idle := make(chan struct{})
	w.mu.Lock()
	w.idle = append(w.idle, idle)
	w.changed.Broadcast()
	w.mu.Unlock()
	return w.await(idle, patience)
}

// await waits until the channel is closed, the writer is done, or nothing was taken for some time.
func (w *laterWriter) await(until <-chan struct{}, patience time.Duration) error {
	w.mu.Lock()
	before := w.written
	w.mu.Unlock()
	failure := func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.err
	}
	ticker := time.NewTicker(patience)
	defer ticker.Stop()
	for {
		select {
		case <-until:
			return failure()
		case <-w.done:
			return failure()
		case <-ticker.C:
			w.mu.Lock()
			if w.written == before && w.err == nil {
				w.err = fmt.Errorf("nobody took them for %v", patience)
			}
			before = w.written
			err := w.err
			w.mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
}
