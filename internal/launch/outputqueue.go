package launch

import (
	"sync"
	"time"

	"github.com/mkrun/mkrun/internal/stdio"
)

// maxQueued bounds the ranks' output that waits for a slow terminal or pipe, in bytes. Until it is
// reached, failures are seen and acted on although nobody reads the output.
const maxQueued = 64 << 20

// outputQueue writes the ranks' output in a goroutine of its own.
type outputQueue struct {
	mux  Mux
	mu   sync.Mutex
	cond *sync.Cond
	wait []frame
	size int
	end  bool
	done chan struct{}
	err  error

	failed chan error // gets the first error of writing
}

type frame struct {
	rank   int
	host   string
	stream stdio.Stream
	data   []byte
	at     time.Time
}

func newOutputQueue(mux Mux) *outputQueue {
	q := &outputQueue{mux: mux, done: make(chan struct{}), failed: make(chan error, 1)}
	q.cond = sync.NewCond(&q.mu)
	go q.run()
	return q
}

// put queues a frame, and waits while too much is queued.
func (q *outputQueue) put(f frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.size > maxQueued {
		q.cond.Wait()
	}
	q.wait = append(q.wait, f)
	q.size += len(f.data)
	q.cond.Broadcast()
}

func (q *outputQueue) run() {
	defer close(q.done)
	for {
		q.mu.Lock()
		for len(q.wait) == 0 && !q.end {
			q.cond.Wait()
		}
		frames := q.wait
		q.wait, q.size = nil, 0
		end := q.end
		q.cond.Broadcast()
		q.mu.Unlock()
		for _, f := range frames {
			if err := q.mux.Write(f.rank, f.host, f.stream, f.data, f.at); err != nil && q.err == nil {
				q.err = err
				q.failed <- err
			}
		}
		if len(frames) == 0 && end {
			if err := q.mux.Close(); err != nil && q.err == nil {
				q.err = err
			}
			return
		}
	}
}

// close writes what is queued and returns the first error of writing.
func (q *outputQueue) close() error {
	q.mu.Lock()
	q.end = true
	q.cond.Broadcast()
	q.mu.Unlock()
	<-q.done
	return q.err
}
