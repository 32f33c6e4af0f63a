package cpu

import (
	"errors"
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// HostMemory implements engine.MemoryEstimator: heap, buffers and converted operands of a rank.
func (e *Engine) HostMemory(cfg engine.Config) (int64, error) {
	p, s := cfg.Plan, cfg.Shape
	lay, err := newLayout(p, s, cfg.DType)
	if err != nil {
		return 0, err
	}
	need := lay.size
	add := func(rows, cols, elem int64) error {
		n, err := matrixBytes(rows, cols, elem)
		if err != nil {
			return err
		}
		if need += n; need < 0 {
			return errors.New("the buffers overflow 64-bit sizes")
		}
		return nil
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.InHeap() {
			continue
		}
		if err := add(b.RowSpan(cfg.Rank, p.World.Size()).Len(s), s.Of(b.Cols), cfg.DType.Size()); err != nil {
			return 0, fmt.Errorf("buffer %s: %w", b.Name, err)
		}
	}
	seen := map[plan.Region]bool{}
	deepest := int64(0)
	for _, t := range p.Ranks[cfg.Rank].Queues[plan.RoleCompute] {
		if t.Kind != plan.Compute || seen[t.B] && p.Buffers[t.B.Buffer].Kind == plan.BufInput {
			continue
		}
		seen[t.B] = true
		cols := pad(t.B.Cols.Len(s))
		deepest = max(deepest, cols)
		if err := add(t.B.Rows.Len(s), cols, 4); err != nil {
			return 0, err
		}
	}
	// Row panels of A: about one per worker, never more than there are rows.
	panels := min(int64(cfg.Workers[plan.RoleCompute]+1)*tileOf(cfg), s.M)
	if err := add(panels, deepest, 4); err != nil {
		return 0, err
	}
	return need, nil
}

// tileOf is the tile of a configuration.
func tileOf(cfg engine.Config) int64 {
	if cfg.Tile == 0 {
		return DefaultTile
	}
	return int64(cfg.Tile)
}

// checkMemory refuses what this host has no memory for, all ranks of the node counted, before
// anything is allocated.
func (in *instance) checkMemory() error {
	w := in.cfg.Plan.World
	ranks := int64(w.PPN[w.NodeOf(in.cfg.Rank)])
	if in.engine.local {
		ranks = int64(w.Size())
	}
	need, err := in.engine.HostMemory(in.cfg)
	if err != nil {
		return err
	}
	available, err := engine.AvailableMemory()
	if err != nil {
		return err
	}
	if need > available/ranks {
		return fmt.Errorf("not enough memory: a rank needs %.1f GiB for M=%d N=%d K=%d, and %d ranks share the %.1f GiB that this host has available",
			float64(need)/(1<<30), in.cfg.Shape.M, in.cfg.Shape.N, in.cfg.Shape.K, ranks, float64(available)/(1<<30))
	}
	return nil
}
