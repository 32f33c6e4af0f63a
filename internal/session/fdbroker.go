package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	maxFilesPerRank = 256
	maxWantsPerRank = 128
)

// fdBroker passes files between the ranks of one node: memory that a rank shares under a name goes to
// the local ranks that want it, no matter who comes first.
type fdBroker struct {
	mu     sync.Mutex
	first  int32 // ranks of this node
	count  int32
	files  map[fileKey]*os.File
	shared map[int32]int // files by rank
	wants  map[fileKey][]waiter
	closed error // why nothing is passed any more
}

type fileKey struct {
	rank int32
	name string
}

type waiter struct {
	conn *brokerConn
	id   uint32
}

// brokerConn is one rank's connection.
type brokerConn struct {
	rank  int32
	conn  *net.UnixConn
	wants int // pending; under the broker's lock
}

func newFDBroker() *fdBroker {
	return &fdBroker{files: map[fileKey]*os.File{}, shared: map[int32]int{}, wants: map[fileKey][]waiter{}}
}

// setRanks tells which ranks are of this node; before that, none is.
func (b *fdBroker) setRanks(first, count int32) {
	b.mu.Lock()
	b.first, b.count = first, count
	b.mu.Unlock()
}

// serve answers one rank until its socket ends. The error is nil if the rank closed it.
func (b *fdBroker) serve(rank int, conn *net.UnixConn) error {
	c := &brokerConn{rank: int32(rank), conn: conn}
	defer b.forget(c)
	for {
		m, err := readBroker(conn)
		if err == nil && m.op == opReply {
			m.closeFile()
			err = errors.New("a reply where a request belongs")
		}
		if err == nil && m.op == opShare {
			err = b.share(c, m)
		} else if err == nil {
			err = b.want(c, m)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
			return nil // the rank, or this agent, closed it
		}
		if err != nil {
			return fmt.Errorf("file socket of rank %d: %w", rank, err)
		}
	}
}

// share keeps a file and hands it to those who wait for it.
func (b *fdBroker) share(c *brokerConn, m brokerMessage) error {
	key := fileKey{c.rank, m.text}
	b.mu.Lock()
	reason := ""
	switch {
	case b.closed != nil:
		reason = b.closed.Error()
	case b.files[key] != nil:
		reason = fmt.Sprintf("rank %d has already shared a file named %q", c.rank, m.text)
	case b.shared[c.rank] >= maxFilesPerRank:
		reason = fmt.Sprintf("rank %d has already shared %d files, the most a rank may", c.rank, maxFilesPerRank)
	}
	var waiting []waiter
	if reason == "" {
		b.files[key] = m.file
		b.shared[c.rank]++
		waiting = b.wants[key]
		delete(b.wants, key)
		for _, w := range waiting {
			w.conn.wants--
		}
	}
	defer b.mu.Unlock() // replies are sent under the lock, which keeps the file open; they do not wait
	if reason != "" {
		m.closeFile()
		return reply(c, m.id, reason, nil)
	}
	for _, w := range waiting {
		_ = reply(w.conn, w.id, "", m.file) // that rank's own reader sees that it is gone
	}
	return reply(c, m.id, "", nil)
}

// want answers with the file, now or when it is shared.
func (b *fdBroker) want(c *brokerConn, m brokerMessage) error {
	key := fileKey{m.rank, m.text}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch file := b.files[key]; {
	case b.closed != nil:
		return reply(c, m.id, b.closed.Error(), nil)
	case m.rank < b.first || m.rank >= b.first+b.count:
		return reply(c, m.id, fmt.Sprintf("rank %d is not on this node, whose ranks are %d to %d; files are passed within a node only", m.rank, b.first, b.first+b.count-1), nil)
	case file != nil:
		return reply(c, m.id, "", file)
	case c.wants >= maxWantsPerRank:
		return reply(c, m.id, fmt.Sprintf("rank %d already waits for %d files, the most a rank may", c.rank, maxWantsPerRank), nil)
	}
	b.wants[key] = append(b.wants[key], waiter{c, m.id})
	c.wants++
	return nil
}

// reply never waits: a rank that leaves so many answers unread that its socket is full is cut off.
func reply(c *brokerConn, id uint32, text string, file *os.File) error {
	err := writeBroker(c.conn, brokerMessage{op: opReply, id: id, text: clipTo(text, maxBrokerErr), file: file}, false)
	if errors.Is(err, unix.EAGAIN) {
		_ = c.conn.Close()
		return fmt.Errorf("the rank does not read the answers to its requests")
	}
	return err
}

// forget drops what a rank was waiting for; what it shared stays for the others.
func (b *fdBroker) forget(c *brokerConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.wants == 0 {
		return
	}
	for key, list := range b.wants {
		kept := list[:0]
		for _, w := range list {
			if w.conn != c {
				kept = append(kept, w)
			}
		}
		if len(kept) == 0 {
			delete(b.wants, key)
		} else {
			b.wants[key] = kept
		}
	}
	c.wants = 0
}

// close fails all waiting ranks, and later requests, with the reason, and closes every file.
func (b *fdBroker) close(reason error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed == nil {
		b.closed = reason
	}
	for _, list := range b.wants {
		for _, w := range list {
			_ = reply(w.conn, w.id, b.closed.Error(), nil)
			w.conn.wants = 0
		}
	}
	clear(b.wants)
	for _, f := range b.files {
		_ = f.Close()
	}
	clear(b.files)
}
