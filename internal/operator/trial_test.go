package operator

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
)

// trial is one case of the fuzz: a run with all of its settings, and the rank that falls behind.
type trial struct {
	spec   RunSpec
	mapped bool // heaps are mapped memory, as between processes
	loose  bool // ranks do not line up before calls
	slow   int  // rank
	pace   pace // of that rank
}

func (tr trial) String() string {
	s := tr.spec
	return fmt.Sprintf("%s/%s %v ppn=%v %v partials=%v chunks=%d tile=%d workers=%v net=%+v warmup=%d iters=%d seed=%d mapped=%v loose=%v slow=%d pace=%d",
		s.Operator, s.Algorithm, s.Shape, s.World.PPN, s.DType, s.Partials, s.Chunks, s.Tile, s.Workers, s.Net, s.Warmup, s.Iters, s.Seed, tr.mapped, tr.loose, tr.slow, tr.pace)
}

// variants are the operators with their algorithms.
var variants = []struct{ operator, algorithm string }{
	{"ag_gemm", ""}, {"gemm_rs", ""}, {"gemm_ar", plan.TwoShot}, {"gemm_ar", plan.OneShot},
}

// The bytes of a trial, in this order; those that are missing are zero.
const (
	atOperator = iota
	atNodes    // less one; the ranks of each of four nodes, less one each, follow
	atM        = atNodes + 5
	atN        = atM + 1
	atK        = atN + 1 // in eights, less one
	atTypes    = atK + 1 // bits: fp16, fp32 partial sums, mapped, reordering, loose
	atChunks   = atTypes + 1
	atTile     = atChunks + 1
	atWorkers  = atTile + 1 // less one, for each role
	atNet      = atWorkers + int(plan.NumRoles)
	atCalls    = atNet + 1
	atSlow     = atCalls + 1
	atPace     = atSlow + 1
	atSeed     = atPace + 1
	trialSize  = atSeed + 1
)

// decode makes a trial of any bytes.
func decode(data []byte) trial {
	var b [trialSize]byte
	copy(b[:], data)
	at := func(i, n int) int { return int(b[i]) % n }
	flag := func(i int) bool { return b[atTypes]>>i&1 == 1 }

	v := variants[at(atOperator, len(variants))]
	tr := trial{mapped: flag(2), loose: flag(4)}
	tr.spec = RunSpec{
		Operator: v.operator, Engine: EngineCPU, Algorithm: v.algorithm,
		Shape:  plan.Shape{M: int64(1 + at(atM, 131)), N: int64(1 + at(atN, 131)), K: int64(8 * (1 + at(atK, 70)))},
		Chunks: 1 + at(atChunks, 5), Tile: []int{0, 1, 7, 16, 24, 64, 65, 200}[at(atTile, 8)],
		Net:   engine.Net{Reorder: flag(3), Seed: uint64(b[atSeed])},
		Check: true, Warmup: at(atCalls, 3), Iters: 1 + at(atCalls, 15)/3, Seed: uint64(b[atSeed]),
		WaitTimeout: time.Minute,
	}
	for node := range 1 + at(atNodes, 4) {
		tr.spec.World.PPN = append(tr.spec.World.PPN, 1+at(atNodes+1+node, 4))
	}
	if flag(0) {
		tr.spec.DType = engine.FP16
	}
	if flag(1) && Sums(v.operator) {
		tr.spec.Partials = plan.ElemFP32
	}
	for role := range tr.spec.Workers {
		tr.spec.Workers[role] = 1 + at(atWorkers+role, 3)
	}
	switch at(atNet, 4) {
	case 1:
		tr.spec.Net.Latency = 200 * time.Microsecond
	case 2:
		tr.spec.Net.BandwidthGBs = 0.2
	case 3:
		tr.spec.Net.Latency, tr.spec.Net.BandwidthGBs = 100*time.Microsecond, 0.5
	}
	size := tr.spec.World.Size()
	tr.slow, tr.pace = at(atSlow, size), pace(at(atPace, int(paces)))

	// Every rank of a large world computes the sums of all: such ones get a small depth, and at last few columns.
	s := &tr.spec.Shape
	if most := int64(1 << 23 / (size * size)); s.M*s.N*s.K > most {
		s.K = max(8, most/(s.M*s.N)/8*8)
		s.N = min(s.N, max(1, most/(s.M*s.K)))
	}
	return tr
}

// plain is the same run with the simplest settings; the result must not depend on them.
func (tr trial) plain() trial {
	s := tr.spec
	s.Chunks, s.Workers, s.Tile, s.Net, s.Warmup = 1, [plan.NumRoles]int{1, 1, 1, 1}, 0, engine.Net{}, 0
	s.WaitTimeout = time.Minute // nothing is lost here, however long a busy machine takes
	return trial{spec: s}
}

// check runs a trial and its plain form: all ranks of both must pass, and have the same bits. A fault, if there is one,
// is put around the engines of the trial only.
func (tr trial) check(t testing.TB, fault func(rank int, e engine.Engine) engine.Engine) error {
	t.Helper()
	want, err := tr.plain().run(t, nil)
	if err != nil {
		return fmt.Errorf("%v\nplain: %w", tr, err)
	}
	got, err := tr.run(t, fault)
	if err != nil {
		return fmt.Errorf("%v\n%w", tr, err)
	}
	for rank := range got {
		if got[rank].OutputHash != want[rank].OutputHash {
			return fmt.Errorf("%v\nrank %d: other bits than with plain settings", tr, rank)
		}
	}
	return nil
}

// run runs a trial once and looks at all that must hold of its results.
func (tr trial) run(t testing.TB, fault func(rank int, e engine.Engine) engine.Engine) ([]RankResult, error) {
	t.Helper()
	p, err := tr.spec.Plan()
	if err != nil {
		return nil, err
	}
	crowd := newCrowd(tr.spec.World.Size())
	results, err := runJob(t, tr.spec, tr.mapped, func(rank int, e engine.Engine) engine.Engine {
		if fault != nil {
			e = fault(rank, e)
		}
		pc := paced{Engine: e, crowd: crowd, loose: tr.loose, seed: tr.spec.Seed}
		if rank == tr.slow {
			pc.pace = tr.pace
		}
		return pc
	})
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		switch {
		case r.Status != Pass:
			return nil, fmt.Errorf("rank %d: %s: %s", r.Rank, r.Status, r.Reason)
		case !r.Checked || r.OutputHash == "" || r.RelError > r.Tolerance:
			return nil, fmt.Errorf("rank %d passed without a check: %+v", r.Rank, r)
		case tr.spec.Operator == "gemm_ar" && r.OutputHash != results[0].OutputHash:
			return nil, fmt.Errorf("ranks 0 and %d have other bits", r.Rank)
		}
	}
	d, err := Merge(tr.spec, p, "emu", results)
	if err != nil {
		return nil, err
	}
	if d.Status != report.Pass {
		return nil, errors.New("all ranks pass, the job does not")
	}
	declared, err := p.Bytes(tr.spec.Shape, tr.spec.DType.Size())
	if err != nil {
		return nil, err
	}
	if d.Bytes.Intra != declared.Intra || d.Bytes.Inter != declared.Inter {
		return nil, fmt.Errorf("moved %d bytes in nodes and %d between them, declared are %d and %d", d.Bytes.Intra, d.Bytes.Inter, declared.Intra, declared.Inter)
	}
	return results, nil
}
