package operator

import (
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cpu"
	"github.com/mkrun/mkrun/internal/plan"
)

func TestCheckMemory(t *testing.T) {
	for _, c := range []struct {
		shape plan.Shape
		want  string
	}{
		{plan.Shape{M: 128, N: 64, K: 64}, ""},
		{plan.Shape{M: 1 << 33, N: 1, K: 1 << 10}, "not enough memory: M=8589934592 N=1 K=1024 on 2 ranks of this host needs"},
		{plan.Shape{M: 1 << 20, N: 1 << 37, K: 8}, "not enough memory"},
		{plan.Shape{M: 1 << 57, N: 1, K: 8}, "overflow"},
	} {
		spec := testSpec(c.shape, 2)
		p, err := spec.Plan()
		if err != nil {
			t.Fatal(err)
		}
		err = CheckMemory(cpu.New(), spec, p, []int{0, 1})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.shape, err, c.want)
		}
	}
}

// Every rank has a process and makes the whole plan, so many ranks need memory however small the matrices are.
func TestManyRanksNeedMemory(t *testing.T) {
	for ranks, want := range map[int]string{
		8:   "",
		256: "on 256 ranks of this host needs 1",
	} {
		spec := testSpec(plan.Shape{M: 64, N: 8, K: 8}, ranks)
		p, err := plan.AGGemm(plan.Uniform(1, ranks), 1)
		if err != nil {
			t.Fatal(err)
		}
		here := make([]int, ranks)
		for i := range here {
			here[i] = i
		}
		for name, eng := range map[string]engine.Engine{"cpu": cpu.New(), "one that does not tell": nil} {
			err := fitsMemory(8<<30, eng, spec, p, here)
			if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "of each rank 12 MiB for its process, ")) {
				t.Errorf("%d ranks, engine %s: %v, want %q", ranks, name, err, want)
			}
		}
	}
}
