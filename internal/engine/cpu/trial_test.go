package cpu

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// makers make the plans of all operators.
var makers = map[string]func(w plan.World, o plan.SumOptions) (*plan.Plan, error){
	"ag_gemm":          func(w plan.World, o plan.SumOptions) (*plan.Plan, error) { return plan.AGGemm(w, o.Chunks) },
	"gemm_rs":          plan.GemmRS,
	"gemm_ar/two-shot": func(w plan.World, o plan.SumOptions) (*plan.Plan, error) { return plan.GemmAR(w, plan.TwoShot, o) },
	"gemm_ar/one-shot": func(w plan.World, o plan.SumOptions) (*plan.Plan, error) { return plan.GemmAR(w, plan.OneShot, o) },
}

func makePlan(t testing.TB, operator string, o plan.SumOptions, ppn ...int) *plan.Plan {
	t.Helper()
	p, err := makers[operator](plan.World{PPN: ppn}, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Verify(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// epochs runs a plan a number of times, each on other data, and returns all outputs: by epoch, by rank. Ranks do not
// line up in between: each goes on as soon as its own output is complete and copied.
func (j *job) epochs(t testing.TB, n int, s plan.Shape, d engine.DType, seed uint64) ([][][]uint16, []engine.Stats) {
	t.Helper()
	out, stats := make([][][]uint16, n), make([]engine.Stats, len(j.ranks))
	for e := range out {
		out[e] = make([][]uint16, len(j.ranks))
	}
	err := j.each(func(rank int) error {
		in, r := j.ranks[rank], rand.New(rand.NewPCG(seed, uint64(rank)))
		for e := range n {
			for _, b := range j.plan.Buffers {
				if b.Kind != plan.BufInput {
					continue
				}
				elements := b.RowSpan(rank, len(j.ranks)).Len(s) * s.Of(b.Cols)
				if err := in.SetInput(b.Name, randomBits(r, d, elements)); err != nil {
					return err
				}
			}
			if err := in.Poison("c"); err != nil {
				return err
			}
			st, err := in.Run(t.Context())
			if err != nil {
				return err
			}
			stats[rank].IntraBytes += st.IntraBytes
			stats[rank].InterBytes += st.InterBytes
			if out[e][rank], err = in.Output("c"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out, stats
}

// Products and sums without elements end, as often as one likes, and what there is of flags and credits still goes
// around. (A world with some empty shards is one with fewer rows than ranks.)
func TestEmptyShapes(t *testing.T) {
	for name := range makers {
		for _, ppn := range [][]int{{1}, {2}, {1, 1}, {1, 3}, {2, 3, 1}, {4, 4}} {
			t.Run(fmt.Sprintf("%s/ppn=%v", name, ppn), func(t *testing.T) {
				for i, s := range []plan.Shape{{M: 0, N: 5, K: 8}, {M: 7, N: 0, K: 16}, {M: 0, N: 0, K: 8}, {M: 1, N: 1, K: 8}} {
					p := makePlan(t, name, plan.SumOptions{Chunks: 1 + i, Partials: plan.Elem(i / 2)}, ppn...)
					d := engine.DType(i % 2)
					j := openJob(t, p, s, options{mapped: i%2 == 1, dtype: d, net: engine.Net{Reorder: i%2 == 0}, workers: [plan.NumRoles]int{2, 1, 2, 1}})
					out, stats := j.epochs(t, 3, s, d, 1)
					moved, err := p.Bytes(s, 2)
					if err != nil {
						t.Fatal(err)
					}
					var intra, inter int64
					for rank, st := range stats {
						intra, inter = intra+st.IntraBytes, inter+st.InterBytes
						for e := range out {
							if slices.Contains(out[e][rank], d.NaN()) {
								t.Errorf("%v: epoch %d left elements of rank %d unwritten", s, e, rank)
							}
						}
					}
					if intra != 3*moved.Intra || inter != 3*moved.Inter {
						t.Errorf("%v: moved %d and %d bytes in 3 epochs, declared for each are %d and %d", s, intra, inter, moved.Intra, moved.Inter)
					}
				}
			})
		}
	}
}

// stall holds up workers of a rank in the middle of their work, at random, until stop is closed: those that begin or
// end a strip of a product, and those that write to another node.
func stall(in *instance, r *rand.Rand, stop <-chan struct{}) {
	var locks []*sync.Mutex
	locks = append(locks, &in.spare.mu)
	for rank := range in.cfg.Plan.World.Size() {
		if l := in.net.out[rank]; l != nil {
			locks = append(locks, &l.mu)
		}
	}
	for {
		select {
		case <-stop:
			return
		default:
		}
		l := locks[r.IntN(len(locks))]
		l.Lock()
		for range r.IntN(200) {
			runtime.Gosched()
		}
		l.Unlock()
		for range r.IntN(50) {
			runtime.Gosched()
		}
	}
}

// stalledEpochs is epochs with a rank that is held up.
func (j *job) stalledEpochs(t testing.TB, slow, n int, s plan.Shape) [][][]uint16 {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() { stall(j.ranks[slow].(*instance), rand.New(rand.NewPCG(uint64(slow), 3)), stop) })
	out, _ := j.epochs(t, n, s, engine.BF16, 9)
	return out
}

// A rank that gets stuck for a while anywhere in a call changes no bit of any call, however far others are ahead.
func TestStalledRanksChangeNothing(t *testing.T) {
	const epochs = 4
	s := plan.Shape{M: 61, N: 19, K: 264}
	for name := range makers {
		for i, ppn := range [][]int{{3}, {2, 2}, {1, 3, 2}} {
			t.Run(fmt.Sprintf("%s/ppn=%v", name, ppn), func(t *testing.T) {
				want, _ := openJob(t, makePlan(t, name, plan.SumOptions{Chunks: 1}, ppn...), s, options{}).epochs(t, epochs, s, engine.BF16, 9)
				p := makePlan(t, name, plan.SumOptions{Chunks: 3}, ppn...)
				for slow := range 2 {
					j := openJob(t, p, s, options{tile: 5, workers: [plan.NumRoles]int{2, 2, 1, 2}, net: engine.Net{Reorder: i%2 == 1, Seed: uint64(slow)}})
					for e, got := range j.stalledEpochs(t, slow*(len(j.ranks)-1), epochs, s) {
						for rank := range got {
							if !slices.Equal(got[rank], want[e][rank]) {
								t.Errorf("rank %d got other bits in epoch %d", rank, e)
							}
						}
					}
				}
			})
		}
	}
}

// Without the waits for credits, ranks that are ahead overwrite what a stalled one still reads, and that shows.
func TestStalledRanksShowMissingCredits(t *testing.T) {
	const epochs = 8
	s := plan.Shape{M: 61, N: 19, K: 264}
	want, _ := openJob(t, makePlan(t, "ag_gemm", plan.SumOptions{Chunks: 1}, 3), s, options{}).epochs(t, epochs, s, engine.BF16, 9)
	p := makePlan(t, "ag_gemm", plan.SumOptions{Chunks: 1}, 3)
	for rank := range p.Ranks {
		for _, queue := range p.Ranks[rank].Queues {
			for i := range queue {
				queue[i].Waits = slices.DeleteFunc(slices.Clone(queue[i].Waits), func(w plan.Wait) bool { return w.Lag > 0 })
			}
		}
	}
	for range 50 {
		j := openJob(t, p, s, options{mapped: true, tile: 5}) // of mapped memory the race detector says nothing
		for e, got := range j.stalledEpochs(t, 0, epochs, s) {
			if !slices.Equal(got[0], want[e][0]) {
				return
			}
		}
	}
	t.Error("no bit changed")
}
