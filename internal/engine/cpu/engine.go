// Package cpu executes plans on CPUs: goroutines play the CTAs. The ranks of a node share memory
// through mapped memfds (or the Go heap, when all ranks are in one process), ranks of different
// nodes talk over TCP. It is what runs where there is no GPU, and the oracle of what a plan means.
package cpu

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// DefaultTile is the tile of compute workers when the configuration leaves it open: what fits the
// second-level cache together with its operands.
const DefaultTile = 64

// Engine opens ranks on CPUs.
type Engine struct {
	local bool     // all ranks live in this process
	heaps sync.Map // of local ranks that are open: key (string) -> *heap
	opens atomic.Uint64
}

// New returns the engine for ranks that are processes of their own.
func New() *Engine { return &Engine{} }

// NewLocal returns the engine for worlds whose ranks all live in this process; all of them must be
// opened with this one Engine. Heaps are ordinary Go memory, so the race detector sees every access.
func NewLocal() *Engine { return &Engine{local: true} }

// Name implements engine.Engine.
func (e *Engine) Name() string { return "cpu" }

// instance is one open rank.
type instance struct {
	engine *Engine
	cfg    engine.Config
	lay    layout
	tile   int64
	life   context.Context // ends at abort or close, with the reason
	kill   context.CancelCauseFunc

	heaps   []*heap // by rank; nil for ranks of other nodes
	key     string  // of the own heap, when local
	chosen  chosenNet
	net     *network   // between nodes over TCP; nil with a fabric
	fabric  *fabric    // between nodes over the inter-node library
	buffers [][]uint16 // the rank's part of inputs and outputs; nil for landing buffers

	queues   [plan.NumRoles]queue
	operands map[plan.Region]*operand
	spare    panelPool

	running sync.Mutex // held by Run and Sync; Close waits for it
	workers []*worker  // of the epoch
	epoch   uint64
	barrier uint64
	closing sync.Once
	mapped  sync.Mutex // guards gone; an Abort may come at any time, also after Close
	gone    bool       // the heaps are no longer mapped
}

// endpoint is the common part of a rank's endpoint data.
type endpoint struct {
	Digest  string `json:"digest"`            // of plan, shape and dtype
	Address string `json:"address,omitempty"` // where it listens for ranks of other nodes
	Heap    string `json:"heap,omitempty"`    // key of its heap, when all ranks are in one process
	Net     []byte `json:"net,omitempty"`     // of its NICs
}

var errClosed = errors.New("the instance is closed")

// Open implements engine.Engine. It fails when ranks were given different plans or shapes, when
// memory is short, or when a peer cannot be reached before ctx or Config.WaitTimeout ends.
func (e *Engine) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	in, err := e.prepare(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.WaitTimeout, fmt.Errorf("no answer for %v", cfg.WaitTimeout))
	defer cancel()
	if err := in.open(ctx); err != nil {
		in.Abort(err)
		return nil, errors.Join(fmt.Errorf("opening the cpu engine: %w", err), in.Close())
	}
	return in, nil
}

func (e *Engine) prepare(cfg engine.Config) (*instance, error) {
	if cfg.Plan == nil || cfg.Bootstrap == nil {
		return nil, errors.New("a plan and a bootstrap are needed")
	}
	if err := cfg.Plan.World.Validate(); err != nil {
		return nil, err
	}
	size := cfg.Plan.World.Size()
	if cfg.Rank < 0 || cfg.Rank >= size {
		return nil, fmt.Errorf("rank %d is not in a world of %d ranks", cfg.Rank, size)
	}
	if len(cfg.Plan.Ranks) != size {
		return nil, fmt.Errorf("the plan has queues for %d ranks, its world has %d", len(cfg.Plan.Ranks), size)
	}
	for role, n := range cfg.Workers {
		if n < 1 {
			return nil, fmt.Errorf("%d workers in role %v; each role needs at least one", n, plan.Role(role))
		}
	}
	if cfg.WaitTimeout <= 0 {
		return nil, errors.New("the wait time-out must be positive: every wait is bounded")
	}
	if s := cfg.Shape; s.M < 0 || s.N < 0 || s.K < 1 || s.K%8 != 0 {
		return nil, fmt.Errorf("shape M=%d N=%d K=%d: sizes must not be negative, and K a positive multiple of 8", s.M, s.N, s.K)
	}
	if cfg.Net.BandwidthGBs < 0 || cfg.Net.Latency < 0 {
		return nil, errors.New("bandwidth and latency of the emulated link must not be negative")
	}
	if cfg.Tile < 0 {
		return nil, fmt.Errorf("a tile of %d rows", cfg.Tile)
	}
	if cfg.ListenAddr != "" {
		// Peers connect to the address that is published, so it cannot be "any".
		if ip, err := netip.ParseAddr(cfg.ListenAddr); err != nil || ip.IsUnspecified() {
			return nil, fmt.Errorf("a rank cannot take connections at %q: an IP address of this host is needed", cfg.ListenAddr)
		}
	}
	if barrierRounds(cfg.Plan.World) > maxRounds {
		return nil, fmt.Errorf("%d nodes are more than the barrier has words for", cfg.Plan.World.Nodes())
	}
	in := &instance{engine: e, cfg: cfg, tile: tileOf(cfg), heaps: make([]*heap, size), operands: map[plan.Region]*operand{}}
	var err error
	if in.lay, err = newLayout(cfg.Plan, cfg.Shape, cfg.DType); err != nil {
		return nil, err
	}
	if err := in.checkMemory(); err != nil {
		return nil, err
	}
	in.life, in.kill = context.WithCancelCause(context.Background())
	return in, nil
}

func (in *instance) open(ctx context.Context) error {
	p, me := in.cfg.Plan, in.cfg.Rank
	sum, err := digest(in.cfg)
	if err != nil {
		return err
	}
	mine := endpoint{Digest: fmt.Sprintf("%x", sum)}
	// Every open of a job gets names of its own; all ranks open in the same order.
	name := "heap-" + strconv.FormatUint(in.engine.opens.Add(1), 10)
	if in.chosen, err = in.chooseNet(ctx); err != nil {
		return err
	}
	var file *os.File // of the heap
	if in.engine.local && in.chosen.backend == NetTCP {
		in.heaps[me] = newLocalHeap(in.lay, digest64(sum))
	} else if in.heaps[me], file, err = newMappedHeap(in.lay, digest64(sum)); err != nil {
		return err
	}
	if in.engine.local {
		in.heaps[me].sharedInProcess()
		in.key = rand.Text()
		mine.Heap = in.key
		in.engine.heaps.Store(in.key, in.heaps[me])
	}
	err = in.openNet(&mine, file)
	if err == nil && file != nil && !in.engine.local {
		if err = in.cfg.Bootstrap.ShareFile(ctx, name, file); err != nil {
			err = fmt.Errorf("sharing the heap with the ranks of the node: %w", err)
		}
	}
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return err
	}
	peers, keys, err := in.exchange(ctx, mine)
	if err != nil {
		return err
	}
	for rank := range peers {
		if rank == me || !p.World.SameNode(rank, me) {
			continue
		}
		if in.heaps[rank], err = in.peerHeap(ctx, rank, name, peers[rank].Heap, digest64(sum)); err != nil {
			return fmt.Errorf("mapping the heap of rank %d: %w", rank, err)
		}
	}
	in.buffers = make([][]uint16, len(p.Buffers))
	for i := range p.Buffers {
		b := &p.Buffers[i]
		n := b.RowSpan(me, p.World.Size()).Len(in.cfg.Shape) * in.cfg.Shape.Of(b.Cols)
		sent := in.fabric.memory(plan.BufferID(i))
		switch {
		case b.Kind == plan.BufLanding:
		case sent != nil:
			in.buffers[i] = sent
		case b.InHeap():
			in.buffers[i] = in.heap().elements(in.lay.landing[i], n)
		default:
			in.buffers[i] = make([]uint16, n)
		}
	}
	if err := in.compile(); err != nil {
		return err
	}
	if in.fabric != nil {
		common := make([][]byte, len(peers))
		for rank := range peers {
			common[rank] = peers[rank].Net
		}
		return in.fabric.connect(ctx, common, keys)
	}
	return in.connectTCP(ctx, peers, keys)
}

// openNet opens what carries bytes between nodes, and adds the rank's endpoint.
func (in *instance) openNet(mine *endpoint, heapFile *os.File) (err error) {
	if in.chosen.backend != NetTCP {
		if in.fabric, err = newFabric(in, in.chosen.backend, in.chosen.job, heapFile); err == nil {
			mine.Net, err = in.fabric.net.Endpoint(engine.Everyone)
		}
		return err
	}
	if in.net, err = newNetwork(in); err != nil {
		return err
	}
	if in.net.listener != nil {
		mine.Address = in.net.listener.Addr().String()
	}
	return nil
}

// Network implements engine.Networked.
func (in *instance) Network() (name, why string) {
	if in.cfg.Plan.World.Nodes() == 1 {
		return "none", ""
	}
	if in.fabric != nil {
		return in.chosen.backend, in.chosen.why + "; " + in.fabric.text
	}
	return in.chosen.backend, in.chosen.why
}

func (in *instance) connectTCP(ctx context.Context, peers []endpoint, keys [][]byte) error {
	for _, l := range in.net.inward {
		if err := l.compile(); err != nil {
			return err
		}
	}
	err := in.net.connect(ctx, func(rank int) (string, *linkKey, error) {
		if _, _, err := net.SplitHostPort(peers[rank].Address); err != nil {
			return "", nil, fmt.Errorf("rank %d published no address to connect to: %w", rank, err)
		}
		if len(keys[rank]) != len(linkKey{}) {
			return "", nil, fmt.Errorf("rank %d gave rank %d no key for its connection", rank, in.cfg.Rank)
		}
		return peers[rank].Address, (*linkKey)(keys[rank]), nil
	})
	if err != nil {
		return err
	}
	in.net.start()
	return nil
}

// exchange publishes the own endpoint and reads those of all ranks, with the keys meant for this one.
func (in *instance) exchange(ctx context.Context, mine endpoint) ([]endpoint, [][]byte, error) {
	boot, size := in.cfg.Bootstrap, in.cfg.Plan.World.Size()
	blob, err := json.Marshal(mine)
	if err != nil {
		return nil, nil, err
	}
	if err := boot.Put(ctx, engine.Everyone, blob); err != nil {
		return nil, nil, fmt.Errorf("publishing the endpoint: %w", err)
	}
	if err := in.putPrivate(ctx); err != nil {
		return nil, nil, err
	}
	if err := boot.Fence(ctx); err != nil {
		return nil, nil, fmt.Errorf("waiting for the endpoints of all ranks: %w", err)
	}
	peers, keys := make([]endpoint, size), make([][]byte, size)
	for rank := range size {
		common, private, err := boot.Get(ctx, rank)
		if err != nil {
			return nil, nil, fmt.Errorf("endpoint of rank %d: %w", rank, err)
		}
		if err := json.Unmarshal(common, &peers[rank]); err != nil {
			return nil, nil, fmt.Errorf("endpoint of rank %d: %w", rank, err)
		}
		if peers[rank].Digest != mine.Digest {
			return nil, nil, fmt.Errorf("rank %d runs another plan, shape or dtype than rank %d (digest %.12s, not %.12s); are both of one build?",
				rank, in.cfg.Rank, peers[rank].Digest, mine.Digest)
		}
		keys[rank] = private
	}
	return peers, keys, nil
}

// putPrivate publishes what only one peer may know: the key of its connection, or NIC endpoints with memory keys.
func (in *instance) putPrivate(ctx context.Context) error {
	private := map[int][]byte{}
	if in.fabric != nil {
		for _, rank := range in.fabric.peers {
			blob, err := in.fabric.net.Endpoint(rank)
			if err != nil {
				return fmt.Errorf("endpoint for rank %d: %w", rank, err)
			}
			private[rank] = blob
		}
	} else {
		for rank, l := range in.net.inward {
			private[rank] = l.key[:]
		}
	}
	for rank, blob := range private {
		if err := in.cfg.Bootstrap.Put(ctx, rank, blob); err != nil {
			return fmt.Errorf("publishing what rank %d must know: %w", rank, err)
		}
	}
	return nil
}

func (in *instance) peerHeap(ctx context.Context, rank int, name, key string, digest uint64) (*heap, error) {
	if in.engine.local {
		h, ok := in.engine.heaps.Load(key)
		if !ok {
			return nil, errors.New("it was not opened by this engine")
		}
		return h.(*heap), nil
	}
	f, err := in.cfg.Bootstrap.PeerFile(ctx, rank, name)
	if err != nil {
		return nil, err
	}
	h, err := openMappedHeap(f, in.lay, digest)
	return h, errors.Join(err, f.Close())
}

// digest identifies what all ranks must agree on.
func digest(cfg engine.Config) ([]byte, error) {
	h := sha256.New()
	sum, err := cfg.Plan.Digest()
	if err != nil {
		return nil, err
	}
	_, _ = h.Write(sum) // a hash takes everything
	for _, n := range []int64{cfg.Shape.M, cfg.Shape.N, cfg.Shape.K, int64(cfg.DType)} {
		_ = binary.Write(h, binary.LittleEndian, n)
	}
	return h.Sum(nil), nil
}

func (in *instance) heap() *heap { return in.heaps[in.cfg.Rank] }

// Abort implements engine.Instance. The first reason stays.
func (in *instance) Abort(reason error) {
	in.kill(reason)
	in.mapped.Lock()
	defer in.mapped.Unlock()
	if h := in.heap(); h != nil && !in.gone {
		h.abort()
	}
	if in.net != nil {
		in.net.interrupt()
	}
	if in.fabric != nil {
		in.fabric.interrupt(reason)
	}
}

// aborted is the reason of the abort, or nil.
func (in *instance) aborted() error { return context.Cause(in.life) }

// Close implements engine.Instance.
func (in *instance) Close() error {
	var err error
	in.closing.Do(func() {
		if in.aborted() == nil && in.running.TryLock() {
			in.farewell()
			in.running.Unlock()
		}
		in.Abort(errClosed)
		in.running.Lock() // until workers have left
		defer in.running.Unlock()
		if in.net != nil {
			err = in.net.close()
		}
		if in.fabric != nil {
			err = in.fabric.close()
		}
		in.mapped.Lock()
		defer in.mapped.Unlock()
		in.gone = true
		in.engine.heaps.Delete(in.key)
		for _, h := range in.heaps {
			if h != nil {
				err = errors.Join(err, h.close())
			}
		}
	})
	return err
}

// farewell tells peers on other nodes that this rank closes in good order.
func (in *instance) farewell() {
	if in.fabric != nil {
		in.fabric.closing.Store(true)
		in.fabric.farewell()
		return
	}
	in.net.farewell()
}
