package topology

import (
	"fmt"
	"slices"
)

// recordError is what is wrong with one entry of a list of a node's record.
type recordError struct {
	list  string // its key: pci, gpus, nics, numa
	index int
	what  string
}

func (e *recordError) Error() string { return fmt.Sprintf("%s[%d]: %s", e.list, e.index, e.what) }

// check refuses records that point nowhere and values that mean nothing.
func (n *Node) check() error {
	for i := range n.NUMA {
		m := &n.NUMA[i]
		if m.ID < 0 || m.ID >= maxNUMA {
			return &recordError{"numa", i, fmt.Sprintf("id %d is not a NUMA node's number (0 to %d)", m.ID, maxNUMA-1)}
		}
		if _, err := ParseCPUList(m.CPUs); err != nil {
			return &recordError{"numa", i, "cpus: " + err.Error()}
		}
	}
	for i := range n.PCI {
		if what := n.PCI[i].wrong(i); what != "" {
			return &recordError{"pci", i, fmt.Sprintf("(%s) %s", n.PCI[i].ID, what)}
		}
	}
	for i := range n.GPUs {
		if what := n.GPUs[i].wrong(len(n.PCI)); what != "" {
			return &recordError{"gpus", i, what}
		}
		// Of GPUs of several makers, or hidden ones, numbers can be the same.
		for k := range n.GPUs[:i] {
			if a, b := &n.GPUs[k], &n.GPUs[i]; a.Index == b.Index && a.Vendor == b.Vendor && !a.Hidden && !b.Hidden {
				return &recordError{"gpus", i, fmt.Sprintf("index %d is also that of gpus[%d]", b.Index, k)}
			}
		}
	}
	for i := range n.NICs {
		if what := n.NICs[i].wrong(len(n.PCI)); what != "" {
			return &recordError{"nics", i, what}
		}
	}
	return n.Matrix.check()
}

func wrongNUMA(m *int) string {
	if m != nil && (*m < -1 || *m >= maxNUMA) {
		return fmt.Sprintf("numa %d is not a NUMA node's number (-1, or 0 to %d)", *m, maxNUMA-1)
	}
	return ""
}

// wrong says what is wrong with the i-th record; "" if nothing is.
func (d *Device) wrong(i int) string {
	switch {
	case d.ID == "":
		return "id is missing"
	case d.Parent < -1 || d.Parent >= i:
		return fmt.Sprintf("parent %d is not an earlier entry of the list", d.Parent)
	case d.Kind != KindRoot && d.Kind != KindBridge && d.Kind != KindDevice && d.Kind != "":
		return fmt.Sprintf("kind %q is none of %s, %s, %s", d.Kind, KindRoot, KindBridge, KindDevice)
	case !within(d.Speed, maxGT) || !within(d.MaxSpeed, maxGT):
		return fmt.Sprintf("speed %g, max_speed %g: 0 to %d GT/s", d.Speed, d.MaxSpeed, maxGT)
	case !within(float64(d.Width), maxLanes) || !within(float64(d.MaxWidth), maxLanes):
		return fmt.Sprintf("width %d, max_width %d: 0 to %d lanes", d.Width, d.MaxWidth, maxLanes)
	case !within(d.GBs, maxGBs):
		return fmt.Sprintf("gbs %g: 0 to %d GB/s", d.GBs, maxGBs)
	}
	return wrongNUMA(d.NUMA)
}

// wrong says what is wrong with a GPU of a node with so many PCI records; "" if nothing is.
func (g *GPU) wrong(pci int) string {
	if g.Index < 0 || g.Index > maxIndex {
		return fmt.Sprintf("index %d: 0 to %d", g.Index, maxIndex)
	}
	if g.PCI < -1 || g.PCI >= pci {
		return fmt.Sprintf("pci %d is not an entry of the list", g.PCI)
	}
	if g.SM < 0 || g.SM > maxSM {
		return fmt.Sprintf("sm %d: 0 to %d", g.SM, maxSM)
	}
	if c := g.C2C; c != nil && (c.Links < 0 || c.Links > 64 || !within(c.MBs, maxC2CMBs)) {
		return fmt.Sprintf("c2c: %d links of %g MB/s", c.Links, c.MBs)
	}
	for _, set := range []string{g.CPUs, g.NUMASet} {
		if _, err := ParseCPUList(set); err != nil {
			return err.Error()
		}
	}
	for _, l := range g.Links {
		if what := l.wrong(); what != "" {
			return what
		}
	}
	if what := wrongNUMA(g.MemNode); what != "" {
		return "mem_node: " + what
	}
	return wrongNUMA(g.NUMA)
}

func (l *NVLink) wrong() string {
	switch {
	case l.Count < 0 || l.Count > 64 || l.Down < 0 || l.Down > 64:
		return "a GPU has 0 to 64 links"
	case !slices.Contains([]LinkPeer{PeerGPU, PeerSwitch, PeerCPU, PeerUnknown, PeerSelf}, l.Peer):
		return fmt.Sprintf("a link's peer is %q, none of gpu, switch, cpu, unknown, self", l.Peer)
	case !within(l.GBs, maxGBs):
		return fmt.Sprintf("a link's gbs %g: 0 to %d GB/s", l.GBs, maxGBs)
	}
	return ""
}

// wrong says what is wrong with a NIC of a node with so many PCI records; "" if nothing is.
func (c *NIC) wrong(pci int) string {
	if c.PCI < -1 || c.PCI >= pci {
		return fmt.Sprintf("pci %d is not an entry of the list", c.PCI)
	}
	for _, p := range c.Ports {
		if !within(float64(p.Rate), maxRate) {
			return fmt.Sprintf("rate %d of port %d: 0 to %d Mb/s", p.Rate, p.Num, int(maxRate))
		}
	}
	return wrongNUMA(c.NUMA)
}

func (m *Matrix) check() error {
	if m == nil {
		return nil
	}
	if len(m.Level) != len(m.Names) {
		return fmt.Errorf("matrix: %d rows for %d names", len(m.Level), len(m.Names))
	}
	for i, row := range m.Level {
		if len(row) != len(m.Names) {
			return fmt.Errorf("matrix: row %d has %d cells for %d names", i, len(row), len(m.Names))
		}
		for _, word := range row {
			if word != "" && !levelWord().MatchString(word) {
				return fmt.Errorf("matrix: row %d: %q is none of X, NV#, PIX, PXB, PHB, NODE, SYS", i, word)
			}
		}
	}
	return nil
}
