package cuda

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/plan"
)

// The tables are as long as the kernels'.
func TestTablesAreTheKernels(t *testing.T) {
	header, err := os.ReadFile("../../../cuda/comm/schedule.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int{"Segments": mostSegments, "Copies": mostCopies, "Sends": mostSends, "Notices": mostNotices, "Raises": mostRaises} {
		if want := fmt.Sprintf("constexpr int kMost%s = %d;", name, n); !strings.Contains(string(header), want) {
			t.Errorf("cuda/comm/schedule.h lacks %q", want)
		}
	}
}

// Which plans fit, and what does not of those that do not.
func TestCheckTables(t *testing.T) {
	for _, tt := range []struct {
		world  plan.World
		chunks int
		m      int64
		sm     bool
		want   string // "": fits
	}{
		{plan.Uniform(2, 4), 8, 8192, false, "48 copies"},
		{plan.Uniform(2, 4), 5, 8192, false, ""},
		{plan.Uniform(2, 8), 3, 8192, false, "42 copies"},
		{plan.Uniform(2, 8), 2, 8192, false, ""},
		{plan.Uniform(2, 8), 5, 8192, false, "80 segments"},
		{plan.Uniform(8, 1), 8, 8192, false, "56 messages"},
		{plan.Uniform(8, 1), 4, 8192, false, ""},
		{plan.Uniform(4, 2), 8, 8192, false, ""},
		{plan.Uniform(4, 2), 9, 8192, false, "72 segments"},
		{plan.World{PPN: []int{6, 1}}, 8, 8192, false, "rank 0 would have 80 copies"},
		{plan.Uniform(1, 8), 5, 8192, false, ""},
		{plan.Uniform(1, 8), 5, 8192, true, "35 copies"},
		{plan.Uniform(2, 8), 4, 16, false, ""}, // a row of each rank is one chunk
	} {
		p, err := plan.AGGemm(tt.world, tt.chunks)
		if err != nil {
			t.Fatal(err)
		}
		err = CheckTables(p, plan.Shape{M: tt.m, N: 64, K: 64}, tt.sm)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v, %d chunks, %d rows: %v, want %q", tt.world, tt.chunks, tt.m, err, tt.want)
		}
	}
}
