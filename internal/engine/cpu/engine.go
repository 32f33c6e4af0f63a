// Package cpu executes plans on CPUs: goroutines play the CTAs. The ranks of a node share memory
// through mapped memfds (or the Go heap, when all ranks are in one process), ranks of different
// nodes talk over TCP. It is what runs where there is no GPU, and the oracle of what a plan means.
package cpu

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
