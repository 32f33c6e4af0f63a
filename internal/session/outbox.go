package session

import (
	"sync"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// outbox queues messages for one agent, so that no caller waits for a slow agent.
type outbox struct {
	limit int // bytes that may wait

	mu    sync.Mutex
	queue []queued
	bytes int
	wake  chan struct{} // holds a token while the queue may be non-empty
}

type queued struct {
	message *pb.ToAgent
	bytes   int
}

func newOutbox(limit int) *outbox { return &outbox{limit: limit, wake: make(chan struct{}, 1)} }

// put reports false when the queue is full. Messages of 0 bytes (whose memory somebody else bounds)
// always find room.
func (o *outbox) put(m *pb.ToAgent, bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if bytes > 0 && o.bytes+bytes > o.limit {
		return false
	}
	o.queue = append(o.queue, queued{m, bytes})
	o.bytes += bytes
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true
}

// take removes the oldest message, or returns nil.
func (o *outbox) take() *pb.ToAgent {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.queue = nil
		return nil
	}
	q := o.queue[0]
	o.queue[0] = queued{}
	o.queue = o.queue[1:]
	o.bytes -= q.bytes
	return q.message
}
