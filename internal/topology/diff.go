package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Difference is one way in which a node differs from another.
type Difference struct {
	Class string `json:"class"` // missing, added, moved, root, slower, pcie, faster, numa, nvlinks, affinity, role, kind
	Where string `json:"where"` // "gpu 0000:18:00.0"
	What  string `json:"what"`
}

func (d Difference) String() string { return d.Where + ": " + d.What }

// fact is what is compared of one device: names, GUIDs, serials and the like are left out.
type fact map[string]string

// facts are a node's devices by kind and PCI address. Values that a source cannot tell are left out.
func (e *Eval) facts() map[string]fact {
	n := e.Node
	all := map[string]fact{}
	for _, m := range n.NUMA {
		if m.CPUs != "" {
			all[fmt.Sprintf("numa %d", m.ID)] = fact{"affinity": "CPUs " + m.CPUs}
		}
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		f := fact{}
		if g.NUMA != nil {
			f["numa"] = fmt.Sprintf("NUMA node %d", *g.NUMA)
		}
		if links, ok := e.NVLinks(i); ok {
			f["nvlinks"] = fmt.Sprintf("%d NVLinks", links)
		}
		if g.Device != 0 {
			f["kind"] = fmt.Sprintf("%04x:%04x", g.Vendor, g.Device)
		}
		e.place(f, g.PCI)
		all[g.where()] = f
	}
	for i := range n.NICs {
		c := &n.NICs[i]
		f := fact{"role": "role " + e.roles[i].Role}
		if c.NUMA != nil {
			f["numa"] = fmt.Sprintf("NUMA node %d", *c.NUMA)
		}
		if r := c.rate(); r > 0 {
			f["slower"] = fmt.Sprintf("%d Gb/s", r/1000)
		}
		if l := c.layer(); l != "" {
			f["kind"] = l
		}
		e.place(f, c.PCI)
		all["nic "+c.BDF] = f
	}
	return all
}

// place adds where a device hangs.
func (e *Eval) place(f fact, pci int) {
	if pci < 0 {
		return
	}
	if p := e.up[pci]; p >= 0 && e.Node.PCI[p].Kind == KindBridge {
		f["moved"] = "below switch " + shortBDF(e.Node.PCI[p].ID)
	}
	if e.Node.Tree == TreeFull {
		at := pci
		for e.Node.PCI[at].Parent >= 0 {
			at = e.Node.PCI[at].Parent
		}
		f["root"] = "below root complex " + e.Node.PCI[at].ID
	}
}

// canonical are the facts as sorted lines: equal for nodes of the same build.
func (e *Eval) canonical() []string {
	if e.lines != nil {
		return e.lines
	}
	lines := []string{}
	for where, f := range e.facts() {
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(f)) {
			parts = append(parts, k+"="+f[k])
		}
		lines = append(lines, where+" "+strings.Join(parts, " "))
	}
	for where, l := range e.pcieLinks() {
		lines = append(lines, where+" "+l.String())
	}
	for pair, l := range e.distances() {
		lines = append(lines, pair.a+" "+pair.b+" "+string(l))
	}
	slices.Sort(lines)
	e.lines = lines
	return lines
}

// Diff names what b has otherwise than a: devices by PCI address. What only one of the two sources
// can tell is no difference.
func Diff(a, b *Eval) []Difference {
	fa, fb := a.facts(), b.facts()
	diffs := []Difference{}
	var gone, added []string
	for _, where := range slices.Sorted(maps.Keys(fa)) {
		other, ok := fb[where]
		if !ok {
			if !strings.HasPrefix(where, "numa") || len(b.Node.NUMA) > 0 {
				gone = append(gone, where)
			}
			continue
		}
		for _, k := range slices.Sorted(maps.Keys(fa[where])) {
			if v, told := other[k]; told && v != fa[where][k] {
				diffs = append(diffs, Difference{k, where, v + " instead of " + fa[where][k]})
			}
		}
	}
	diffs = append(diffs, pcieDiff(a.pcieLinks(), b.pcieLinks())...)
	diffs = append(diffs, moved(a, b)...)
	for _, where := range slices.Sorted(maps.Keys(fb)) {
		if _, ok := fa[where]; !ok && (!strings.HasPrefix(where, "numa") || len(a.Node.NUMA) > 0) {
			added = append(added, where)
		}
	}
	// A device that is gone and one of the same kind below the same switch that is new: it moved.
	for _, where := range gone {
		kind, _, _ := strings.Cut(where, " ")
		to := slices.IndexFunc(added, func(w string) bool {
			return strings.HasPrefix(w, kind+" ") && fa[where]["moved"] == fb[w]["moved"] && fa[where]["numa"] == fb[w]["numa"]
		})
		if to >= 0 && kind != "numa" {
			diffs = append(diffs, Difference{"moved", where, "is at " + strings.TrimPrefix(added[to], kind+" ") + " instead"})
			added = slices.Delete(added, to, to+1)
			continue
		}
		diffs = append(diffs, Difference{"missing", where, "is missing"})
	}
	for _, where := range added {
		diffs = append(diffs, Difference{"added", where, "is there in addition"})
	}
	return diffs
}

// pcieDiff compares the links that both have.
func pcieDiff(want, have map[string]pcieLink) []Difference {
	var diffs []Difference
	for _, where := range slices.Sorted(maps.Keys(want)) {
		l, ok := have[where]
		if !ok {
			continue
		}
		class := map[int]string{-1: "pcie", 1: "faster"}[l.against(want[where])]
		if class != "" {
			diffs = append(diffs, Difference{class, where, l.String() + " instead of " + want[where].String()})
		}
	}
	return diffs
}
