package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// CUDA_VISIBLE_DEVICES hides what it leaves out whether the driver library answers or not; what the library hides, it
// cannot show.
func TestVisibleWithAndWithoutNVML(t *testing.T) {
	for _, tt := range []struct {
		value string
		nvml  string   // "yes", "no", "six" of the eight
		order []string // the GPUs that are left, by address
		note  string
	}{
		{"3,1", "yes", []string{"43", "23"}, ""},
		{"3,1", "no", []string{"43", "23"}, ""},
		{"", "yes", nil, ""},
		{"", "no", nil, ""},
		{"1,9,2", "no", []string{"23"}, "is no GPU's number"},
		{"0,0", "yes", nil, "named twice"},
		{"5,7", "six", []string{"63"}, "is no GPU's number"},
		{"GPU-3fa4", "no", []string{"13", "23", "33", "43", "53", "63", "73", "83"}, "it is not applied"},
	} {
		h := h200()
		c := h.captured()
		c.Env["CUDA_VISIBLE_DEVICES"] = tt.value
		switch tt.nvml {
		case "no":
			c.NVML = nvmlState{Problem: "not asked"}
		case "six":
			c.NVML.GPUs = c.NVML.GPUs[:6]
		}
		n := assemble(h.files, c)
		got := make([]string, len(n.GPUs))
		left := 0
		for i, g := range n.GPUs {
			if g.Hidden {
				continue
			}
			at := g.CUDA
			if at < 0 {
				at = i
			}
			got[at] = g.BDF[5:7]
			left++
		}
		if got = got[:left]; !slices.Equal(got, tt.order) {
			t.Errorf("%q, NVML %s: %v are left, want %v", tt.value, tt.nvml, got, tt.order)
		}
		if text := fmt.Sprint(n.Notes); tt.note != "" && !strings.Contains(text, tt.note) || tt.note == "" && strings.Contains(text, "CUDA_VISIBLE") {
			t.Errorf("%q, NVML %s: notes %s, want %q", tt.value, tt.nvml, text, tt.note)
		}
		if _, err := Place([]*Eval{NewEval(n)}, 1); (err == nil) != (len(tt.order) > 0) {
			t.Errorf("%q, NVML %s: one rank: %v", tt.value, tt.nvml, err)
		}
	}
}

// A root that cannot be read is no machine without devices.
func TestRootsThatCannotBeRead(t *testing.T) {
	empty, none := t.TempDir(), t.TempDir()+"/none"
	for name, tt := range map[string]struct {
		roots Roots
		want  string
	}{
		"no sysfs":    {Roots{Sys: none}, none},
		"empty sysfs": {Roots{Sys: empty}, "neither bus, devices nor class"},
		"no procfs":   {Roots{Sys: "/sys", Proc: none}, none},
		"no /dev":     {Roots{Dev: none}, none},
	} {
		n, err := Live(t.Context(), LiveOptions{Roots: tt.roots, NoNVML: true})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %q", name, n, err, tt.want)
		}
	}
}
