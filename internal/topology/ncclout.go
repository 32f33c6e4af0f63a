package topology

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ncclMaxNodes is how many XML elements NCCL takes for one rank.
const ncclMaxNodes = 256

// ncclWriter writes one node in NCCL's format.
type ncclWriter struct {
	e        *Eval
	up       []int
	children map[int][]int
	gpus     map[int]int
	nics     map[int][]int
	b        bytes.Buffer
	elements int
}

// WriteNCCL writes the node as a topology file for NCCL_TOPO_FILE: NUMA nodes, switches, GPUs with
// their NVLinks, and the NICs that can carry data. Other functions are left out, so that the file
// stays below NCCL's limit of elements.
func (e *Eval) WriteNCCL(w io.Writer) error {
	if e.Node.Matrix != nil || len(e.Node.PCI) == 0 {
		return fmt.Errorf("%s: the source tells distances only, no PCI tree: there is no topology file to write", e.Node.Host)
	}
	for _, keep := range []func(Role) bool{Role.candidate, func(r Role) bool { return r.Role == RoleRail }} {
		x := &ncclWriter{e: e, up: e.Node.switches(), children: map[int][]int{}, gpus: map[int]int{}, nics: map[int][]int{}}
		x.system(keep)
		if x.elements == 1 {
			return fmt.Errorf("%s: no GPU and no data NIC with a place in the PCI tree: there is no topology file to write", e.Node.Host)
		}
		if x.elements < ncclMaxNodes {
			_, err := w.Write(x.b.Bytes())
			return err
		}
	}
	return fmt.Errorf("%s: more than %d elements would be needed: NCCL takes no more", e.Node.Host, ncclMaxNodes-1)
}

// open writes a start tag; attributes are pairs.
func (x *ncclWriter) open(depth int, name string, empty bool, attrs ...string) {
	x.elements++
	x.b.WriteString(strings.Repeat("  ", depth) + "<" + name)
	for i := 0; i+1 < len(attrs); i += 2 {
		x.b.WriteString(" " + attrs[i] + `="`)
		_ = xml.EscapeText(&x.b, []byte(attrs[i+1])) // a buffer does not fail
		x.b.WriteByte('"')
	}
	if empty {
		x.b.WriteByte('/')
	}
	x.b.WriteString(">\n")
}

func (x *ncclWriter) end(depth int, name string) {
	x.b.WriteString(strings.Repeat("  ", depth) + "</" + name + ">\n")
}

func (x *ncclWriter) system(keep func(Role) bool) {
	n := x.e.Node
	used := map[int]bool{}
	mark := func(i int) {
		for i >= 0 && !used[i] {
			used[i] = true
			i = x.up[i]
		}
	}
	for i, g := range n.GPUs {
		if g.PCI >= 0 {
			x.gpus[g.PCI] = i
			mark(g.PCI)
		}
	}
	for i, c := range n.NICs {
		if c.PCI >= 0 && keep(x.e.roles[i]) {
			x.nics[c.PCI] = append(x.nics[c.PCI], i)
			mark(c.PCI)
		}
	}
	roots := map[int][]int{} // by NUMA node
	var order []int
	for i := range n.PCI {
		if !used[i] || n.PCI[i].Kind == KindRoot {
			continue
		}
		if p := x.up[i]; p >= 0 && n.PCI[p].Kind != KindRoot {
			x.children[p] = append(x.children[p], i)
			continue
		}
		numa := x.e.ncclNUMA(i)
		if roots[numa] == nil {
			order = append(order, numa)
		}
		roots[numa] = append(roots[numa], i)
	}
	x.open(0, "system", false, "version", "1")
	for _, numa := range order {
		x.cpu(numa, roots[numa])
	}
	x.end(0, "system")
}

func (x *ncclWriter) cpu(numa int, below []int) {
	attrs := []string{"numaid", fmt.Sprint(numa)}
	if m := x.e.numaRecord(numa); m != nil {
		most := 0
		for _, o := range x.e.Node.NUMA {
			if set, err := ParseCPUList(o.CPUs); err == nil && len(set) > 0 {
				most = max(most, set[len(set)-1]+1)
			}
		}
		if set, err := ParseCPUList(m.CPUs); err == nil && len(set) > 0 {
			attrs = append(attrs, "affinity", set.Mask(most))
		}
		if m.Arch != "" {
			attrs = append(attrs, "arch", m.Arch)
		}
		if m.Vendor != "" {
			attrs = append(attrs, "vendor", m.Vendor, "familyid", fmt.Sprint(m.Family), "modelid", fmt.Sprint(m.Model))
		}
	}
	x.open(1, "cpu", false, attrs...)
	for _, i := range below {
		x.device(2, i)
	}
	x.end(1, "cpu")
}

func (x *ncclWriter) device(depth, i int) {
	n := x.e.Node
	d := &n.PCI[i]
	nics := x.nics[i]
	if _, err := ParseBDF(d.ID); err != nil { // a NIC without an address
		x.nets(depth, nics)
		return
	}
	gpu, isGPU := x.gpus[i]
	class := d.Class
	if class == "" {
		switch {
		case isGPU:
			class = "0x030200"
		case len(nics) > 0:
			class = "0x020000"
		default:
			class = "0x060400"
		}
	}
	attrs := []string{"busid", d.ID, "class", class}
	if d.Vendor != 0 {
		hex := func(v int) string { return fmt.Sprintf("0x%04x", v) }
		attrs = append(attrs, "vendor", hex(d.Vendor), "device", hex(d.Device), "subsystem_vendor", hex(d.SubVendor), "subsystem_device", hex(d.SubDevice))
	}
	if speed, width := d.planned(); speed != "" {
		attrs = append(attrs, "link_speed", speed, "link_width", fmt.Sprint(width))
	}
	named := slices.ContainsFunc(nics, func(c int) bool { return n.NICs[c].Prov.Of("name") != FromGuess })
	empty := !isGPU && !named && len(x.children[i]) == 0 && len(d.Links) == 0
	x.open(depth, "pci", empty, attrs...)
	if empty {
		return
	}
	for _, target := range d.Links {
		x.open(depth+1, "pcilink", true, "target", target)
	}
	if isGPU {
		x.gpu(depth+1, gpu)
	}
	if named {
		x.nets(depth+1, nics)
	}
	for _, c := range x.children[i] {
		x.device(depth+1, c)
	}
	x.end(depth, "pci")
}

// planned is the speed to plan with: what the link can, for an idle GPU runs slower.
func (d *Device) planned() (speed string, width int) {
	gt, width := d.Speed, d.Width
	if d.MaxSpeed > 0 {
		gt = d.MaxSpeed
	}
	if d.MaxWidth > 0 {
		width = d.MaxWidth
	}
	if gt == 0 && d.GBs > 0 {
		width = 16
		switch {
		case d.GBs > 90:
			gt = 64
		case d.GBs > 45:
			gt = 32
		case d.GBs > 22:
			gt = 16
		default:
			gt = 8
			for width > 1 && d.GBs < float64(width)*0.7 {
				width /= 2
			}
		}
	}
	if gt == 0 || d.Prov.Of("speed") == FromGuess {
		return "", 0
	}
	return fmt.Sprintf("%.1f GT/s PCIe", gt), max(1, width)
}

func (x *ncclWriter) gpu(depth, i int) {
	n := x.e.Node
	g := &n.GPUs[i]
	sm := g.SM
	if sm == 0 {
		sm = 80
	}
	attrs := []string{"dev", fmt.Sprint(max(0, g.Dev)), "sm", fmt.Sprint(sm), "rank", fmt.Sprint(i), "gdr", "1"}
	if len(g.Links) == 0 && g.C2C == nil {
		x.open(depth, "gpu", true, attrs...)
		return
	}
	x.open(depth, "gpu", false, attrs...)
	for _, l := range g.Links {
		name, class, target := "nvlink", "0x068000", l.Target
		switch l.Peer {
		case PeerGPU, PeerSelf:
			class = "0x030200"
		case PeerCPU:
			class = "0x068001"
		}
		if l.XGMI {
			name = "xgmi"
		}
		if target == "" {
			target = "fffffff:ffff:ff"
		}
		x.open(depth+1, name, true, "target", target, "count", fmt.Sprint(l.Count), "tclass", class)
	}
	if g.C2C != nil {
		x.open(depth+1, "c2c", true, "bw", fmt.Sprintf("%g", g.C2C.MBs), "count", fmt.Sprint(g.C2C.Links))
	}
	x.end(depth, "gpu")
}

func (x *ncclWriter) nets(depth int, nics []int) {
	n := x.e.Node
	x.open(depth, "nic", false)
	for _, c := range nics {
		nic := &n.NICs[c]
		port, gdr := 1, "1"
		if len(nic.Ports) > 0 {
			port = nic.Ports[0].Num
		}
		if nic.RDMA == "" {
			gdr = "0"
		}
		guid := nic.GUID
		if guid == "" {
			guid = "0x0"
		}
		if !strings.HasPrefix(guid, "0x") {
			guid = "0x" + strings.ReplaceAll(guid, ":", "")
		}
		rate := nic.rate()
		attrs := []string{"name", nic.Name, "dev", fmt.Sprint(c)}
		if rate > 0 {
			attrs = append(attrs, "speed", fmt.Sprint(rate))
		}
		attrs = append(attrs, "port", fmt.Sprint(port), "latency", "0.000000", "guid", guid, "maxconn", "131072", "gdr", gdr)
		x.open(depth+1, "net", true, attrs...)
	}
	x.end(depth, "nic")
}
