package cpu

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"time"

	"github.com/mkrun/mkrun/internal/plan"
)

// byeByte is what a receiver writes, against the direction of the data, before it closes.
const byeByte = 'b'

// inLink is the receiving end of a connection. Everything a frame says is checked against the
// sender's plan before a byte of its data is read.
type inLink struct {
	net  *network
	peer int
	key  linkKey
	conn net.Conn

	tasks   [plan.NumRoles][]*incoming // by role and index; nil for tasks that do not concern this rank
	barrier []uint64                   // per round: the last number heard

	random *mathrand.Rand // of the reordering
	pieces chan *piece    // to the reordering; nil without
}

// incoming is a task of the sender as its receiver knows it.
type incoming struct {
	name    string
	dst     rect
	signals []nearSignal
	epoch   uint64   // of the message that is being read, or was last
	next    int64    // offset expected next
	message *message // being read; nil between messages
}

// message is one epoch's message on its way into the landing buffer.
type message struct {
	to    *incoming
	epoch uint64
	left  int64 // bytes not yet in place
}

func newInLink(n *network, peer int) *inLink {
	l := &inLink{net: n, peer: peer, barrier: make([]uint64, barrierRounds(n.in.cfg.Plan.World))}
	_, _ = rand.Read(l.key[:]) // never fails
	if n.in.cfg.Net.Reorder {
		l.random = mathrand.New(mathrand.NewPCG(n.in.cfg.Net.Seed, uint64(peer)<<32|uint64(n.in.cfg.Rank)))
		l.pieces = make(chan *piece)
	}
	return l
}

// compile finds the sender's tasks that concern this rank, and where their bytes and flags go.
func (l *inLink) compile() error {
	in := l.net.in
	me := in.cfg.Rank
	for role, queue := range in.cfg.Plan.Ranks[l.peer].Queues {
		l.tasks[role] = make([]*incoming, len(queue))
		for i := range queue {
			t := &queue[i]
			if !concerns(t, me) {
				continue
			}
			c := &incoming{name: fmt.Sprintf("%v task %d", plan.Role(role), i)}
			if t.Kind == plan.Send && t.Peer == me {
				var err error
				if c.dst, err = in.region(me, t.Dst); err != nil {
					return fmt.Errorf("rank %d, %s: %w", l.peer, c.name, err)
				}
				elem := in.cfg.Plan.Buffers[t.Src.Buffer].Elem.Size(in.cfg.DType.Size())
				if n := elem * t.Src.Elements(in.cfg.Shape); n != c.dst.size() {
					return fmt.Errorf("rank %d, %s: sends %d bytes into a region of %d", l.peer, c.name, n, c.dst.size())
				}
			}
			for _, s := range t.Signals {
				if s.Rank == me {
					if int64(s.Flag) >= int64(len(in.cfg.Plan.Flags)) {
						return fmt.Errorf("rank %d, %s: signals flag %d, which does not exist", l.peer, c.name, s.Flag)
					}
					c.signals = append(c.signals, nearSignal{cell: in.heap().flag(int(s.Flag)), kind: in.cfg.Plan.Flags[s.Flag].Kind})
				}
			}
			l.tasks[role][i] = c
		}
	}
	return nil
}

// read receives frames until the connection ends.
func (l *inLink) read() {
	if l.pieces != nil {
		defer close(l.pieces)
		l.net.wg.Go(func() { shuffle(l.pieces, l.place, l.net.quit) })
	}
	r := bufio.NewReaderSize(l.conn, 32<<10)
	for {
		bye, err := l.readFrame(r)
		if bye || errors.Is(err, errAborted) {
			return
		}
		if err != nil {
			l.net.lost(l.peer, err)
			return
		}
	}
}

func (l *inLink) readFrame(r *bufio.Reader) (bye bool, err error) {
	var header [frameSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return false, err
	}
	f, err := decodeFrame(&header)
	if err != nil {
		return false, fmt.Errorf("bad frame: %w", err)
	}
	switch f.kind {
	case frameBye:
		return true, nil
	case frameBarrier:
		return false, l.hearBarrier(f)
	case frameTask:
	default:
		return false, fmt.Errorf("bad frame: unknown kind %d", f.kind)
	}
	m, err := l.accept(f)
	if err != nil {
		return false, fmt.Errorf("bad frame: %w", err)
	}
	if l.pieces != nil {
		p := &piece{msg: m, offset: int64(f.offset), data: make([]byte, f.length)}
		if _, err := io.ReadFull(r, p.data); err != nil {
			return false, err
		}
		p.due = time.Now().Add(time.Duration(l.random.Int64N(int64(cmp.Or(l.net.in.cfg.Net.Jitter, maxJitter)))))
		select {
		case l.pieces <- p:
			return false, nil
		case <-l.net.quit:
			return false, errAborted
		}
	}
	for off, end := int64(f.offset), int64(f.offset)+int64(f.length); off < end; {
		part := m.to.dst.bytesFrom(off)
		part = part[:min(int64(len(part)), end-off)]
		if _, err := io.ReadFull(r, part); err != nil {
			return false, err
		}
		off += int64(len(part))
	}
	return false, l.landed(m, int64(f.length))
}

// accept checks a frame of a task against the sender's plan and gives the message it belongs to.
func (l *inLink) accept(f frame) (*message, error) {
	if int(f.role) >= len(l.tasks) || int64(f.task) >= int64(len(l.tasks[f.role])) || l.tasks[f.role][f.task] == nil {
		return nil, fmt.Errorf("role %d, task %d of rank %d does not send to rank %d", f.role, f.task, l.peer, l.net.in.cfg.Rank)
	}
	c := l.tasks[f.role][f.task]
	size := c.dst.size()
	if c.message == nil {
		if f.epoch != c.epoch+1 {
			return nil, fmt.Errorf("%s: epoch %d after epoch %d", c.name, f.epoch, c.epoch)
		}
		c.message = &message{to: c, epoch: f.epoch, left: size}
		c.epoch, c.next = f.epoch, 0
	}
	if f.epoch != c.epoch {
		return nil, fmt.Errorf("%s: epoch %d in the middle of epoch %d", c.name, f.epoch, c.epoch)
	}
	if f.offset != uint64(c.next) || int64(f.length) > int64(l.net.pieceSize()) || int64(f.length) > size-c.next || f.length == 0 && size > 0 {
		return nil, fmt.Errorf("%s: a piece of %d bytes at %d; expected one at %d of at most %d", c.name, f.length, f.offset, c.next, size-c.next)
	}
	m := c.message
	if c.next += int64(f.length); c.next == size {
		c.message = nil
	}
	return m, nil
}

// place puts a piece that a reordering link held back where it belongs.
func (l *inLink) place(p *piece) {
	for done := int64(0); done < int64(len(p.data)); {
		done += int64(copy(p.msg.to.dst.bytesFrom(p.offset+done), p.data[done:]))
	}
	_ = l.landed(p.msg, int64(len(p.data))) // on abort shuffle ends by itself
}

// landed counts bytes that are in place; the last ones raise the flags.
func (l *inLink) landed(m *message, n int64) error {
	if m.left -= n; m.left > 0 {
		return nil
	}
	if size := m.to.dst.size(); size > 0 && !sleep(l.net.rx.arrived(time.Now(), size), l.net.quit) {
		return errAborted
	}
	(&task{near: m.to.signals}).raise(m.epoch)
	return nil
}

func (l *inLink) hearBarrier(f frame) error {
	if f.length != 0 || f.offset != 0 || int64(f.task) >= int64(len(l.barrier)) {
		return fmt.Errorf("bad frame: barrier round %d of %d", f.task, len(l.barrier))
	}
	w := l.net.in.cfg.Plan.World
	if w.RankAt(barrierPartner(w, w.NodeOf(l.peer), int(f.task)), 0) != l.net.in.cfg.Rank || w.RankAt(w.NodeOf(l.peer), 0) != l.peer {
		return fmt.Errorf("bad frame: rank %d has no part in barrier round %d", l.peer, f.task)
	}
	if f.epoch != l.barrier[f.task]+1 {
		return fmt.Errorf("bad frame: barrier %d after %d", f.epoch, l.barrier[f.task])
	}
	l.barrier[f.task] = f.epoch
	l.net.in.heap().cell(offRounds + int64(f.task)*cellSize).raise(f.epoch)
	return nil
}

// pieceSize is the most bytes of a frame.
func (n *network) pieceSize() int {
	if n.in.cfg.Net.Reorder {
		return maxReordered
	}
	return maxPiece
}
