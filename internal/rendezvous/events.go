package rendezvous

import "sync"

// eventQueue passes events on without ever making the sender wait: memberlist calls its delegates
// under its own lock.
type eventQueue struct {
	out  chan MemberEvent
	done chan struct{}

	mu    sync.Mutex
	queue []MemberEvent
	wake  chan struct{} // holds a token while the queue may be non-empty
	ended chan struct{}
}

func newEventQueue() *eventQueue {
	q := &eventQueue{
		out:   make(chan MemberEvent),
		done:  make(chan struct{}),
		wake:  make(chan struct{}, 1),
		ended: make(chan struct{}),
	}
	go q.run()
	return q
}

func (q *eventQueue) put(ev MemberEvent) {
	q.mu.Lock()
	q.queue = append(q.queue, ev)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) run() {
	defer close(q.ended)
	defer close(q.out)
	for {
		select {
		case <-q.wake:
		case <-q.done:
			return
		}
		q.mu.Lock()
		batch := q.queue
		q.queue = nil
		q.mu.Unlock()
		for _, ev := range batch {
			select {
			case q.out <- ev:
			case <-q.done:
				return
			}
		}
	}
}

// close ends the queue; events that nobody took are dropped.
func (q *eventQueue) close() {
	close(q.done)
	<-q.ended
}
