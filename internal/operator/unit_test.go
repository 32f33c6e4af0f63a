package operator

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
)

func TestSpecSurvivesTheWire(t *testing.T) {
	spec := testSpec(plan.Shape{M: 10, N: 20, K: 32}, 2, 1)
	spec.DType, spec.Net = engine.FP16, engine.Net{Latency: time.Millisecond, Reorder: true}
	b, err := spec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec, got); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(string(b), `"dtype":"fp16"`) {
		t.Errorf("the dtype is not a word in %s", b)
	}
	for _, bad := range []string{"", "{", `{"operator":"ag_gemm","surprise":1}`, `{"dtype":"int4"}`} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, edit := range map[string]func(*RunSpec){
		`unknown operator "gemm"; known: ag_gemm`: func(s *RunSpec) { s.Operator = "gemm" },
		"at least one node":                       func(s *RunSpec) { s.World.PPN = nil },
		"no dtype has the number 9":               func(s *RunSpec) { s.DType = 9 },
		"M=0 N=20 K=32: every size":               func(s *RunSpec) { s.Shape.M = 0 },
		"N=-3 K=32: every size":                   func(s *RunSpec) { s.Shape.N = -3 },
		"K=12 is not a multiple of 8":             func(s *RunSpec) { s.Shape.K = 12 },
		"64-bit sizes can count":                  func(s *RunSpec) { s.Shape.M, s.Shape.N = 1<<40, 1<<40 },
		"0 chunks":                                func(s *RunSpec) { s.Chunks = 0 },
		"-1 rows":                                 func(s *RunSpec) { s.Tile = -1 },
		"warm-up calls":                           func(s *RunSpec) { s.Warmup = -1 },
		"0 timed calls":                           func(s *RunSpec) { s.Iters = 0 },
		"must not be negative":                    func(s *RunSpec) { s.Net.Latency = -1 },
		"--net ofi is a real network":             func(s *RunSpec) { s.Net = engine.Net{Backend: "ofi", Latency: 1} },
		"--net-provider tcp names a provider of":  func(s *RunSpec) { s.Net = engine.Net{Backend: "tcp", Provider: "tcp"} },
		"--net tcp has no queue pairs; --net-qps": func(s *RunSpec) { s.Net = engine.Net{Backend: "tcp", GID: 3} },
		"--net ofi has no queue pairs; --net-qps": func(s *RunSpec) { s.Net = engine.Net{Backend: "ofi", GID: 3} },
		"--net emu uses no NICs that --net-devic": func(s *RunSpec) { s.Net = engine.Net{Backend: "emu", Devices: "mlx5_0"} },
		`--net-devices ",": names of NICs, with `: func(s *RunSpec) { s.Net = engine.Net{Backend: "ofi", Devices: ","} },
		`--net-devices "a,,b": names of NICs`:     func(s *RunSpec) { s.Net = engine.Net{Backend: "auto", Devices: "a,,b"} },
		`--net-devices "a\nb": names of NICs`:     func(s *RunSpec) { s.Net = engine.Net{Backend: "auto", Devices: "a\nb"} },
		"--net-devices lo,a,lo names lo twice":    func(s *RunSpec) { s.Net = engine.Net{Backend: "ofi", Devices: "lo,a,lo"} },
		"messages would be 1h0m0s under way":      func(s *RunSpec) { s.Net.Latency = time.Hour },
		"gives a message up after 3s, three": func(s *RunSpec) {
			s.Net, s.WaitTimeout = engine.Net{Backend: "emu", Latency: 3500 * time.Millisecond}, 4*time.Second
		},
		"messages would be 3.5s under way": func(s *RunSpec) {
			s.Net, s.WaitTimeout = engine.Net{Backend: "emu", Latency: 2 * time.Second, Reorder: true, Jitter: 1500 * time.Millisecond}, 4*time.Second
		},
		"messages would be 1h0m0.001s under way": func(s *RunSpec) { s.Net = engine.Net{Latency: time.Millisecond, Reorder: true, Jitter: time.Hour} },
		"messages would be 1281028h53m":          func(s *RunSpec) { s.Net = engine.Net{Latency: math.MaxInt64, Reorder: true, Jitter: 5 * time.Hour} },
		"--net efa is a real network":            func(s *RunSpec) { s.Net = engine.Net{Backend: "efa", DropAfter: 1} },
		"--net-jitter 1ns: it is links with":     func(s *RunSpec) { s.Net.Jitter = 1 },
		"--net-devices a names NICs, and a link": func(s *RunSpec) { s.Net = engine.Net{Backend: "auto", Devices: "a", Latency: 1} },
		"every wait is bounded":                  func(s *RunSpec) { s.WaitTimeout = 0 },
		"0 workers in role send":                 func(s *RunSpec) { s.Workers[plan.RoleSend] = 0 },
	} {
		spec := testSpec(plan.Shape{M: 10, N: 20, K: 32}, 2, 1)
		edit(&spec)
		if err := spec.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	good := testSpec(plan.Shape{M: 10, N: 20, K: 32}, 2, 1)
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

func TestDataIsNormalAndAddressable(t *testing.T) {
	const rows, cols = 64, 1000
	for _, dt := range []engine.DType{engine.BF16, engine.FP16} {
		d := data{spec: RunSpec{Seed: 3, DType: dt}}
		all := make([]uint16, rows*cols)
		d.rows(all, matrixA, 0, rows, cols)
		one := make([]uint16, cols)
		d.rows(one, matrixA, 17, 18, cols)
		if !slices.Equal(one, all[17*cols:18*cols]) {
			t.Error("a row depends on the rows around it")
		}
		f := make([]float32, len(all))
		dt.Widen(f, all)
		var moments [5]float64
		for _, x := range f {
			for p := range moments {
				moments[p] += math.Pow(float64(x), float64(p)) / float64(len(f))
			}
		}
		for p, want := range []float64{1, 0, 1, 0, 3} {
			if math.Abs(moments[p]-want) > 0.1 {
				t.Errorf("%v: moment %d is %.3f, want %.0f", dt, p, moments[p], want)
			}
		}
		// Every coordinate of the counter matters.
		for name, other := range map[string]func(dst []uint16){
			"seed":       func(dst []uint16) { data{spec: RunSpec{Seed: 4, DType: dt}}.rows(dst, matrixA, 17, 18, cols) },
			"generation": func(dst []uint16) { data{spec: d.spec, generation: 1}.rows(dst, matrixA, 17, 18, cols) },
			"matrix":     func(dst []uint16) { d.rows(dst, matrixB, 17, 18, cols) },
			"row":        func(dst []uint16) { d.rows(dst, matrixA, 18, 19, cols) },
		} {
			dst := make([]uint16, cols)
			other(dst)
			same := 0
			for i := range dst {
				if dst[i] == one[i] {
					same++
				}
			}
			if same > cols/10 {
				t.Errorf("with another %s %d of %d elements are equal", name, same, cols)
			}
		}
	}
}

func BenchmarkData(b *testing.B) {
	d := data{spec: RunSpec{Seed: 3}}
	dst := make([]uint16, 1<<20)
	b.SetBytes(int64(2 * len(dst)))
	for b.Loop() {
		d.rows(dst, matrixA, 0, 256, 4096)
	}
}

// exact is a reference that is given.
type exact struct {
	c []float32
	n int64
}

func (e exact) rows(from, to int64, out []float32) { copy(out, e.c[from*e.n:to*e.n]) }

// Rounding alone stays within the tolerance, and not by much: the bound is not a wide one.
func TestToleranceFitsRounding(t *testing.T) {
	const m, n, k = 100, 70, 8
	for _, dt := range []engine.DType{engine.BF16, engine.FP16} {
		worst := make([]float32, m*n)
		for i := range worst {
			worst[i] = 3 * (1 + float32(dt.UnitRoundoff())) // every element half way between two neighbours
		}
		got := make([]uint16, m*n)
		dt.Narrow(got, worst)
		v := judge(dt, got, m, n, expected{depth: k}, exact{worst, n})
		if v.failure() != "" || v.relError < v.tolerance/8 {
			t.Errorf("%v: rounding gives %+v", dt, v)
		}
		for i := range worst {
			worst[i] *= 1 + 2.5*float32(dt.UnitRoundoff())
		}
		if v := judge(dt, got, m, n, expected{depth: k}, exact{worst, n}); v.failure() == "" {
			t.Errorf("%v: an error of more than two units passed: %+v", dt, v)
		}
	}
}

// One element of one row of A that got lost on the way shows, at the depth of real models.
func TestOneLostElementFails(t *testing.T) {
	const n = 128
	for _, k := range []int64{1024, 4096, 16384} {
		for _, dt := range []engine.DType{engine.BF16, engine.FP16} {
			want, got := make([]float32, checkTile*n), make([]uint16, checkTile*n)
			rng := rand.New(rand.NewPCG(1, uint64(k)))
			for i := range want { // sums of k products of standard normal pairs
				want[i] = float32(rng.NormFloat64() * math.Sqrt(float64(k)))
			}
			dt.Narrow(got, want)
			if v := judge(dt, got, checkTile, n, expected{depth: k}, exact{want, n}); v.failure() != "" {
				t.Errorf("%v, K=%d: rounding fails: %s", dt, k, v.failure())
			}
			torn := slices.Clone(want)
			for j := range n { // row 7 lacks one product of each sum
				torn[7*n+j] -= float32(rng.NormFloat64() * rng.NormFloat64())
			}
			dt.Narrow(got, torn)
			if v := judge(dt, got, checkTile, n, expected{depth: k}, exact{want, n}); v.failure() == "" {
				t.Errorf("%v, K=%d: a lost element passes: %+v", dt, k, v)
			}
		}
	}
}

// Sums tolerate the rounding of their parts, and nothing else: not one rank's product left out or added twice, not an
// element of the wrong sign, not one tile of another rank's rows.
func TestFaultsOfSumsFail(t *testing.T) {
	const size = 16
	spec := RunSpec{Operator: "gemm_ar", Algorithm: "two-shot", Shape: plan.Shape{M: 96, N: 72, K: 32}, World: plan.Uniform(2, size/2), Seed: 9}
	m, n := spec.Shape.M, spec.Shape.N
	for _, dt := range []engine.DType{engine.BF16, engine.FP16} {
		spec.DType = dt
		ref := &productSum{data: data{spec: spec}}
		want := make([]float32, m*n)
		ref.rows(0, m, want)
		one := make([]float32, m*n) // the product of rank 0
		alone := spec
		alone.World = plan.Uniform(1, 1)
		(&productSum{data: data{spec: alone}}).rows(0, m, one)
		k, err := lookup(spec.Operator)
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			edit  func(c []float32)
			fails bool
		}{
			"right":          {func([]float32) {}, false},
			"rank left out":  {func(c []float32) { add(c, one, -1) }, true},
			"rank twice":     {func(c []float32) { add(c, one, 1) }, true},
			"a tile left":    {func(c []float32) { add(c[:8*n], one[:8*n], -1) }, true},
			"swapped rows":   {func(c []float32) { swapRows(c, n, 3, 4) }, true},
			"all zero":       {func(c []float32) { clear(c) }, true},
			"a wrong number": {func(c []float32) { c[5] += 64 }, true},
		} {
			c0 := slices.Clone(want)
			c.edit(c0)
			got := make([]uint16, len(c0))
			dt.Narrow(got, c0)
			if v := judge(dt, got, m, n, k.expected(spec), ref); (v.failure() != "") != c.fails {
				t.Errorf("%v, %s: %+v", dt, name, v)
			}
		}
	}
}

func add(c, other []float32, times float32) {
	for i := range other {
		c[i] += times * other[i]
	}
}

func swapRows(c []float32, n, i, j int64) {
	for k := range n {
		c[i*n+k], c[j*n+k] = c[j*n+k], c[i*n+k]
	}
}

func TestMerge(t *testing.T) {
	spec := testSpec(plan.Shape{M: 8, N: 4, K: 8}, 2, 1)
	spec.Iters = 3
	p, err := spec.Plan()
	if err != nil {
		t.Fatal(err)
	}
	results := func() []RankResult {
		var rs []RankResult
		for _, rank := range []int{2, 0, 1} {
			rs = append(rs, RankResult{Rank: rank, Status: Pass, Engine: "cpu", TimesNS: []int64{3e6, 1e6, 2e6}, Flops: 4e6, IntraBytes: 10, InterBytes: 5,
				Checked: true, RelError: 0.001 * float64(rank), WorstTileError: 0.002, Tolerance: 0.004, OutputHash: "x"})
		}
		rs[1].TimesNS = []int64{1e6, 9e6, 1e6} // rank 0
		return rs
	}
	d, err := Merge(spec, p, "tcp", results())
	if err != nil {
		t.Fatal(err)
	}
	if d.Status != report.Pass || d.Check.RelError != 0.002 || d.Check.WorstTileError != 0.002 || d.Check.Tolerance != 0.004 {
		t.Errorf("check %+v, status %s", d.Check, d.Status)
	}
	// The slowest rank of each call: 3, 9 and 2 ms.
	if d.TimeMS.Median != 3 || d.TimeMS.Max != 9 || math.Abs(d.TimeMS.P95-8.4) > 1e-9 {
		t.Errorf("times %+v", d.TimeMS)
	}
	if d.Bytes.Intra != 30 || d.Bytes.Inter != 15 || d.Bytes.InterMinimum != 8*8*2 {
		t.Errorf("bytes %+v", d.Bytes)
	}
	if len(d.Ranks) != 3 || d.Ranks[2].Node != 1 || d.Ranks[2].LocalRank != 0 || d.Ranks[0].TimeMS != 1 || d.Ranks[1].GFlops != 2 || *d.Ranks[1].RelError != 0.001 {
		t.Errorf("ranks %+v", d.Ranks)
	}
	if !d.Plan.Verified || d.Plan.Segments == 0 || d.Plan.Transfers == 0 || d.Plan.Flags == 0 {
		t.Errorf("plan %+v", d.Plan)
	}

	failed := results()
	failed[2].Status = Fail
	if d, err := Merge(spec, p, "tcp", failed); err != nil || d.Status != report.Fail || d.Ranks[1].Status != "fail" {
		t.Errorf("one failed rank gives %v, %v", d.Status, err)
	}
	for name, edit := range map[string]func([]RankResult) []RankResult{
		"missing":   func(rs []RankResult) []RankResult { return rs[1:] },
		"twice":     func(rs []RankResult) []RankResult { rs[0].Rank = 0; return rs },
		"error":     func(rs []RankResult) []RankResult { rs[0].Status = Error; return rs },
		"times":     func(rs []RankResult) []RankResult { rs[0].TimesNS = nil; return rs },
		"unchecked": func(rs []RankResult) []RankResult { rs[0].Checked = false; return rs },
	} {
		if _, err := Merge(spec, p, "tcp", edit(results())); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A plan maker that makes another operator's plan, or one for other partial sums, is found out before anything starts.
func TestPlanIsHeldToItsOperator(t *testing.T) {
	spec := testSpec(plan.Shape{M: 33, N: 20, K: 64}, 2, 1)
	for _, wrong := range []func(s RunSpec) (*plan.Plan, error){
		func(s RunSpec) (*plan.Plan, error) { return plan.GemmRS(s.World, plan.SumOptions{Chunks: 1}) },
		func(s RunSpec) (*plan.Plan, error) {
			p, err := plan.GemmRS(s.World, plan.SumOptions{Chunks: 1})
			p.Operator = "ag_gemm"
			return p, err
		},
		func(s RunSpec) (*plan.Plan, error) { return plan.AGGemm(plan.Uniform(1, s.World.Size()+1), 1) },
	} {
		k := kinds[0]
		k.plan = wrong
		if p, err := k.verified(spec); err == nil {
			t.Errorf("%s for %v was taken for %s", p.Operator, p.World, k.name)
		}
	}
	if _, err := kinds[0].verified(spec); err != nil {
		t.Error(err)
	}
}

// Bounds and links that fit each other are taken; a bandwidth at which one message outlasts its bound is not.
func TestLinksAndBounds(t *testing.T) {
	for _, c := range []struct {
		net  engine.Net
		wait time.Duration
		want string
	}{
		{engine.Net{Backend: "tcp", Latency: 3500 * time.Millisecond}, 4 * time.Second, ""},
		{engine.Net{Backend: "emu", Latency: 2999 * time.Millisecond}, 4 * time.Second, ""},
		{engine.Net{Backend: "tcp", BandwidthGBs: 1e-6}, 20 * time.Second, ""}, // 64 rows of 64 of 2 bytes: 8.192 s
		{engine.Net{Backend: "tcp", BandwidthGBs: 1e-6}, 8 * time.Second, "a chunk of 8192 bytes would be 8.192s under way, and waits end after 8s"},
		{engine.Net{Backend: "emu", BandwidthGBs: 1e-6}, 10 * time.Second, "would be 8.192s under way, and --net emu gives a message up after 7.5s"},
		{engine.Net{Backend: "tcp", BandwidthGBs: 1e-6, Latency: time.Second}, 9 * time.Second, "would be 9.192s under way"},
	} {
		spec := testSpec(plan.Shape{M: 128, N: 8, K: 64}, 1, 1)
		spec.Net, spec.WaitTimeout, spec.Chunks = c.net, c.wait, 1
		err := spec.Validate()
		if err == nil {
			_, err = spec.Plan()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v, %v: %v, want %q", c.net, c.wait, err, c.want)
		}
	}
}
