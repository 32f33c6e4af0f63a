package operator

import (
	"strings"
	"testing"

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
