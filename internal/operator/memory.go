package operator

import (
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// CheckMemory says, before anything starts, whether this host has the memory for some ranks of the run.
// Engines that do not tell what they take are passed.
func CheckMemory(eng engine.Engine, spec RunSpec, p *plan.Plan, ranksHere []int) error {
	estimator, ok := eng.(engine.MemoryEstimator)
	if !ok {
		return nil
	}
	var need float64 // a sum of many, so in floating point, which does not wrap around
	for _, rank := range ranksHere {
		n, err := estimator.HostMemory(engine.Config{Rank: rank, Plan: p, Shape: spec.Shape, DType: spec.DType, Workers: spec.Workers, Tile: spec.Tile})
		if err != nil {
			return fmt.Errorf("sizing M=%d N=%d K=%d: %w", spec.Shape.M, spec.Shape.N, spec.Shape.K, err)
		}
		need += float64(n) + spec.dataMemory()
	}
	available, err := engine.AvailableMemory()
	if err != nil {
		return err
	}
	if need > float64(available) {
		return fmt.Errorf("not enough memory: M=%d N=%d K=%d on %d ranks of this host needs %.1f GiB, and %.1f GiB are available",
			spec.Shape.M, spec.Shape.N, spec.Shape.K, len(ranksHere), need/(1<<30), float64(available)/(1<<30))
	}
	return nil
}

// dataMemory is the bytes that a rank takes at most for making its operands and checking its output.
func (s RunSpec) dataMemory() float64 {
	kind, err := lookup(s.Operator)
	if err != nil {
		return 0 // Validate says so
	}
	n, k := float64(s.Shape.N), float64(s.Shape.K)
	size := float64(s.DType.Size())
	loading := 0.0
	for _, in := range kind.inputs {
		from, to := in.rows(s, 0)
		loading += size * float64(to-from) * float64(s.Shape.Of(in.cols))
	}
	height, width := kind.size(s, 0)
	m := float64(height)
	output := size * m * float64(width)
	if !s.Check {
		return output + loading
	}
	rows := min(checkBlock, m)
	return output + loading + (size+4)*n*k + (size+4)*rows*k + 4*rows*n
}
