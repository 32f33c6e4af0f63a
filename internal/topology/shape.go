package topology

import (
	"fmt"
	"slices"
	"strconv"
)

// Box is a part of a node as people draw it: a NUMA node with its CPUs, or a switch below it. Only
// what leads to a GPU or NIC is kept.
type Box struct {
	Label  string // "NUMA 0", "switch 45:00"
	Detail string // CPUs of a NUMA node; how many switches in a row
	NUMA   int    // of a NUMA node's box; negative if unknown
	Switch bool
	Boxes  []*Box
	GPUs   []int
	NICs   []NICGroup
}

// NICGroup are NICs that stand side by side below one switch and are alike: drawn as one where they
// are many.
type NICGroup struct {
	NICs []int
	Role string
	Rate int
}

// Shape is a node as nested boxes, one for each NUMA node, in order.
func (e *Eval) Shape() []*Box {
	if e.Node.Matrix != nil || len(e.Node.PCI) == 0 {
		return e.shapeOfMatrix()
	}
	return e.shapeOfTree()
}

func (e *Eval) socket(boxes map[int]*Box, numa int) *Box {
	if b, ok := boxes[numa]; ok {
		return b
	}
	b := &Box{Label: "NUMA " + strconv.Itoa(numa), NUMA: numa}
	if numa < 0 {
		b.Label = "NUMA node not told"
	}
	if m := e.numaRecord(numa); m != nil {
		b.Detail = m.CPUs
	}
	boxes[numa] = b
	return b
}

func sockets(boxes map[int]*Box) []*Box {
	var list []*Box
	for _, b := range boxes {
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b *Box) int {
		if a.NUMA < 0 && b.NUMA < 0 {
			return b.NUMA - a.NUMA // in the order in which they were seen
		}
		return a.NUMA - b.NUMA
	})
	return list
}

func (e *Eval) shapeOfTree() []*Box {
	n := e.Node
	numas := map[int]*Box{}
	switches := map[int]*Box{}
	// above is the box that a record hangs in.
	var above func(i, depth int) *Box
	above = func(i, depth int) *Box {
		p := e.up[i]
		if p < 0 || n.PCI[p].Kind != KindBridge || depth > maxDepth {
			return e.socket(numas, e.numaOf(i))
		}
		if b, ok := switches[p]; ok {
			return b
		}
		b := &Box{Label: shortBDF(n.PCI[p].ID), Switch: true}
		switches[p] = b
		parent := above(p, depth+1)
		parent.Boxes = append(parent.Boxes, b)
		return b
	}
	for i := range n.GPUs {
		if at := n.GPUs[i].PCI; at >= 0 {
			b := above(at, 0)
			b.GPUs = append(b.GPUs, i)
		}
	}
	for i := range n.NICs {
		if at := n.NICs[i].PCI; at >= 0 {
			e.addNIC(above(at, 0), i)
		}
	}
	list := sockets(numas)
	for _, b := range list {
		b.collapse()
	}
	return list
}

// addNIC puts a NIC into the group of its like.
func (e *Eval) addNIC(b *Box, nic int) {
	role, rate := e.roles[nic].Role, e.Node.NICs[nic].rate()
	for k := range b.NICs {
		g := &b.NICs[k]
		if g.Role == role && g.Rate == rate && e.Node.NICs[g.NICs[0]].Vendor == e.Node.NICs[nic].Vendor {
			g.NICs = append(g.NICs, nic)
			return
		}
	}
	b.NICs = append(b.NICs, NICGroup{[]int{nic}, role, rate})
}

// collapse joins a switch that holds nothing but one other switch with it.
func (b *Box) collapse() {
	row := 1
	for b.Switch && len(b.Boxes) == 1 && len(b.GPUs) == 0 && len(b.NICs) == 0 {
		only := b.Boxes[0]
		b.Label, b.Boxes, b.GPUs, b.NICs = only.Label, only.Boxes, only.GPUs, only.NICs
		row++
	}
	if row > 1 {
		b.Detail = fmt.Sprintf("%d switches in a row", row)
	}
	for _, c := range b.Boxes {
		c.collapse()
	}
}

// shapeOfMatrix guesses the switches from the distances: what is PIX or PXB to each other shares one.
func (e *Eval) shapeOfMatrix() []*Box {
	n := e.Node
	numas := map[int]*Box{}
	groups := map[string]*Box{}
	placed := make([]bool, len(n.NICs))
	// Without NUMA nodes the CPU lists tell the sockets apart.
	byCPUs := map[string]int{}
	numaOf := make([]int, len(n.GPUs))
	for i := range n.GPUs {
		if m := n.GPUs[i].NUMA; m != nil && *m >= 0 {
			numaOf[i] = *m
		} else {
			k, ok := byCPUs[n.GPUs[i].CPUs]
			if !ok {
				k = -1 - len(byCPUs)
				byCPUs[n.GPUs[i].CPUs] = k
			}
			numaOf[i] = k
		}
		s := e.socket(numas, numaOf[i])
		if s.Detail == "" {
			s.Detail = n.GPUs[i].CPUs
		}
		var below []int
		for c := range n.NICs {
			if l, _ := e.NICLevel(i, c); l == LevelPIX || l == LevelPXB {
				below = append(below, c)
			}
		}
		if len(below) == 0 {
			s.GPUs = append(s.GPUs, i)
			continue
		}
		key := fmt.Sprint(numaOf[i], below)
		b, ok := groups[key]
		if !ok {
			b = &Box{Label: "switch", Switch: true}
			groups[key] = b
			s.Boxes = append(s.Boxes, b)
			for _, c := range below {
				if !placed[c] {
					placed[c] = true
					e.addNIC(b, c)
				}
			}
		}
		b.GPUs = append(b.GPUs, i)
	}
	for c := range n.NICs {
		if placed[c] {
			continue
		}
		numa := -1
		for i := range n.GPUs {
			if l, _ := e.NICLevel(i, c); l == LevelNODE || l == LevelPHB {
				numa = numaOf[i]
			}
		}
		e.addNIC(e.socket(numas, numa), c)
	}
	return sockets(numas)
}
