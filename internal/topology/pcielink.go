package topology

import (
	"fmt"
	"math"
)

// pcieLink is what a source tells of a PCIe link, as far as it stays the same when a device idles. Zeroes are not told.
type pcieLink struct {
	gts   float64 // per lane
	width int     // lanes
	gbs   float64 // both together, one way
}

func (l pcieLink) String() string {
	switch {
	case l.gts > 0 && l.width > 0:
		return fmt.Sprintf("PCIe %g GT/s x%d", l.gts, l.width)
	case l.gbs > 0:
		return fmt.Sprintf("PCIe %.1f GB/s", l.gbs)
	case l.width > 0:
		return fmt.Sprintf("PCIe x%d", l.width)
	case l.gts > 0:
		return fmt.Sprintf("PCIe %g GT/s", l.gts)
	}
	return ""
}

// against says whether a link is slower (-1) or faster (1) than another, by what is told of both.
func (l pcieLink) against(want pcieLink) int {
	less, more := false, false
	compare := func(have, wanted float64) {
		if have > 0 && wanted > 0 {
			less = less || have < wanted*0.98 // figures are rounded
			more = more || have > wanted*1.02
		}
	}
	compare(float64(l.width), float64(want.width))
	compare(l.gts, want.gts)
	if l.gts == 0 || want.gts == 0 {
		compare(l.gbs, want.gbs)
	}
	switch {
	case less:
		return -1
	case more:
		return 1
	}
	return 0
}

// lanePower is what a lane carries one way in GB/s, by PCIe generation: 8b/10b up to Gen2, 128b/130b from Gen3.
var lanePower = []float64{0, 0.25, 0.5, 8 * 128 / 130. / 8, 16 * 128 / 130. / 8, 32 * 128 / 130. / 8, 64 * 128 / 130. / 8}

func gbsOf(gts float64, width int) float64 {
	for gen, speed := range gtOfGen {
		if gts == speed {
			return lanePower[gen] * float64(width)
		}
	}
	return gts / 8 * float64(width)
}

// lanesOf is the widest link that carries about gbs at some generation: what stays of a product of speed and width where
// the speed of the moment means nothing.
func lanesOf(gbs float64) int {
	best, off := 0, math.Inf(1)
	for width := 16; width >= 1; width /= 2 {
		for _, lane := range lanePower[1:] {
			if d := math.Abs(lane*float64(width)/gbs - 1); d < off-1e-6 {
				best, off = width, d
			}
		}
	}
	if off > 0.05 {
		return 0
	}
	return best
}

// pcieLinkOf is a device's link. The speed of the moment counts only where it cannot be that of an idle device: idles says
// that this one may be, and a file of NCCL has what the link can.
func (n *Node) pcieLinkOf(i int, idles bool) pcieLink {
	d := &n.PCI[i]
	l := pcieLink{gts: d.MaxSpeed, width: d.MaxWidth}
	if d.Width > 0 && (l.width == 0 || d.Width < l.width) {
		l.width = d.Width
	}
	if d.Speed > 0 && (l.gts == 0 && (!idles || d.Prov.Of("speed") == FromNCCL || d.Prov.Of("*") == FromNCCL) || !idles && d.Speed < l.gts) {
		l.gts = d.Speed
	}
	switch {
	case l.gts > 0 && l.width > 0:
		l.gbs = gbsOf(l.gts, l.width)
	case d.GBs > 0 && idles:
		if l.width == 0 {
			l.width = lanesOf(d.GBs)
		}
	case d.GBs > 0:
		l.gbs = d.GBs
	}
	return l
}

// pcieLinks are the links of GPUs and NICs and those above the switches on their way, by what facts calls them.
func (e *Eval) pcieLinks() map[string]pcieLink {
	n := e.Node
	links := map[string]pcieLink{}
	if n.Tree == TreeNone {
		return links
	}
	up := n.switches()
	add := func(where string, pci int, idles bool) {
		if pci < 0 {
			return
		}
		put := func(where string, l pcieLink) {
			if l != (pcieLink{}) {
				links[where] = l
			}
		}
		put(where, n.pcieLinkOf(pci, idles))
		for _, p := range chain(func(i int) int { return up[i] }, pci) {
			if n.PCI[p].Kind == KindBridge {
				put("switch "+n.PCI[p].ID, n.pcieLinkOf(p, false))
			}
		}
	}
	for i := range n.GPUs {
		add(n.GPUs[i].where(), n.GPUs[i].PCI, true)
	}
	for i := range n.NICs {
		add("nic "+n.NICs[i].BDF, n.NICs[i].PCI, !e.roles[i].candidate())
	}
	return links
}

// where is how facts and differences call a GPU.
func (g *GPU) where() string {
	if g.BDF == "" {
		return fmt.Sprintf("gpu %d", g.Index)
	}
	return "gpu " + g.BDF
}
