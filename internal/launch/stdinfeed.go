package launch

import (
	"fmt"
	"os"
	"sync"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

const (
	// stdinFrame is the most that is read, sent and written at once.
	stdinFrame = 64 << 10
	// stdinWindow bounds what is on its way to a node, so that a rank that does not read holds the launcher's
	// reading back instead of filling memory.
	stdinWindow = 1 << 20
)

// stdinFeed writes what the launcher reads to the ranks of one node that read it. The slowest of them decides how fast
// it goes; one that ended, or closed its input, is passed over. A nil feed has no readers.
type stdinFeed struct {
	taken   func(bytes uint64, closed bool) // tells how far all readers have come; not called concurrently
	readers []*stdinReader
	wait    sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	buf     []byte // what not every reader has taken
	base    uint64 // position of buf[0] in the input
	end     bool   // no more comes
	closed  bool

	telling sync.Mutex // orders the calls of taken
	told    uint64
	over    bool // told that nobody reads any more
}

type stdinReader struct {
	pipe  *os.File // to the rank
	rank  *os.File // the rank's end, until it was started
	taken uint64
	gone  bool
}

func newStdinFeed(taken func(bytes uint64, closed bool)) *stdinFeed {
	f := &stdinFeed{taken: taken}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// add makes the input of one more rank.
func (f *stdinFeed) add() (*os.File, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	f.readers = append(f.readers, &stdinReader{pipe: ours, rank: theirs})
	return theirs, nil
}

// started begins to write; the ranks have their ends now.
func (f *stdinFeed) started() {
	if f == nil {
		return
	}
	for _, r := range f.readers {
		_ = r.rank.Close()
	}
	f.start()
}

// start begins to write.
func (f *stdinFeed) start() {
	for _, r := range f.readers {
		f.wait.Go(func() { f.write(r) })
	}
}

// feed takes in more input. The error is for a launcher that breaks the protocol.
func (f *stdinFeed) feed(m *pb.Stdin) error {
	if f == nil {
		return fmt.Errorf("the parent broke the protocol: input for a node where no rank reads any")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end || len(f.buf)+len(m.GetData()) > stdinWindow {
		return fmt.Errorf("the parent broke the protocol: %d bytes of input beyond the %d that wait", len(m.GetData()), len(f.buf))
	}
	f.buf = append(f.buf, m.GetData()...)
	f.end = m.GetEnd()
	f.advance()
	f.changed.Broadcast()
	return nil
}

// advance forgets what all have taken. It needs mu, and returns how far that is and whether anybody is left.
func (f *stdinFeed) advance() (all uint64, gone bool) {
	all, gone = f.base+uint64(len(f.buf)), true
	for _, r := range f.readers {
		if !r.gone {
			all, gone = min(all, r.taken), false
		}
	}
	if n := all - f.base; n > 0 {
		f.buf = append(f.buf[:0], f.buf[n:]...)
		f.base = all
	}
	return all, gone
}

// write is one reader's life.
func (f *stdinFeed) write(r *stdinReader) {
	defer func() { _ = r.pipe.Close() }() // the rank sees the end of its input
	piece := make([]byte, 0, stdinFrame)
	for {
		f.mu.Lock()
		for !f.closed && !f.end && r.taken == f.base+uint64(len(f.buf)) {
			f.changed.Wait()
		}
		rest := f.buf[r.taken-f.base:]
		piece = append(piece[:0], rest[:min(len(rest), stdinFrame)]...)
		stop := f.closed
		f.mu.Unlock()
		if stop || len(piece) == 0 {
			return
		}
		_, err := r.pipe.Write(piece)
		f.mu.Lock()
		r.taken += uint64(len(piece))
		r.gone = err != nil // it ended, or reads no more
		f.advance()
		f.mu.Unlock()
		f.tell()
		if err != nil {
			return
		}
	}
}

// tell says how far all have come, if that is news.
func (f *stdinFeed) tell() {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	all, gone := f.advance()
	closed := f.closed
	f.mu.Unlock()
	if closed || all == f.told && gone == f.over {
		return
	}
	f.told, f.over = all, gone
	f.taken(all, gone)
}

// close ends all readers' input.
func (f *stdinFeed) close() {
	if f == nil {
		return
	}
	f.mu.Lock()
	f.closed = true
	f.changed.Broadcast()
	f.mu.Unlock()
	for _, r := range f.readers {
		_ = r.pipe.Close() // ends a write that is under way
		_ = r.rank.Close()
	}
	f.wait.Wait()
}
