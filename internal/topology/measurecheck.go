package topology

import (
	"fmt"
	"slices"
)

// slowShare is the part of the usual bandwidth below which a link is called slow: figures of healthy links of one kind
// are within a few percent of each other.
const slowShare = 0.75

// measured checks the figures: words that did not arrive, links that could not be measured, and links that are slower
// than those of the same kind.
func (c *checkup) measured() {
	m := c.e.Node.Measured
	if m == nil {
		return
	}
	for i := range m.Hosts {
		h := &m.Hosts[i]
		where := fmt.Sprintf("GPU%d - host", h.GPU)
		switch {
		case h.Problem != "":
			c.add(Degraded, "measured-failed", where, "dmesg may say more (Xid)", "could not be measured: %s", h.Problem)
		case h.wrong() > 0:
			c.add(Degraded, "measured-data", where, "take the node out of service: data is lost or bent on the way",
				"of %d words sent, %d were wrong on the GPU and %d on the host", h.Words, h.WrongToDevice, h.WrongToHost)
		}
	}
	for i := range m.Paths {
		p := &m.Paths[i]
		where := fmt.Sprintf("GPU%d -> GPU%d", p.From, p.To)
		switch {
		case p.Problem != "":
			c.add(Degraded, "measured-failed", where, "dmesg may say more (Xid); nvidia-smi topo -p2p rw shows what the driver allows", "could not be measured: %s", p.Problem)
		case p.wrong() > 0:
			c.add(Degraded, "measured-data", where, "turn the IOMMU off or to passthrough (iommu=pt) and ACS off; if it stays, the link is broken",
				"of %d words sent, wrong were %d copied, %d stored and %d loaded", p.Words, p.WrongCopy, p.WrongStore, p.WrongLoad)
		}
	}
	c.fans(m)
	c.slowHosts(m)
	c.slowPaths(m)
}

func (c *checkup) slowHosts(m *Measured) {
	for _, way := range []struct {
		name string
		gbs  func(*MeasuredHost) float64
	}{
		{"to the GPU", func(h *MeasuredHost) float64 { return h.ToDeviceGBs }},
		{"to the host", func(h *MeasuredHost) float64 { return h.ToHostGBs }},
	} {
		var all []float64
		for i := range m.Hosts {
			if v := way.gbs(&m.Hosts[i]); v > 0 {
				all = append(all, v)
			}
		}
		usual := median(all)
		for i := range m.Hosts {
			if v := way.gbs(&m.Hosts[i]); v > 0 && v < slowShare*usual {
				c.add(Degraded, "measured-slow", fmt.Sprintf("GPU%d - host", m.Hosts[i].GPU), "compare its PCIe link (mkrun topo --tree) and NUMA node with the others'",
					"%.1f GB/s %s, the usual is %.1f", v, way.name, usual)
			}
		}
	}
}

// slowPaths compares paths of the same kind: as near, and with as many links.
func (c *checkup) slowPaths(m *Measured) {
	at := map[int]int{}
	for i, g := range c.e.Node.GPUs {
		at[g.Index] = i
	}
	kind := func(p *MeasuredPath) string {
		from, ok := at[p.From]
		to, ok2 := at[p.To]
		if !ok || !ok2 || from == to {
			return "unknown"
		}
		level, _ := c.e.GPULevel(from, to)
		return fmt.Sprintf("%s %v", level, p.Direct)
	}
	all := map[string][]float64{}
	for i := range m.Paths {
		if p := &m.Paths[i]; p.CopyGBs > 0 {
			all[kind(p)] = append(all[kind(p)], p.CopyGBs)
		}
	}
	for i := range m.Paths {
		p := &m.Paths[i]
		if usual := median(all[kind(p)]); p.CopyGBs > 0 && p.CopyGBs < slowShare*usual {
			c.add(Degraded, "measured-slow", fmt.Sprintf("GPU%d -> GPU%d", p.From, p.To), "nvidia-smi nvlink -e shows link errors; for PCIe compare mkrun topo --tree",
				"%.1f GB/s, the usual between GPUs as near is %.1f", p.CopyGBs, usual)
		}
	}
}

// median of some figures; the upper one of two in the middle, so that of two that differ the slower is the odd one.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(v))
	return sorted[len(sorted)/2]
}
