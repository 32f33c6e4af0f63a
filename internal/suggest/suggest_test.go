package suggest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNearest(t *testing.T) {
	known := []string{"ag_gemm", "gemm_rs", "gemm_ar", "ring_attention", "moe_dispatch_gemm"}
	tests := []struct {
		typed string
		want  []string
	}{
		{"ag_gem", []string{"ag_gemm"}},
		{"ag-gemm", []string{"ag_gemm"}},
		{"AG_GEMM", []string{"ag_gemm"}},
		{"ga_gemm", []string{"ag_gemm"}},
		{"gemm_sr", []string{"gemm_rs", "gemm_ar"}},
		{"ring", []string{"ring_attention"}},
		{"banana", []string{}},
		{"", []string{}},
		{"x", []string{}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, Nearest(tt.typed, known, 3)); diff != "" {
			t.Errorf("Nearest(%q) (-want +got):\n%s", tt.typed, diff)
		}
	}
	if got := Nearest("gemm_xx", known, 1); len(got) != 1 {
		t.Errorf("Nearest with limit 1 returned %q", got)
	}
}

func TestDistance(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1},
		{"abc", "ab", 1}, {"abc", "xbc", 1}, {"kitten", "sitting", 3}, {"ab", "ba", 1},
	}
	for _, tt := range tests {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := distance(tt.b, tt.a); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.b, tt.a, got, tt.want)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	known := []string{"nodes", "ppn"}
	if got, want := DidYouMean("node", known), ` (did you mean "nodes"?)`; got != want {
		t.Errorf("DidYouMean = %q, want %q", got, want)
	}
	if got := DidYouMean("zzz", known); got != "" {
		t.Errorf("DidYouMean of a far name = %q, want nothing", got)
	}
}
