package operator

import (
	"fmt"
	"unsafe"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// processMemory is what a rank's process has of its own, next to the plan and matrices: measured 8 MiB with 2 to 32 ranks on a
// host, with the stacks of its threads and what the Go runtime has not given back.
const processMemory = 12 << 20

// CheckMemory says, before anything starts, whether this host has the memory for some ranks of the run. Of an engine that does
// not tell what it takes only the processes and their plans are counted.
func CheckMemory(eng engine.Engine, spec RunSpec, p *plan.Plan, ranksHere []int) error {
	available, err := engine.AvailableMemory()
	if err != nil {
		return err
	}
	return fitsMemory(available, eng, spec, p, ranksHere)
}

func fitsMemory(available int64, eng engine.Engine, spec RunSpec, p *plan.Plan, ranksHere []int) error {
	ranks, planned := float64(len(ranksHere)), planMemory(p)
	var matrices float64 // a sum of many, so in floating point, which does not wrap around
	if estimator, ok := eng.(engine.MemoryEstimator); ok {
		for _, rank := range ranksHere {
			n, err := estimator.HostMemory(engine.Config{Rank: rank, Plan: p, Shape: spec.Shape, DType: spec.DType, Workers: spec.Workers, Tile: spec.Tile})
			if err != nil {
				return fmt.Errorf("sizing M=%d N=%d K=%d: %w", spec.Shape.M, spec.Shape.N, spec.Shape.K, err)
			}
			matrices += float64(n) + spec.dataMemory()
		}
	}
	if need := matrices + ranks*(planned+processMemory); need > float64(available) {
		return fmt.Errorf("not enough memory: M=%d N=%d K=%d on %d ranks of this host needs %.1f GiB (matrices %.1f; of each rank %.0f MiB for its process, %.0f for the plan, which grows with the square of the ranks), and %.1f GiB are available",
			spec.Shape.M, spec.Shape.N, spec.Shape.K, len(ranksHere), need/(1<<30), matrices/(1<<30),
			float64(processMemory)/(1<<20), planned/(1<<20), float64(available)/(1<<30))
	}
	return nil
}

// planMemory is the bytes that a rank takes for its plan, which it makes whole: the tasks of all ranks, and half as much again
// that making and proving it leaves behind.
func planMemory(p *plan.Plan) float64 {
	var bytes uintptr
	for i := range p.Ranks {
		for _, queue := range p.Ranks[i].Queues {
			bytes += uintptr(len(queue)) * unsafe.Sizeof(plan.Task{})
			for j := range queue {
				t := &queue[j]
				bytes += uintptr(len(t.Srcs))*unsafe.Sizeof(plan.Region{}) + uintptr(len(t.Waits))*unsafe.Sizeof(plan.Wait{}) +
					uintptr(len(t.Signals))*unsafe.Sizeof(plan.Signal{})
			}
		}
	}
	return 1.5 * float64(bytes)
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
