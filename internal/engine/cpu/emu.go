package cpu

import (
	priority "container/heap"
	"sync"
	"time"
)

// pacer emulates a link direction of limited bandwidth that several connections share.
type pacer struct {
	perSecond float64 // bytes; 0: unlimited

	mu   sync.Mutex
	free time.Time // when the link has carried all that was reserved
}

// reserve books n bytes that are there to be sent now; it returns when the last of them leaves.
func (p *pacer) reserve(now time.Time, n int64) time.Time {
	return p.book(now, now, n)
}

// arrived books n bytes that another link brought until now: a link that was idle meanwhile has carried
// them at the same time, so only a rush from several senders is slowed.
func (p *pacer) arrived(now time.Time, n int64) time.Time {
	return p.book(now.Add(-p.duration(n)), now, n)
}

func (p *pacer) duration(n int64) time.Duration {
	return time.Duration(float64(n) / p.perSecond * float64(time.Second))
}

func (p *pacer) book(start, now time.Time, n int64) time.Time {
	if p.perSecond == 0 {
		return now
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if start.Before(p.free) {
		start = p.free
	}
	p.free = start.Add(p.duration(n))
	return p.free
}

// sleep waits until a moment, or until quit is closed (then it is false).
func sleep(until time.Time, quit <-chan struct{}) bool {
	d := time.Until(until)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-quit:
		return false
	}
}

const (
	maxJitter = 300 * time.Microsecond // the most by which a piece is late on a reordering link, if nothing else is asked for
	maxLate   = 512                    // pieces of one connection that may be under way at once
)

// piece is a part of a message that was read and waits for its turn.
type piece struct {
	due    time.Time
	msg    *message
	offset int64
	data   []byte
}

// piecesByDue is a priority queue of pieces, the earliest first.
type piecesByDue []*piece

func (h piecesByDue) Len() int           { return len(h) }
func (h piecesByDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h piecesByDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *piecesByDue) Push(x any)        { *h = append(*h, x.(*piece)) }
func (h *piecesByDue) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// shuffle passes pieces on, each when it is due, until in is closed and all are out, or quit is closed.
func shuffle(in <-chan *piece, out func(*piece), quit <-chan struct{}) {
	var late piecesByDue
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for in != nil || len(late) > 0 {
		more := in
		if len(late) >= maxLate {
			more = nil
		}
		var due <-chan time.Time
		if len(late) > 0 {
			timer.Reset(time.Until(late[0].due))
			due = timer.C
		}
		select {
		case p, ok := <-more:
			if !ok {
				in = nil
				continue
			}
			priority.Push(&late, p)
		case <-due:
			out(priority.Pop(&late).(*piece))
		case <-quit:
			return
		}
	}
}
