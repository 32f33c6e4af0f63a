package launch

import (
	"sync"
	"time"
)

const (
	// totalWindow is how much of all ranks' output may wait for the terminal or pipe that it is shown on, in bytes; each node
	// has its share, within the limits below it.
	totalWindow   = 64 << 20
	minNodeWindow = 128 << 10
	maxNodeWindow = 4 << 20

	// lastWordsRoom is what a rank that has ended may send beyond the window: what its pipes held, and what was read of them.
	lastWordsRoom = 4 * 64 << 10
)

// nodeWindow is the window of each of some nodes.
func nodeWindow(nodes int) uint64 {
	return uint64(min(max(totalWindow/max(nodes, 1), minNodeWindow), maxNodeWindow))
}

// outputWindow holds ranks back whose output nobody takes. What else is to be said never waits behind output, so a job
// whose output stands still is looked after, and ended, like any other.
type outputWindow struct {
	size uint64

	mu      sync.Mutex
	changed *sync.Cond
	sent    uint64
	shown   uint64
	ended   map[int]*lastOutput
	open    bool // nobody is held back any more
}

// lastOutput is what a rank that has ended may still send.
type lastOutput struct {
	room int
	late bool // its output is not waited for any longer: the rest, a pipe's content at most, goes
	stop func() bool
}

func newOutputWindow(size uint64) *outputWindow {
	w := &outputWindow{size: size, ended: map[int]*lastOutput{}}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// enter waits until a rank may send n more bytes.
func (w *outputWindow) enter(rank, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.open && w.sent-w.shown >= w.size && !w.ended[rank].take(n) {
		w.changed.Wait()
	}
	w.sent += uint64(n)
}

func (r *lastOutput) take(n int) bool {
	if r == nil || !r.late && r.room < n {
		return false
	}
	r.room -= n
	return true
}

// taken notes that all that was sent up to some byte was shown.
func (w *outputWindow) taken(bytes uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown = bytes
	w.changed.Broadcast()
}

// end lets a rank that has ended, and what it has left behind, have their last words; they are waited for until `by`.
func (w *outputWindow) end(rank int, by time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &lastOutput{room: lastWordsRoom}
	r.stop = time.AfterFunc(time.Until(by), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		r.late = true
		w.changed.Broadcast()
	}).Stop
	w.ended[rank] = r
	w.changed.Broadcast()
}

// close lets everything pass.
func (w *outputWindow) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
	for _, r := range w.ended {
		r.stop()
	}
	w.changed.Broadcast()
}
