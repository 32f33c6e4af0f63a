package topology

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// What is written in NCCL's format and read again gives the answers that NCCL's rules gave before.
func TestNCCLExportRoundTrip(t *testing.T) {
	nodes := map[string]*Node{"h200": h200().node(), "small": parseOne(t, "small", small)}
	for _, a := range answers(t) {
		if a.Kind == "nccl-xml" || a.Kind == "lstopo" {
			nodes[a.File] = load(t, a.File)
		}
	}
	for name, n := range nodes {
		before := NewEval(n)
		var b bytes.Buffer
		if err := before.WriteNCCL(&b); err != nil {
			if len(n.GPUs) > 0 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if elements := strings.Count(b.String(), "<") - strings.Count(b.String(), "</"); elements >= ncclMaxNodes {
			t.Errorf("%s: %d elements", name, elements)
		}
		if len(n.GPUs) == 0 && len(n.NICs) == 0 {
			continue
		}
		again, err := Parse(name, b.Bytes())
		if len(n.GPUs) == 0 {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		compareNCCL(t, name, before, NewEval(again[0]))
	}
}

func compareNCCL(t *testing.T, name string, a, b *Eval) {
	t.Helper()
	find := func(e *Eval, bdf string, k int) int {
		for i := range e.Node.GPUs {
			if e.Node.GPUs[i].BDF == bdf {
				if k == 0 {
					return i
				}
				k--
			}
		}
		return -1
	}
	for i := range a.Node.GPUs {
		g := &a.Node.GPUs[i]
		j := find(b, g.BDF, 0)
		if j < 0 {
			t.Errorf("%s: GPU %s is gone", name, g.BDF)
			continue
		}
		h := &b.Node.GPUs[j]
		numa := func(e *Eval, g *GPU) int { return e.ncclNUMA(g.PCI) }
		if numa(a, g) != numa(b, h) {
			t.Errorf("%s: GPU %s: NUMA node %d became %d", name, g.BDF, numa(a, g), numa(b, h))
		}
		x, _ := a.NVLinks(i)
		y, _ := b.NVLinks(j)
		if x != y {
			t.Errorf("%s: GPU %s: %d links became %d", name, g.BDF, x, y)
		}
		if p, q := reach(a, i), reach(b, j); !slices.Equal(p, q) {
			t.Errorf("%s: GPU %s reaches\n%v, after the export\n%v", name, g.BDF, p, q)
		}
	}
}

// reach is NCCL's path from a GPU to every NIC that could carry data, sorted.
func reach(e *Eval, gpu int) []string {
	var list []string
	for c := range e.Node.NICs {
		if e.Role(c).candidate() {
			p, _, _ := e.NICPath(gpu, c)
			list = append(list, e.Node.NICs[c].BDF+" "+string(p))
		}
	}
	slices.Sort(list)
	return list
}

func TestNCCLExportNeedsATree(t *testing.T) {
	err := evalOf(t, smallMatrix).WriteNCCL(&bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "distances only") {
		t.Error(err)
	}
}
