package topology

import (
	"strings"
	"testing"
)

// What is said of the rails that a GPU takes is true of them: its own, or its neighbours'.
func TestUseRuleOfAGPUWithoutItsOwn(t *testing.T) {
	h := h200()
	h.lose(1, "down")
	for i := range h.nvml.GPUs {
		h.nvml.GPUs[i].Links = nil
	}
	uses := NewEval(h.node()).Uses()
	if u := uses[1]; len(u.NICs) != 3 || u.Rule != "all 3 rails nearest to it, of which 3 are nearer to other GPUs" {
		t.Errorf("GPU1 takes %v: %s", u.NICs, u.Rule)
	}
	for _, g := range []int{0, 2, 7} {
		if u := uses[g]; u.Rule != "the only nearest rail" {
			t.Errorf("GPU%d: %s", g, u.Rule)
		}
	}
	if u := evalOf(t, layout("0x1", 1, 4)).Uses()[0]; u.Rule != "all 4 rails nearest to it" {
		t.Errorf("four of its own: %s", u.Rule)
	}
}

// A rail that is down keeps its column; a speed that is not told is not 0.
func TestViewsOfWhatIsMissing(t *testing.T) {
	h := h200()
	h.lose(1, "down")
	var b strings.Builder
	NewEval(h.node()).WriteMatrix(&b, Style{})
	head, _, _ := strings.Cut(b.String(), "\n")
	if !strings.Contains(head, "NIC0  NIC1  NIC2") {
		t.Errorf("the columns are %s", head)
	}
	b.Reset()
	if err := evalOf(t, smallMatrix).Explain(&b, 0, Style{}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), " 0 GB/s") || !strings.Contains(b.String(), "speed not told") {
		t.Errorf("an unknown speed is told:\n%s", b.String())
	}
	b.Reset()
	e := NewEval(load(t, "nccl-xml/amd-mi300x-vm.xml"))
	e.WriteMatrix(&b, Style{NCCL: true})
	if strings.Contains(b.String(), "NVLink") || !strings.Contains(b.String(), "xGMI, direct") {
		t.Errorf("the legend of an xGMI machine:\n%s", b.String())
	}
}
