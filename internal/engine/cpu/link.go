package cpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// network is a rank's TCP connections to ranks of other nodes: one for every (sender, receiver) that
// the plan or the barrier uses, in the direction of the data.
type network struct {
	in     *instance
	out    map[int]*outLink // by receiver
	inward map[int]*inLink  // by sender

	listener net.Listener // nil when nobody sends to this rank
	arrived  chan arrival
	quit     <-chan struct{} // closed when the instance aborts or closes
	closing  atomic.Bool     // a connection that ends now is no fault
	tx, rx   pacer
	wg       sync.WaitGroup
}

type arrival struct {
	rank int
	conn net.Conn
}

const (
	handshakeTimeout = 5 * time.Second // for those who come
	maxStrangers     = 64              // connections that may be in the handshake at once
)

// newNetwork finds out who sends to whom and starts to listen.
func newNetwork(in *instance) (*network, error) {
	n := &network{
		in: in, out: map[int]*outLink{}, inward: map[int]*inLink{},
		arrived: make(chan arrival), quit: in.life.Done(),
		tx: pacer{perSecond: in.cfg.Net.BandwidthGBs * 1e9}, rx: pacer{perSecond: in.cfg.Net.BandwidthGBs * 1e9},
	}
	for rank := range in.cfg.Plan.World.Size() {
		if in.cfg.Plan.World.SameNode(rank, in.cfg.Rank) {
			continue
		}
		if talksTo(in.cfg.Plan, in.cfg.Rank, rank) {
			n.out[rank] = newOutLink(n, rank)
		}
		if talksTo(in.cfg.Plan, rank, in.cfg.Rank) {
			n.inward[rank] = newInLink(n, rank)
		}
	}
	if len(n.inward) == 0 {
		return n, nil
	}
	var err error
	if n.listener, err = in.cfg.Ports.Listen(context.Background(), in.cfg.Host()); err != nil {
		return nil, fmt.Errorf("rank %d cannot listen for ranks of other nodes: %w", in.cfg.Rank, err)
	}
	n.wg.Go(n.accept)
	return n, nil
}

// talksTo reports whether rank a sends anything to rank b of another node.
func talksTo(p *plan.Plan, a, b int) bool {
	for _, queue := range p.Ranks[a].Queues {
		for i := range queue {
			if concerns(&queue[i], b) {
				return true
			}
		}
	}
	from, la := p.World.Place(a)
	to, lb := p.World.Place(b)
	if la != 0 || lb != 0 {
		return false
	}
	for round := range barrierRounds(p.World) {
		if barrierPartner(p.World, from, round) == to {
			return true
		}
	}
	return false
}

// concerns reports whether a task of a rank of another node writes to or signals rank b.
func concerns(t *plan.Task, b int) bool {
	if t.Kind == plan.Send && t.Peer == b {
		return true
	}
	for _, s := range t.Signals {
		if s.Rank == b {
			return true
		}
	}
	return false
}

// barrierRounds is the number of rounds of the barrier between nodes: in round r, node i tells node
// i+2^r; after the last one every node has heard, directly or not, of all others.
func barrierRounds(w plan.World) int { return bits.Len(uint(w.Nodes() - 1)) }

func barrierPartner(w plan.World, node, round int) int { return (node + 1<<round) % w.Nodes() }

// accept lets planned senders in and drops everybody else, until the listener is closed.
func (n *network) accept() {
	strangers := make(chan struct{}, maxStrangers)
	for {
		conn, err := n.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, or the peer gave up meanwhile: those who wait for a connection have a time-out.
			if !sleep(time.Now().Add(10*time.Millisecond), n.quit) {
				return
			}
			continue
		}
		select {
		case strangers <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		n.wg.Go(func() {
			defer func() { <-strangers }()
			stop := context.AfterFunc(n.in.life, func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
			rank, err := receive(conn, func(rank int) *linkKey {
				if l := n.inward[rank]; l != nil {
					return &l.key
				}
				return nil
			})
			// What is handed over stays open when this rank aborts.
			if stop() && err == nil {
				select {
				case n.arrived <- arrival{rank, conn}:
					return
				case <-n.quit:
				}
			}
			_ = conn.Close()
		})
	}
}

// connect makes the connections; it returns when all planned ones stand.
func (n *network) connect(ctx context.Context, address func(rank int) (string, *linkKey, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	failed := make(chan error, len(n.out))
	for _, l := range n.out {
		wg.Go(func() {
			if err := l.dial(ctx, address); err != nil {
				failed <- err
			}
		})
	}
	err := n.gather(ctx, failed)
	if err != nil {
		cancel(err)
	}
	wg.Wait()
	select {
	case dialErr := <-failed:
		err = errors.Join(err, dialErr)
	default:
	}
	if n.listener != nil {
		err = errors.Join(err, n.listener.Close())
	}
	return err
}

func (n *network) gather(ctx context.Context, failed chan error) error {
	for range n.inward {
		select {
		case a := <-n.arrived:
			l := n.inward[a.rank]
			if l.conn != nil {
				_ = a.conn.Close()
				return fmt.Errorf("rank %d connected twice", a.rank)
			}
			_ = a.conn.SetDeadline(time.Time{})
			l.conn = a.conn
		case err := <-failed:
			return err
		case <-n.quit:
			return errAborted
		case <-ctx.Done():
			var missing []int
			for rank := range n.in.cfg.Plan.World.Size() {
				if l := n.inward[rank]; l != nil && l.conn == nil {
					missing = append(missing, rank)
				}
			}
			return fmt.Errorf("rank %d waited for connections of ranks %v: %w", n.in.cfg.Rank, missing, context.Cause(ctx))
		}
	}
	return nil
}

// start begins to receive.
func (n *network) start() {
	for _, l := range n.inward {
		n.wg.Go(l.read)
	}
	for _, l := range n.out {
		n.wg.Go(l.watch)
		if l.delayed != nil {
			n.wg.Go(l.deliver)
		}
	}
}

// lost says that a connection ended although nobody closed it in good order.
func (n *network) lost(peer int, err error) {
	if n.closing.Load() {
		return
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it closed the connection in the middle of the job")
	}
	n.in.Abort(&engine.PeerError{Rank: n.in.cfg.Rank, Peer: peer, Err: err})
}

// interrupt ends writes in progress. Connections stay open, so that peers do not take an abort for the
// death of this rank.
func (n *network) interrupt() {
	for _, l := range n.out {
		l.interrupt()
	}
}

// farewell tells all peers that this rank closes in good order. They may have closed before.
func (n *network) farewell() {
	n.closing.Store(true)
	for _, l := range n.out {
		_ = l.writeFrame(frame{kind: frameBye}, nil)
	}
	for _, l := range n.inward {
		_ = l.conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = l.conn.Write([]byte{byeByte})
	}
}

// close ends all connections and waits for their goroutines.
func (n *network) close() error {
	n.closing.Store(true)
	var err error
	if n.listener != nil {
		if e := n.listener.Close(); !errors.Is(e, net.ErrClosed) {
			err = e
		}
	}
	for _, l := range n.out {
		if l.conn != nil {
			_ = l.conn.Close()
		}
	}
	for _, l := range n.inward {
		if l.conn != nil {
			_ = l.conn.Close()
		}
	}
	n.wg.Wait()
	return err
}
