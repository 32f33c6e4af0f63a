package cpu

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/enginetest"
	"github.com/mkrun/mkrun/internal/leaktest"
	"github.com/mkrun/mkrun/internal/plan"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// job is a world of ranks in this process.
type job struct {
	plan  *plan.Plan
	ranks []engine.Instance
}

// options vary a job; the zero value is one worker per role in local mode.
type options struct {
	mapped  bool
	workers [plan.NumRoles]int
	tile    int
	net     engine.Net
	dtype   engine.DType
	edit    func(rank int, cfg *engine.Config)
}

// openJob opens all ranks of a plan; they are closed when the test ends.
func openJob(t testing.TB, p *plan.Plan, s plan.Shape, o options) *job {
	t.Helper()
	if o.workers == [plan.NumRoles]int{} {
		o.workers = [plan.NumRoles]int{1, 1, 1, 1}
	}
	size := p.World.Size()
	boot := enginetest.NewWorld(size)
	local := NewLocal()
	j := &job{plan: p, ranks: make([]engine.Instance, size)}
	t.Cleanup(func() {
		err := j.each(func(rank int) error {
			if j.ranks[rank] == nil {
				return nil
			}
			return j.ranks[rank].Close()
		})
		if err := errors.Join(err, boot.Close()); err != nil {
			t.Error(err)
		}
	})
	err := j.each(func(rank int) error {
		cfg := engine.Config{Rank: rank, Plan: p, Shape: s, DType: o.dtype, Workers: o.workers, Tile: o.tile, Net: o.net,
			ListenAddr: fmt.Sprintf("127.0.0.%d", 1+p.World.NodeOf(rank)), WaitTimeout: time.Minute, Bootstrap: boot.Rank(rank)}
		if o.edit != nil {
			o.edit(rank, &cfg)
		}
		e := local
		if o.mapped {
			e = New()
		}
		in, err := e.Open(t.Context(), cfg)
		if err == nil {
			j.ranks[rank] = in
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// each runs f for all open ranks at once.
func (j *job) each(f func(rank int) error) error {
	errs := make([]error, len(j.ranks))
	var wg sync.WaitGroup
	for rank := range j.ranks {
		wg.Go(func() { errs[rank] = f(rank) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// operands are the A of all ranks and one B per rank.
type operands struct {
	a []uint16
	b [][]uint16
}

func randomBits(r *rand.Rand, d engine.DType, n int64) []uint16 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(r.NormFloat64())
	}
	bits := make([]uint16, n)
	d.Narrow(bits, f)
	return bits
}

func randomOperands(seed uint64, s plan.Shape, size int, d engine.DType) operands {
	r := rand.New(rand.NewPCG(seed, 1))
	o := operands{a: randomBits(r, d, s.M*s.K)}
	for range size {
		o.b = append(o.b, randomBits(r, d, s.N*s.K))
	}
	return o
}

// gather runs ag_gemm once and returns C of every rank.
func (j *job) gather(t testing.TB, s plan.Shape, o operands) ([][]uint16, []engine.Stats) {
	t.Helper()
	out, stats := make([][]uint16, len(j.ranks)), make([]engine.Stats, len(j.ranks))
	err := j.each(func(rank int) error {
		in := j.ranks[rank]
		from, to := plan.Part(plan.DimM, rank, len(j.ranks)).At(s)
		if err := in.SetInput("a", o.a[from*s.K:to*s.K]); err != nil {
			return err
		}
		if err := in.SetInput("b", o.b[rank]); err != nil {
			return err
		}
		if err := in.Poison("c"); err != nil {
			return err
		}
		if err := in.Sync(t.Context()); err != nil {
			return err
		}
		var err error
		if stats[rank], err = in.Run(t.Context()); err != nil {
			return err
		}
		out[rank], err = in.Output("c")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out, stats
}

// product is A * Bᵀ of one rank, by gonum in one piece, rounded.
func product(s plan.Shape, d engine.DType, a, b []uint16) []float32 {
	fa, fb, fc := make([]float32, len(a)), make([]float32, len(b)), make([]float32, s.M*s.N)
	d.Widen(fa, a)
	d.Widen(fb, b)
	gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, int(s.M), int(s.N), int(s.K), 1, fa, int(s.K), fb, int(s.K), 0, fc, int(max(1, s.N)))
	return fc
}

func checkProducts(t testing.TB, s plan.Shape, d engine.DType, o operands, out [][]uint16) {
	t.Helper()
	for rank, c := range out {
		want := product(s, d, o.a, o.b[rank])
		got := make([]float32, len(c))
		d.Widen(got, c)
		for i := range want {
			diff := float64(got[i] - want[i])
			bound := d.UnitRoundoff()*max(float64(want[i]), -float64(want[i])) + 1e-4
			if !(diff <= bound && -diff <= bound) {
				t.Fatalf("rank %d, row %d, column %d: %v, want %v", rank, int64(i)/s.N, int64(i)%s.N, got[i], want[i])
			}
		}
	}
}

func agGemm(t testing.TB, chunks int, ppn ...int) *plan.Plan {
	t.Helper()
	p, err := plan.AGGemm(plan.World{PPN: ppn}, chunks)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Verify(p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAGGemmOnWorldsAndShapes(t *testing.T) {
	shapes := []plan.Shape{{M: 37, N: 23, K: 72}, {M: 1, N: 1, K: 8}, {M: 3, N: 70, K: 264}, {M: 131, N: 1, K: 8}, {M: 64, N: 64, K: 64}}
	for _, ppn := range [][]int{{1}, {2}, {1, 1}, {2, 2}, {3, 1}, {1, 2, 2}, {2, 2, 2}} {
		for _, mapped := range []bool{false, true} {
			for _, reorder := range []bool{false, true} {
				t.Run(fmt.Sprintf("ppn=%v/mapped=%v/reorder=%v", ppn, mapped, reorder), func(t *testing.T) {
					p := agGemm(t, 2, ppn...)
					for i, s := range shapes {
						d := engine.DType(i % 2)
						j := openJob(t, p, s, options{mapped: mapped, dtype: d, net: engine.Net{Reorder: reorder, Seed: uint64(i)}})
						for epoch := range uint64(3) {
							o := randomOperands(epoch, s, p.World.Size(), d)
							out, _ := j.gather(t, s, o)
							checkProducts(t, s, d, o, out)
						}
					}
				})
			}
		}
	}
}

// The bits of the result depend on nothing but the operands.
func TestSameBitsWhateverTheOrder(t *testing.T) {
	s := plan.Shape{M: 150, N: 90, K: 600}
	o := randomOperands(7, s, 4, engine.BF16)
	var want [][]uint16
	for i, v := range []options{
		{},
		{workers: [plan.NumRoles]int{3, 2, 2, 2}},
		{mapped: true, workers: [plan.NumRoles]int{2, 1, 1, 1}},
		{tile: 16}, {tile: 7}, {tile: 200},
		{net: engine.Net{Reorder: true, Seed: 1}, workers: [plan.NumRoles]int{2, 2, 2, 2}},
		{net: engine.Net{Reorder: true, Seed: 2, Latency: time.Millisecond, BandwidthGBs: 0.1}},
	} {
		for _, chunks := range []int{1, 3} {
			j := openJob(t, agGemm(t, chunks, 2, 2), s, v)
			for range 2 {
				out, _ := j.gather(t, s, o)
				if want == nil {
					checkProducts(t, s, engine.BF16, o, out)
					want = out
				}
				for rank := range out {
					if !slices.Equal(out[rank], want[rank]) {
						t.Fatalf("variant %d with %d chunks: rank %d got other bits", i, chunks, rank)
					}
				}
			}
		}
	}
}

func TestStatsCountTheDeclaredBytes(t *testing.T) {
	s := plan.Shape{M: 101, N: 8, K: 64}
	for _, ppn := range [][]int{{2, 2}, {3, 1}} {
		p := agGemm(t, 2, ppn...)
		_, stats := openJob(t, p, s, options{}).gather(t, s, randomOperands(1, s, 4, engine.BF16))
		var intra, inter int64
		for _, st := range stats {
			intra += st.IntraBytes
			inter += st.InterBytes
		}
		want, err := p.Bytes(s, 2)
		if err != nil {
			t.Fatal(err)
		}
		if intra != want.Intra || inter != want.Inter {
			t.Errorf("ppn %v: %d bytes within nodes and %d between them, declared are %+v", ppn, intra, inter, want)
		}
	}
}
