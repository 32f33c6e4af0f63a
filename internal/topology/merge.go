package topology

import "slices"

// Merge lays a vendor's topology file (of the type of a virtual machine) under what the machine
// itself shows: the tree and NUMA nodes are the file's, everything about the devices the machine's.
// Where the two disagree on what both should know, a note says so.
func Merge(live, vendor *Node, file string) *Node {
	n := *live
	n.Tree = vendor.Tree
	n.PCI = slices.Clone(vendor.PCI)
	n.Notes = append(slices.Clone(live.Notes), vendor.Notes...)
	at := map[string]int{}
	for i, d := range n.PCI {
		if _, twice := at[d.ID]; !twice {
			at[d.ID] = i
		}
	}
	// place moves a device into the vendor's tree; a device that the file does not know hangs below
	// the root of its own NUMA node.
	place := func(bdf string, old int) int {
		if i, ok := at[bdf]; ok {
			if old >= 0 {
				d := live.PCI[old]
				p := &n.PCI[i]
				p.Class, p.Vendor, p.Device, p.SubVendor, p.SubDevice = d.Class, d.Vendor, d.Device, d.SubVendor, d.SubDevice
				p.Kind = KindDevice
			}
			return i
		}
		n.note(bdf, "is not in %s: how near it is to others is not known", file)
		if old < 0 {
			return -1
		}
		d := live.PCI[old]
		d.Parent = -1
		i := len(n.PCI)
		n.PCI = append(n.PCI, d)
		at[bdf] = i
		return i
	}
	n.GPUs, n.NICs = slices.Clone(live.GPUs), slices.Clone(live.NICs)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		g.PCI = place(g.BDF, g.PCI)
		g.NUMA, g.CPUs = nil, ""
		g.Prov = Provenance{"*": g.Prov.Of("*"), "numa": vendor.Origin.Kind, "pci": vendor.Origin.Kind}
	}
	for i := range n.NICs {
		c := &n.NICs[i]
		c.PCI, c.NUMA = place(c.BDF, c.PCI), nil
	}
	n.checkMasks(vendor, file)
	n.settle()
	return &n
}

// checkMasks compares the file's affinity masks with the CPU lists of the running system.
func (n *Node) checkMasks(vendor *Node, file string) {
	for _, v := range vendor.NUMA {
		for _, m := range n.NUMA {
			if v.ID == m.ID && v.CPUs != "" && m.CPUs != "" && v.CPUs != m.CPUs {
				n.note(file, "NUMA node %d has CPUs %s, the file's affinity says %s: the system's list is used", m.ID, m.CPUs, v.CPUs)
			}
		}
		if v.ID >= 0 && len(n.NUMA) > 0 && !slices.ContainsFunc(n.NUMA, func(m NUMANode) bool { return m.ID == v.ID }) {
			n.note(file, "names NUMA node %d, which this machine does not have", v.ID)
		}
	}
}
