package request

import (
	"testing"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/sim"
)

// shots is how long an all-reduce of this size is predicted to take in one shot, over how long in two: the most over
// the shapes that the built-in configuration was predicted with.
func shots(t *testing.T, w plan.World, bytes int64) float64 {
	t.Helper()
	hardware, err := sim.Named("h200")
	if err != nil {
		t.Fatal(err)
	}
	call := func(algorithm string, s plan.Shape) float64 {
		best := 0.0
		for _, chunks := range []int{1, 2, 4} {
			p, err := plan.GemmAR(w, algorithm, plan.SumOptions{Chunks: chunks})
			if err != nil {
				t.Fatal(err)
			}
			r, err := sim.Run(p, sim.Options{Hardware: hardware, Shape: s, ElemSize: 2})
			if err != nil {
				t.Fatal(err)
			}
			if best == 0 || r.Call.Seconds() < best {
				best = r.Call.Seconds()
			}
		}
		return best
	}
	most := 0.0
	for _, n := range []int64{4096, 8192} {
		for _, k := range []int64{1024, 3584} {
			s := plan.Shape{M: bytes / 2 / n, N: n, K: k}
			most = max(most, call(plan.OneShot, s)/call(plan.TwoShot, s))
		}
	}
	return most
}

// The built-in sizes up to which an all-reduce goes in one shot are those that the simulator gives, in the worlds that
// the entries name.
func TestOneShotAsPredicted(t *testing.T) {
	op, err := config.LoadOperator("gemm_ar", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []plan.World{plan.Uniform(1, 2), plan.Uniform(1, 4), plan.Uniform(2, 1), plan.Uniform(2, 4), plan.Uniform(8, 1)} {
		choice := op.Lookup(config.Query{Engine: "cuda", DType: "bf16", M: 8, N: 8192, K: 1024, Nodes: w.Nodes(), PPN: w.PPN[0], Fabric: "ibverbs"})
		upTo := choice.Settings.OneShotBytes
		if !choice.Exact || upTo == 0 {
			t.Errorf("%v: %+v says nothing of it", w, choice)
			continue
		}
		if at := shots(t, w, upTo); at > 1 {
			t.Errorf("%v: at %d bytes one shot takes %.2f of two shots; %s", w, upTo, at, choice.Source)
		}
		if at := shots(t, w, 2*upTo); at <= 1 {
			t.Errorf("%v: at %d bytes, twice the configured, one shot takes %.2f of two shots; %s", w, 2*upTo, at, choice.Source)
		}
	}
}

// What files may say of algorithms is what there is.
func TestConfiguredAlgorithmsExist(t *testing.T) {
	for _, name := range config.Operators() {
		var want []string
		if known := operator.Algorithms(name); known != nil {
			want = append([]string{"auto"}, known...)
		}
		got := config.Algorithms(name)
		if len(got) != len(want) {
			t.Errorf("%s: files may say %q, there is %q", name, got, want)
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: files may say %q, there is %q", name, got, want)
			}
		}
	}
}
