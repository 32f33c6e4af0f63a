package cpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mkrun/mkrun/internal/plan"
)

// outLink is the sending end of a connection.
type outLink struct {
	net  *network
	peer int
	conn net.Conn

	mu      sync.Mutex // one frame is written at a time
	stopped bool       // guarded by mu

	left atomic.Bool // the peer closed in good order

	delayed chan delivery // emulated latency: messages that are under way; nil when there is none
}

// delivery is a message on an emulated link.
type delivery struct {
	due  time.Time
	task *task
	seq  uint64 // epoch
	data rect   // a copy: the source may be reused while the message is under way
}

// underWay bounds the messages of one connection that are on an emulated link at once.
const underWay = 1024

func newOutLink(n *network, peer int) *outLink {
	l := &outLink{net: n, peer: peer}
	if n.in.cfg.Net.BandwidthGBs > 0 || n.in.cfg.Net.Latency > 0 {
		l.delayed = make(chan delivery, underWay)
	}
	return l
}

// dial connects and proves who we are. The peer may be busy or late: refused connections are tried
// again until ctx ends.
func (l *outLink) dial(ctx context.Context, address func(rank int) (string, *linkKey, error)) error {
	me := l.net.in.cfg.Rank
	addr, key, err := address(l.peer)
	if err != nil {
		return err
	}
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := l.tryDial(ctx, addr, key)
		if err == nil {
			return nil
		}
		if errors.Is(err, errHandshake) || ctx.Err() != nil {
			return fmt.Errorf("rank %d cannot connect to rank %d at %s: %w", me, l.peer, addr, err)
		}
		jitter := time.Duration(rand.Int64N(int64(pause)))
		if !sleep(time.Now().Add(pause+jitter), ctx.Done()) {
			return fmt.Errorf("rank %d cannot connect to rank %d at %s: %w", me, l.peer, addr, err)
		}
	}
}

func (l *outLink) tryDial(ctx context.Context, addr string, key *linkKey) error {
	// The source address tells the pretended nodes of one host apart, as real hosts would be.
	dialer := net.Dialer{}
	if ip := net.ParseIP(l.net.in.cfg.ListenAddr); ip != nil && ip.IsLoopback() {
		dialer.LocalAddr = &net.TCPAddr{IP: ip}
	}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	if err := greetUntil(ctx, conn, l.net.in.cfg.Rank, key); err != nil {
		_ = conn.Close()
		return err
	}
	l.conn = conn
	return nil
}

// greetUntil greets the peer for as long as connections are made. A sender that gave up earlier, since its peer is busy, could
// do so when that has let it in already: the peer would then take the end of this connection for a death in the middle of the job.
func greetUntil(ctx context.Context, conn net.Conn, rank int, key *linkKey) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	err := greet(conn, rank, key)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// send passes a task's message on: its bytes when the task sends to this peer, and in every case word
// that the flags for this peer are due. It returns, with the number of bytes, when the task's source
// may be reused.
func (l *outLink) send(t *task, epoch uint64) (int64, error) {
	var src rect
	if t.plan.Kind == plan.Send && t.plan.Peer == l.peer {
		src = t.src
	}
	if l.delayed == nil {
		return src.size(), l.writeMessage(t, epoch, src)
	}
	left := l.net.tx.reserve(time.Now(), src.size()+frameSize)
	d := delivery{due: left.Add(l.net.in.cfg.Net.Latency), task: t, seq: epoch}
	d.data = rect{bits: make([]uint16, src.rows*src.cols), rows: src.rows, cols: src.cols, stride: src.cols}
	copyRect(d.data, src)
	select {
	case l.delayed <- d:
	case <-l.net.quit:
		return 0, errAborted
	}
	if !sleep(left, l.net.quit) {
		return 0, errAborted
	}
	return src.size(), nil
}

// deliver writes what is under way when it is due.
func (l *outLink) deliver() {
	for {
		select {
		case d := <-l.delayed:
			if !sleep(d.due, l.net.quit) {
				return
			}
			if err := l.writeMessage(d.task, d.seq, d.data); err != nil {
				l.net.in.Abort(err)
				return
			}
		case <-l.net.quit:
			return
		}
	}
}

func (l *outLink) writeMessage(t *task, epoch uint64, src rect) error {
	limit := l.net.pieceSize()
	f := frame{kind: frameTask, role: uint8(t.role), task: uint32(t.index), epoch: epoch}
	for off := int64(0); ; {
		var data []byte
		if off < src.size() {
			data = src.bytesFrom(off)
			data = data[:min(limit, len(data))]
		}
		f.offset, f.length = uint64(off), uint32(len(data))
		if err := l.writeFrame(f, data); err != nil {
			return err
		}
		if off += int64(len(data)); off >= src.size() {
			return nil
		}
	}
}

// writeFrame writes one frame; a peer that does not take it for as long as a wait may last is lost. A peer that
// has closed in good order needs nothing any more: what was still under way to it, credits for a next epoch, is dropped.
func (l *outLink) writeFrame(f frame, data []byte) error {
	err := l.write(f, data)
	switch {
	case err == nil || l.left.Load():
		return nil
	case errors.Is(err, errAborted):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		if l.net.in.aborted() != nil {
			return errAborted
		}
		err = fmt.Errorf("it took no data for %v", l.net.in.cfg.WaitTimeout)
	}
	l.net.lost(l.peer, err) // without the lock: an abort takes it
	return errAborted
}

// write is the part of writeFrame that one frame does at a time.
func (l *outLink) write(f frame, data []byte) error {
	var header [frameSize]byte
	f.encode(&header)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return errAborted
	}
	_ = l.conn.SetWriteDeadline(time.Now().Add(l.net.in.cfg.WaitTimeout))
	// Not writev: the race detector knows that what was written before a Write is seen after the Read.
	_, err := l.conn.Write(header[:])
	if err == nil && len(data) > 0 {
		_, err = l.conn.Write(data)
	}
	return err
}

// watch notices when the peer goes away, which a rank that has nothing to send would not see.
func (l *outLink) watch() {
	var b [1]byte
	n, err := io.ReadFull(l.conn, b[:])
	if n == 1 && b[0] == byeByte {
		l.left.Store(true)
		return
	}
	if err == nil {
		err = errors.New("it sent bytes against the direction of the link")
	}
	l.net.lost(l.peer, err)
}

// interrupt ends a write in progress and refuses later ones.
func (l *outLink) interrupt() {
	if l.conn != nil {
		_ = l.conn.SetWriteDeadline(time.Now())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
}
