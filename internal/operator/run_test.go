package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cpu"
	"github.com/mkrun/mkrun/internal/engine/enginetest"
	"github.com/mkrun/mkrun/internal/leaktest"
	"github.com/mkrun/mkrun/internal/plan"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func testSpec(s plan.Shape, ppn ...int) RunSpec {
	return RunSpec{
		Operator: "ag_gemm", Engine: EngineCPU, Shape: s, World: plan.World{PPN: ppn}, Chunks: 2, Workers: [plan.NumRoles]int{1, 1, 1, 1},
		Check: true, Warmup: 1, Iters: 3, Seed: 5, WaitTimeout: time.Minute,
	}
}

// runJob runs all ranks in this process, each on what wrap makes of the engine.
func runJob(t testing.TB, spec RunSpec, mapped bool, wrap func(rank int, e engine.Engine) engine.Engine) ([]RankResult, error) {
	t.Helper()
	size := spec.World.Size()
	boot := enginetest.NewWorld(size)
	defer func() {
		if err := boot.Close(); err != nil {
			t.Error(err)
		}
	}()
	local := cpu.NewLocal()
	results, errs := make([]RankResult, size), make([]error, size)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var wg sync.WaitGroup
	for rank := range size {
		wg.Go(func() {
			var e engine.Engine = local
			if mapped {
				e = cpu.New()
			}
			if wrap != nil {
				e = wrap(rank, e)
			}
			results[rank], errs[rank] = Run(ctx, e, spec, Rank{Rank: rank, ListenAddr: fmt.Sprintf("127.0.0.%d", 1+spec.World.NodeOf(rank)), Bootstrap: boot.Rank(rank)})
			if errs[rank] != nil {
				cancel(errs[rank]) // as the session does
			}
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}

// Sums: every operator that has them, in both types, on worlds and shapes with tails, with few rows for many ranks.
func TestSumsPassOnWorldsAndShapes(t *testing.T) {
	shapes := []plan.Shape{{M: 1, N: 1, K: 8}, {M: 3, N: 130, K: 40}, {M: 97, N: 31, K: 264}, {M: 200, N: 65, K: 128}}
	for _, ppn := range [][]int{{1}, {2}, {3}, {1, 1}, {2, 1}, {2, 2}, {1, 3}, {1, 1, 1}, {2, 3, 1}} {
		for i, s := range shapes {
			for j, op := range []string{"gemm_rs", "gemm_ar/two-shot", "gemm_ar/one-shot"} {
				spec := testSpec(s, ppn...)
				spec.Operator, spec.Algorithm, _ = strings.Cut(op, "/")
				spec.DType, spec.Partials = engine.DType((i+j)%2), plan.Elem((i+j/2)%2)
				spec.Net.Reorder = i >= 2
				t.Run(fmt.Sprintf("%s/%v/ppn=%v/partials=%v", op, s, ppn, spec.Partials), func(t *testing.T) {
					results, err := runJob(t, spec, (i+j)%2 == 0, nil)
					if err != nil {
						t.Fatal(err)
					}
					var intra, inter int64
					for _, r := range results {
						if r.Status != Pass || !r.Checked || r.RelError > r.Tolerance {
							t.Errorf("rank %d: %+v", r.Rank, r)
						}
						if spec.Operator == "gemm_ar" && r.OutputHash != results[0].OutputHash {
							t.Errorf("ranks 0 and %d have other bits", r.Rank)
						}
						intra, inter = intra+r.IntraBytes, inter+r.InterBytes
					}
					p, err := spec.Plan()
					if err != nil {
						t.Fatal(err)
					}
					if moved, err := p.Bytes(s, 2); err != nil || moved.Intra != intra || moved.Inter != inter {
						t.Errorf("moved %d and %d bytes, declared are %+v (%v)", intra, inter, moved, err)
					}
				})
			}
		}
	}
}

func TestRunPassesOnWorldsAndShapes(t *testing.T) {
	shapes := []plan.Shape{{M: 1, N: 1, K: 8}, {M: 2, N: 130, K: 40}, {M: 97, N: 31, K: 264}, {M: 200, N: 65, K: 128}}
	for _, ppn := range [][]int{{1}, {2}, {1, 1}, {2, 1}, {2, 2}, {1, 1, 1}, {2, 2, 2}} {
		for i, s := range shapes {
			spec := testSpec(s, ppn...)
			spec.DType = engine.DType(i % 2)
			spec.Net.Reorder = i >= 2
			t.Run(fmt.Sprintf("%v/ppn=%v", s, ppn), func(t *testing.T) {
				results, err := runJob(t, spec, i%2 == 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range results {
					if r.Status != Pass || !r.Checked || len(r.TimesNS) != 3 || r.OutputHash == "" || r.RelError > r.Tolerance {
						t.Errorf("rank %d: %+v", r.Rank, r)
					}
				}
			})
		}
	}
}

func TestSameOutputsWhateverTheSettings(t *testing.T) {
	spec := testSpec(plan.Shape{M: 75, N: 40, K: 136}, 2, 2)
	first, err := runJob(t, spec, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec.Chunks, spec.Workers, spec.Net, spec.Tile = 3, [plan.NumRoles]int{3, 2, 2, 2}, engine.Net{Reorder: true, Seed: 9, BandwidthGBs: 0.5}, 24
	second, err := runJob(t, spec, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for rank := range first {
		if first[rank].OutputHash != second[rank].OutputHash {
			t.Errorf("rank %d: other bits with other settings", rank)
		}
	}
}

// faulty is an engine whose outputs of one rank are tampered with.
type faulty struct {
	engine.Engine
	tamper func(call int, out []uint16)
}

func (f faulty) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	in, err := f.Engine.Open(ctx, cfg)
	return &tampered{Instance: in, tamper: f.tamper}, err
}

type tampered struct {
	engine.Instance
	tamper func(call int, out []uint16)
	calls  int
}

func (i *tampered) Output(name string) ([]uint16, error) {
	out, err := i.Instance.Output(name)
	if err == nil {
		i.tamper(i.calls, out)
		i.calls++
	}
	return out, err
}

// broken is an engine whose runs fail. It tells of its end.
type broken struct {
	engine.Engine
	closed func()
}

func (b broken) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	in, err := b.Engine.Open(ctx, cfg)
	return &brokenRun{Instance: in, closed: b.closed}, err
}

type brokenRun struct {
	engine.Instance
	closed func()
}

func (*brokenRun) Run(context.Context) (engine.Stats, error) { return engine.Stats{}, errBroken }

func (b *brokenRun) Close() error {
	b.closed()
	return b.Instance.Close()
}

var errBroken = errors.New("the NIC is gone")

// A failure is told before anything is closed: a NIC may hold that up for a minute, while the others wait to hear.
func TestFailureIsToldBeforeClosing(t *testing.T) {
	boot := enginetest.NewWorld(1)
	var events []string
	at := Rank{Bootstrap: boot.Rank(0), Failed: func(_ RankResult, err error) { events = append(events, "told: "+err.Error()) }}
	_, err := Run(t.Context(), broken{cpu.New(), func() { events = append(events, "closed") }}, testSpec(plan.Shape{M: 8, N: 8, K: 8}, 1), at)
	if !errors.Is(err, errBroken) || !slices.Equal(events, []string{"told: " + errBroken.Error(), "closed"}) {
		t.Errorf("%v; %q", err, events)
	}
	if err := boot.Close(); err != nil {
		t.Error(err)
	}
}

// Each fault must fail the check on the rank that has it, and on no other.
func TestFaultsFail(t *testing.T) {
	for _, d := range []engine.DType{engine.BF16, engine.FP16} {
		spec := testSpec(plan.Shape{M: 192, N: 160, K: 64}, 2, 1)
		spec.DType = d
		m, n := int(spec.Shape.M), int(spec.Shape.N)
		var before []uint16
		tile := func(out []uint16, with uint16) {
			for i := 64; i < 128; i++ {
				for j := 64; j < 128; j++ {
					out[i*n+j] = with
				}
			}
		}
		swap := func(out []uint16, a, b int) {
			for j := range n {
				out[a*n+j], out[b*n+j] = out[b*n+j], out[a*n+j]
			}
		}
		for name, c := range map[string]struct {
			tamper func(call int, out []uint16)
			want   string
		}{
			"none":             {func(int, []uint16) {}, ""},
			"dropped tile":     {func(_ int, out []uint16) { tile(out, d.NaN()) }, "4096 elements are NaN"},
			"tile of zeros":    {func(_ int, out []uint16) { tile(out, 0) }, "1 in the tile at row 64, column 64"},
			"all zero":         {func(_ int, out []uint16) { clear(out) }, "relative error 1"},
			"swapped rows":     {func(_ int, out []uint16) { swap(out, 3, 4) }, "in the tile at row 0"},
			"swapped far rows": {func(_ int, out []uint16) { swap(out, 0, m-1) }, "relative error"},
			"one element":      {func(_ int, out []uint16) { out[130*n+5] ^= 0x8000 }, "in the tile at row 128, column 0"},
			"one NaN":          {func(_ int, out []uint16) { out[7] = d.NaN() }, "1 elements are NaN"},
			"one infinity":     {func(_ int, out []uint16) { out[7] = [...]uint16{0x7f80, 0x7c00}[d] }, "1 elements are NaN"},
			"stale output": {func(call int, out []uint16) { // of the data before
				if call == 1 {
					copy(out, before)
				}
				before = append(before[:0], out...)
			}, "wrong result in call 2: relative error 1.4"},
			"second call only": {func(call int, out []uint16) {
				if call == 1 {
					tile(out, 0)
				}
			}, "wrong result in call 2"},
			"last call only": {func(call int, out []uint16) {
				if call == generations+2 {
					out[0] ^= 1
				}
			}, "timed call 3 gave other bits"},
			"stale timed call": {func(call int, out []uint16) { // of the call before, which had other data
				if call == generations+1 {
					copy(out, before)
				}
				before = append(before[:0], out...)
			}, "timed call 2 gave other bits"},
		} {
			t.Run(fmt.Sprintf("%v/%s", d, name), func(t *testing.T) {
				before = nil
				results, err := runJob(t, spec, false, func(rank int, e engine.Engine) engine.Engine {
					if rank == 1 {
						return faulty{e, c.tamper}
					}
					return e
				})
				if err != nil {
					t.Fatal(err)
				}
				for rank, r := range results {
					if rank != 1 && r.Status != Pass {
						t.Errorf("rank %d, without a fault: %+v", rank, r)
					}
				}
				r := results[1]
				if (r.Status == Fail) != (c.want != "") || !strings.Contains(r.Reason, c.want) {
					t.Errorf("status %s, reason %q; want %q", r.Status, r.Reason, c.want)
				}
			})
		}
	}
}

// silent is an engine whose Run never starts on one rank.
type silent struct{ engine.Engine }

func (s silent) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	in, err := s.Engine.Open(ctx, cfg)
	return silentRun{in}, err
}

type silentRun struct{ engine.Instance }

func (silentRun) Run(ctx context.Context) (engine.Stats, error) {
	<-ctx.Done()
	return engine.Stats{}, context.Cause(ctx)
}

func TestHungRankEndsTheJobByTimeout(t *testing.T) {
	spec := testSpec(plan.Shape{M: 16, N: 8, K: 16}, 1, 1)
	spec.WaitTimeout = 3 * time.Second // in which, on a busy machine too, both ranks come to the call
	results, err := runJob(t, spec, true, func(rank int, e engine.Engine) engine.Engine {
		if rank == 1 {
			return silent{e}
		}
		return e
	})
	var w *engine.WaitError
	if !errors.As(err, &w) || !strings.Contains(w.Signals, "rank 1 send task") {
		t.Errorf("got %v", err)
	}
	if results[0].Status != Error || !strings.Contains(results[0].Reason, "rank 1 send task") {
		t.Errorf("rank 0 reports %+v", results[0])
	}
}

func TestWithoutCheckItStillComparesBits(t *testing.T) {
	spec := testSpec(plan.Shape{M: 16, N: 8, K: 16}, 2)
	spec.Check, spec.Warmup = false, 0
	results, err := runJob(t, spec, true, nil)
	if err != nil || results[0].Status != Pass || results[0].Checked {
		t.Errorf("%v: %+v", err, results[0])
	}
	results, err = runJob(t, spec, true, func(_ int, e engine.Engine) engine.Engine {
		return faulty{e, func(call int, out []uint16) { out[0] ^= uint16(call) }}
	})
	if err != nil || results[0].Status != Fail {
		t.Errorf("%v: %+v", err, results[0])
	}
}
