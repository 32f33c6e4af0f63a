package topology

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ncclReader reads one <system>.
type ncclReader struct {
	file  string
	nodes []*Node
	hosts map[string]*Node
	node  *Node
	lines map[*Node]map[string]int // first line of each bus id
	masks map[*Node][]mask
	// unclassed are devices of which the file says neither class nor what they are.
	unclassed map[*Node][]string
}

// mask is an affinity as it stands in the file.
type mask struct {
	numa, line, groups, first int // first: digits of the first group
	text                      string
}

// parseNCCL reads a topology as NCCL (or RCCL) dumps it or reads it from NCCL_TOPO_FILE. Several
// hosts in one file (host_hash) become several nodes.
func parseNCCL(file string, root *element) ([]*Node, error) {
	r := &ncclReader{file: file, hosts: map[string]*Node{}, lines: map[*Node]map[string]int{}, masks: map[*Node][]mask{}, unclassed: map[*Node][]string{}}
	for _, cpu := range root.children {
		if cpu.name != "cpu" {
			return nil, r.fail(cpu, "<%s> below <system>: a NCCL topology has <cpu> there; this is another program's format", cpu.name)
		}
		if err := r.cpu(cpu); err != nil {
			return nil, err
		}
	}
	if len(r.nodes) == 0 {
		return nil, r.fail(root, "<system> without <cpu>: there is nothing in it")
	}
	for _, n := range r.nodes {
		r.finish(n)
	}
	return r.nodes, nil
}

func (r *ncclReader) fail(e *element, format string, args ...any) error {
	return &ImportError{r.file, e.line, fmt.Sprintf(format, args...)}
}

func (r *ncclReader) attrs() attrReader { return attrReader{r.file, r.node.note} }

func (r *ncclReader) at(e *element) string { return fmt.Sprintf("%s:%d", r.file, e.line) }

// host is the node that a <cpu> belongs to.
func (r *ncclReader) host(e *element) *Node {
	hash := e.attrs["host_hash"]
	if n, ok := r.hosts[hash]; ok {
		return n
	}
	n := &Node{Host: fmt.Sprintf("node%d", len(r.nodes)), Origin: Origin{Kind: FromNCCL}, Tree: TreeSwitches, Details: Details{NICs: true}}
	r.hosts[hash] = n
	r.nodes = append(r.nodes, n)
	r.lines[n] = map[string]int{}
	return n
}

func (r *ncclReader) cpu(e *element) error {
	n := r.host(e)
	r.node = n
	text := e.attrs["numaid"]
	id, err := strconv.Atoi(text)
	if err != nil || id < -1 || id >= maxNUMA {
		return r.fail(e, "numaid=%q of <cpu> is not a NUMA node's number (-1, or 0 to %d)", text, maxNUMA-1)
	}
	prov := Provenance{"*": FromNCCL}
	if id >= 0 {
		numa := NUMANode{ID: id, HasCPU: true, Vendor: e.attrs["vendor"], Arch: e.attrs["arch"],
			Family: r.attrs().whole(e, "familyid", 0, -1, math.MaxUint16), Model: r.attrs().whole(e, "modelid", 0, -1, math.MaxUint16), Prov: prov}
		if affinity := strings.TrimSpace(e.attrs["affinity"]); affinity != "" {
			set, short, err := ParseCPUMask(affinity)
			switch {
			case err != nil:
				n.note(r.at(e), "affinity of NUMA node %d left out: %v", id, err)
			case short:
				n.note(r.at(e), "affinity %q of NUMA node %d has a group that is not 8 digits: a digit was lost, do not bind by it", affinity, id)
			default:
				numa.CPUs = set.String()
				first, rest, _ := strings.Cut(affinity, ",")
				r.masks[n] = append(r.masks[n], mask{id, e.line, strings.Count(rest, ",") + 1, len(first), affinity})
			}
		}
		n.NUMA = append(n.NUMA, numa)
	} else {
		n.Virtual = true
	}
	at := len(n.PCI)
	n.PCI = append(n.PCI, Device{ID: "numa" + text, Parent: -1, Kind: KindRoot, NUMA: intp(id), Line: e.line, Prov: prov})
	for _, c := range e.children {
		if err := r.below(c, at); err != nil {
			return err
		}
	}
	return nil
}

// below reads what may stand below a <cpu> or a <pci>.
func (r *ncclReader) below(e *element, parent int) error {
	switch e.name {
	case "pci":
		return r.pci(e, parent)
	case "nic":
		return r.nets(e, parent)
	case "gpu":
		return r.gpu(e, parent)
	case "pcilink":
		if target, err := ParseBDF(e.attrs["target"]); err == nil {
			r.node.PCI[parent].Links = append(r.node.PCI[parent].Links, target)
		} else {
			r.node.note(r.at(e), "<pcilink> left out: %v", err)
		}
	default:
		r.node.note(r.at(e), "<%s> is not known here and was left out", e.name)
	}
	return nil
}

func (r *ncclReader) pci(e *element, parent int) error {
	n := r.node
	text, ok := e.attrs["busid"]
	if !ok {
		return r.fail(e, "<pci> without busid: this is not NCCL's format, or the file was damaged")
	}
	bdf, err := ParseBDF(text)
	if err != nil {
		return r.fail(e, "busid of <pci>: %v", err)
	}
	if first, twice := r.lines[n][bdf]; twice {
		n.note(r.at(e), "bus id %s stands here and in line %d: one of them is wrong", bdf, first)
	} else {
		r.lines[n][bdf] = e.line
	}
	attrs := r.attrs()
	d := Device{ID: bdf, Parent: parent, Kind: KindDevice, Class: attrs.class(e, "class"),
		Vendor: attrs.id(e, "vendor"), Device: attrs.id(e, "device"), SubVendor: attrs.id(e, "subsystem_vendor"), SubDevice: attrs.id(e, "subsystem_device"),
		Speed: attrs.speed(e, "link_speed"), Width: attrs.whole(e, "link_width", 0, 0, maxLanes), Line: e.line, Prov: Provenance{"*": FromNCCL}}
	if s := e.attrs["link_speed"]; s != "" && d.Speed > 0 && !ncclKnowsSpeed(s) {
		n.note(r.at(e), "link_speed %q is in no table of NCCL: it will plan with the speed of Gen3", s)
		d.Prov = d.Prov.with("speed", FromGuess)
	}
	at := len(n.PCI)
	n.PCI = append(n.PCI, d)
	for _, c := range e.children {
		if c.name == "pci" {
			n.PCI[at].Kind = KindBridge
		}
		if err := r.below(c, at); err != nil {
			return err
		}
	}
	if n.PCI[at].Kind == KindBridge || len(n.GPUs) > 0 && n.GPUs[len(n.GPUs)-1].PCI == at || len(n.NICs) > 0 && n.NICs[len(n.NICs)-1].PCI == at {
		return nil
	}
	switch {
	case isGPUClass(d.Class, d.Vendor):
		r.addGPU(at, nil)
	case strings.HasPrefix(d.Class, "0x02") || isEFA(d.Vendor, d.Device):
		n.NICs = append(n.NICs, r.nic(at, "", nil))
	case strings.HasPrefix(d.Class, "0x0604"):
		n.PCI[at].Kind = KindBridge
	case d.Class == "" && d.Vendor == 0:
		r.unclassed[n] = append(r.unclassed[n], bdf)
	}
	return nil
}

func (r *ncclReader) addGPU(at int, e *element) *GPU {
	n := r.node
	d := n.PCI[at]
	g := GPU{Index: len(n.GPUs), BDF: d.ID, PCI: at, Dev: len(n.GPUs), CUDA: -1, Module: -1, Vendor: d.Vendor, Device: d.Device,
		Prov: Provenance{"*": FromNCCL}}
	if e != nil {
		g.Dev = r.attrs().whole(e, "dev", g.Dev, 0, maxIndex)
		if e.attrs["gcn"] == "" {
			g.SM = r.attrs().whole(e, "sm", 0, 0, maxSM)
		}
		if v, ok := e.attrs["gdr"]; ok {
			on := v != "0"
			g.GDR = &on
		}
	}
	n.GPUs = append(n.GPUs, g)
	return &n.GPUs[len(n.GPUs)-1]
}

func (r *ncclReader) gpu(e *element, at int) error {
	if r.node.PCI[at].Kind == KindRoot {
		return r.fail(e, "<gpu> directly below <cpu>: it needs a <pci busid=...> around it")
	}
	g := r.addGPU(at, e)
	for _, l := range e.children {
		switch l.name {
		case "nvlink", "xgmi":
			count, err := strconv.Atoi(strings.TrimSpace(cmp.Or(l.attrs["count"], "1")))
			if err != nil || count < 0 || count > 64 {
				return r.fail(l, "count=%q of <%s>: a GPU has 0 to 64 links", l.attrs["count"], l.name)
			}
			link := NVLink{Count: count, XGMI: l.name == "xgmi", Line: l.line}
			link.Target, link.Peer = r.target(l, g.BDF)
			g.Links = append(g.Links, link)
			r.node.Details.NVLinks = true
		case "c2c":
			g.C2C = &C2C{Links: r.attrs().whole(l, "count", 1, 0, 64), MBs: r.attrs().real(l, "bw", maxC2CMBs)}
		default:
			r.node.note(r.at(l), "<%s> is not known below <gpu> and was left out", l.name)
		}
	}
	return nil
}

// target says what a link ends at. An absent or broken target stays a link: what kind of thing it
// ends at is known from its class.
func (r *ncclReader) target(l *element, own string) (string, LinkPeer) {
	class := r.attrs().class(l, "tclass")
	bdf, err := ParseBDF(l.attrs["target"])
	if err != nil {
		bdf = ""
	}
	switch {
	case bdf == own && bdf != "":
		r.node.note(r.at(l), "a link of GPU %s ends at itself: the target is wrong", own)
		return bdf, PeerSelf
	case strings.HasPrefix(class, "0x068001"):
		return bdf, PeerCPU
	case strings.HasPrefix(class, "0x0680"):
		return bdf, PeerSwitch
	case bdf == "" || strings.Contains(bdf, "ffff:ff"):
		return "", PeerUnknown
	}
	return bdf, PeerGPU
}

// nets reads <nic>: one NIC for each <net> below it.
func (r *ncclReader) nets(e *element, parent int) error {
	n := r.node
	if len(e.children) == 0 && n.PCI[parent].Kind != KindRoot {
		n.NICs = append(n.NICs, r.nic(parent, "", nil))
		return nil
	}
	for _, net := range e.children {
		if net.name != "net" {
			n.note(r.at(net), "<%s> is not known below <nic> and was left out", net.name)
			continue
		}
		name := net.attrs["name"]
		if name == "" {
			name = fmt.Sprintf("net%d", r.attrs().whole(net, "dev", len(n.NICs), 0, maxIndex))
		}
		at := parent
		if n.PCI[parent].Kind == KindRoot {
			// No PCI address is known: NCCL hangs it below a CPU.
			at = len(n.PCI)
			n.PCI = append(n.PCI, Device{ID: name, Parent: parent, Kind: KindDevice, Line: net.line, Prov: Provenance{"*": FromNCCL}})
		}
		n.NICs = append(n.NICs, r.nic(at, name, net))
	}
	return nil
}

func (r *ncclReader) nic(at int, name string, net *element) NIC {
	d := r.node.PCI[at]
	c := NIC{Name: name, RDMA: name, BDF: d.ID, PCI: at, Vendor: d.Vendor, Device: d.Device, Prov: Provenance{"*": FromNCCL}}
	if name == "" {
		c.Name = shortBDF(d.ID)
		c.Prov = c.Prov.with("name", FromGuess)
	}
	if net == nil {
		return c
	}
	if guid := strings.ToLower(net.attrs["guid"]); guid != "" {
		c.GUID = guid
	}
	// NCCL lists only ports that are up.
	c.Ports = []Port{{Num: r.attrs().whole(net, "port", 1, 0, 255), State: "ACTIVE", Rate: r.attrs().whole(net, "speed", 0, 0, maxRate)}}
	if net.attrs["gdr"] == "0" && d.Vendor == 0 {
		c.RDMA = "" // a socket transport's interface
		c.Net = []string{name}
	}
	return c
}

// finish looks at the node as a whole.
func (r *ncclReader) finish(n *Node) {
	if list := r.unclassed[n]; len(list) > 0 {
		n.note(r.file, "%d devices without class, vendor or content (%s): the file does not say which are GPUs and which NICs; merge it with the live machine", len(list), strings.Join(list[:min(8, len(list))], " "))
	}
	r.oddMasks(n)
	sets := make([]CPUSet, len(n.NUMA))
	for i := range n.NUMA {
		sets[i], _ = ParseCPUList(n.NUMA[i].CPUs)
		for j := range i {
			if n.NUMA[i].ID != n.NUMA[j].ID && sets[i].overlaps(sets[j]) {
				n.note(r.file, "the affinity masks of NUMA nodes %d and %d overlap: at least one is wrong, check them against cpulist", n.NUMA[j].ID, n.NUMA[i].ID)
			}
		}
	}
	seen := map[string]bool{}
	for _, g := range n.GPUs {
		for _, l := range g.Links {
			if l.Peer == PeerSwitch && l.Target != "" && !seen[l.Target] {
				seen[l.Target] = true
				n.NVSwitches = append(n.NVSwitches, NVSwitch{ID: l.Target, Visible: !strings.Contains(l.Target, "ffff:ff")})
			}
		}
	}
}

// oddMasks drops masks whose first group is shorter than that of the others: a digit was lost. Where
// all are short alike, the machine has no more CPUs.
func (r *ncclReader) oddMasks(n *Node) {
	longest := map[int]int{}
	for _, m := range r.masks[n] {
		longest[m.groups] = max(longest[m.groups], m.first)
	}
	for _, m := range r.masks[n] {
		if m.first == longest[m.groups] {
			continue
		}
		n.note(fmt.Sprintf("%s:%d", r.file, m.line), "affinity %q of NUMA node %d starts with %d digits, the others with %d: a digit was lost, do not bind by it", m.text, m.numa, m.first, longest[m.groups])
		for i := range n.NUMA {
			if n.NUMA[i].ID == m.numa {
				n.NUMA[i].CPUs = ""
			}
		}
	}
}

// parseGT reads "16 GT/s", "32.0 GT/s PCIe" and the like; 0 if it is no speed.
func parseGT(s string) float64 {
	word, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	v, err := strconv.ParseFloat(word, 64)
	if err != nil || !within(v, maxGT) {
		return 0
	}
	return v
}

// ncclKnowsSpeed says whether NCCL's table has the text.
func ncclKnowsSpeed(s string) bool {
	word, unit, ok := strings.Cut(s, " ")
	if !ok || unit != "GT/s" && unit != "GT/s PCIe" {
		return false
	}
	switch word {
	case "2.5", "5", "8", "16", "32", "64", "5.0", "8.0", "16.0", "32.0", "64.0":
		return true
	}
	return false
}
