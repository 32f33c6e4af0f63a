package topology

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// hwlocReader reads one <topology> of hwloc 1, 2 or 3.
type hwlocReader struct {
	file    string
	node    *Node
	bitmask bool           // osdev_type is a set of bits (hwloc 3), not a number
	byID    map[string]int // gp_index or id of an object to its GPU
	numaAt  map[int]bool   // NUMA nodes seen
	cpuOf   map[string]int // gp_index of packages and NUMA nodes, for links that end at a CPU
	swOf    map[string]string
	byName  map[string]int   // OS device of a GPU to its GPU
	peers   map[int][]string // OS devices that a GPU reaches over xGMI
}

// parseHwloc reads what `lstopo file.xml` writes.
func parseHwloc(file string, root *element) ([]*Node, error) {
	n := &Node{Origin: Origin{Kind: FromHwloc}, Tree: TreeFull, Details: Details{NICs: true}}
	r := &hwlocReader{file: file, node: n, byID: map[string]int{}, numaAt: map[int]bool{}, cpuOf: map[string]int{}, swOf: map[string]string{}, byName: map[string]int{}, peers: map[int][]string{}}
	r.bitmask = strings.HasPrefix(root.attrs["version"], "3")
	switch major, _, _ := strings.Cut(root.attrs["version"], "."); major {
	case "", "1", "2", "3":
	default:
		n.note(r.at(root), "version=%q of <topology> is not known: read as version 2", root.attrs["version"])
	}
	var objects int
	for _, c := range root.children {
		if c.name == "object" {
			objects++
		}
	}
	if objects == 0 {
		return nil, &ImportError{file, root.line, "<topology> without <object>: not hwloc's format, or an empty one"}
	}
	for _, c := range root.children {
		if c.name == "object" {
			r.numaNodes(c, "")
		}
	}
	for _, c := range root.children {
		switch c.name {
		case "object":
			if err := r.object(c, -1, ""); err != nil {
				return nil, err
			}
		case "info":
			r.info(c)
		case "distances2":
			r.numaDistances(c)
		}
	}
	for _, c := range root.children {
		if c.name == "distances2hetero" && strings.HasPrefix(c.attrs["name"], "NVLink") {
			if err := r.nvlinks(c); err != nil {
				return nil, err
			}
		}
	}
	r.xgmi()
	if n.Host == "" {
		n.Host = "node0"
	}
	slices.SortFunc(n.NUMA, func(a, b NUMANode) int { return a.ID - b.ID })
	return []*Node{n}, nil
}

func (r *hwlocReader) attrs() attrReader { return attrReader{r.file, r.node.note} }

func (r *hwlocReader) at(e *element) string { return fmt.Sprintf("%s:%d", r.file, e.line) }

func (r *hwlocReader) info(e *element) {
	switch e.attrs["name"] {
	case "HostName":
		r.node.Host = e.attrs["value"]
	case "DMIProductName", "PlatformModel":
		r.node.Product = e.attrs["value"]
	}
}

// numaNodes collects the NUMA nodes. In hwloc 1 they contain the cores, later they hang beside them.
func (r *hwlocReader) numaNodes(e *element, cpus string) {
	if s := e.attrs["cpuset"]; s != "" {
		cpus = s
	}
	if e.attrs["type"] == "NUMANode" {
		set, _, err := ParseCPUMask(cpus)
		if err != nil {
			r.node.note(r.at(e), "cpuset of a NUMA node left out: %v", err)
		}
		id := r.attrs().whole(e, "os_index", -1, 0, maxNUMA-1)
		if id >= 0 && !r.numaAt[id] {
			r.numaAt[id] = true
			// A set that cannot be read is of a node that has CPUs, only not known which.
			r.node.NUMA = append(r.node.NUMA, NUMANode{ID: id, CPUs: set.String(), HasCPU: len(set) > 0 || err != nil, Prov: Provenance{"*": FromHwloc}})
		}
	}
	for _, c := range e.children {
		if c.name == "object" {
			r.numaNodes(c, cpus)
		}
	}
}

// near is the NUMA node that a nodeset stands for: the only one in it that has CPUs, else -1.
func (r *hwlocReader) near(nodeset string) *int {
	set, _, err := ParseCPUMask(nodeset)
	if err != nil || len(r.node.NUMA) == 0 {
		return nil
	}
	found := -1
	for _, m := range r.node.NUMA {
		if m.HasCPU && slices.Contains(set, m.ID) {
			if found >= 0 {
				return intp(-1)
			}
			found = m.ID
		}
	}
	return intp(found)
}

// object walks the tree. parent is the PCI record above, -1 above the host bridges; nodeset is the
// nearest one above.
func (r *hwlocReader) object(e *element, parent int, nodeset string) error {
	if s := e.attrs["nodeset"]; s != "" {
		nodeset = s
	}
	id := e.attrs["gp_index"]
	switch e.attrs["type"] {
	case "Bridge":
		at, err := r.bridge(e, parent, nodeset)
		if err != nil {
			return err
		}
		parent = at
	case "PCIDev":
		return r.device(e, parent)
	case "Package", "Socket", "NUMANode":
		if id != "" {
			r.cpuOf[id] = r.attrs().whole(e, "os_index", 0, 0, math.MaxInt32)
		}
	}
	for _, c := range e.children {
		switch c.name {
		case "object":
			if err := r.object(c, parent, nodeset); err != nil {
				return err
			}
		case "info":
			if e.attrs["type"] == "Machine" {
				r.info(c)
			}
		}
	}
	return nil
}

func (r *hwlocReader) bridge(e *element, parent int, nodeset string) (int, error) {
	n := r.node
	at := len(n.PCI)
	d := Device{Parent: parent, Line: e.line, Prov: Provenance{"*": FromHwloc}}
	if strings.HasPrefix(e.attrs["bridge_type"], "0-") {
		domain, buses, _ := strings.Cut(e.attrs["bridge_pci"], ":")
		first, _, _ := strings.Cut(strings.Trim(buses, "[]"), "-")
		d.Kind, d.ID, d.Parent, d.NUMA = KindRoot, "pci"+domain+":"+first, -1, r.near(nodeset)
		n.PCI = append(n.PCI, d)
		return at, nil
	}
	d.Kind = KindBridge
	if err := r.pciFields(e, &d); err != nil {
		return 0, err
	}
	n.PCI = append(n.PCI, d)
	return at, nil
}

// pciFields reads the address, the type "0302 [10de:1db8] [10de:131d] a1" and the link speed.
func (r *hwlocReader) pciFields(e *element, d *Device) error {
	bdf, err := ParseBDF(e.attrs["pci_busid"])
	if err != nil {
		return &ImportError{r.file, e.line, fmt.Sprintf("pci_busid of <object type=%q>: %v", e.attrs["type"], err)}
	}
	d.ID = bdf
	fields := strings.Fields(e.attrs["pci_type"])
	if len(fields) >= 3 {
		d.Class = classText(fields[0])
		d.Vendor, d.Device = idPair(fields[1])
		d.SubVendor, d.SubDevice = idPair(fields[2])
	} else {
		r.node.note(r.at(e), "pci_type %q of %s is not of the form class [vendor:device] [vendor:device] revision", e.attrs["pci_type"], bdf)
	}
	d.GBs = r.attrs().real(e, "pci_link_speed", maxGBs)
	for _, c := range e.children {
		if c.name == "info" && c.attrs["name"] == "PCIDevice" {
			d.Name = c.attrs["value"]
		}
	}
	return nil
}

func idPair(s string) (vendor, device int) {
	a, b, _ := strings.Cut(strings.Trim(s, "[]"), ":")
	v, err := strconv.ParseUint(a, 16, 16)
	if err != nil {
		return 0, 0
	}
	w, err := strconv.ParseUint(b, 16, 16)
	if err != nil {
		return 0, 0
	}
	return int(v), int(w)
}

// osDevices are the names that the system gives to one PCI device.
type osDevices struct {
	gpu, net, rdma []string
	ids            []string
	peers          []string
	model, uuid    string
	serial         string
	compute        bool
}

func (r *hwlocReader) device(e *element, parent int) error {
	n := r.node
	d := Device{Parent: parent, Kind: KindDevice, Line: e.line, Prov: Provenance{"*": FromHwloc}}
	if err := r.pciFields(e, &d); err != nil {
		return err
	}
	at := len(n.PCI)
	n.PCI = append(n.PCI, d)
	var os osDevices
	for _, c := range e.children {
		if c.name == "object" {
			if c.attrs["type"] == "OSDev" {
				r.osDevice(c, &os)
			} else if err := r.object(c, at, ""); err != nil {
				return err
			}
		}
	}
	id := e.attrs["gp_index"]
	switch {
	case e.attrs["subtype"] == "NVSwitch" || strings.HasPrefix(d.Class, "0x0680") && d.Vendor == vendorNVIDIA:
		n.NVSwitches = append(n.NVSwitches, NVSwitch{ID: d.ID, Visible: true})
		r.swOf[id] = d.ID
	case isGPUClass(d.Class, d.Vendor) && !(strings.HasPrefix(d.Class, "0x0300") && d.Vendor != vendorNVIDIA) || os.compute:
		g := GPU{Index: len(n.GPUs), BDF: d.ID, PCI: at, Dev: len(n.GPUs), CUDA: -1, Module: -1, Vendor: d.Vendor, Device: d.Device,
			Name: os.model, UUID: os.uuid, Serial: os.serial, Prov: Provenance{"*": FromHwloc}}
		if g.Name == "" {
			g.Name = d.Name
		}
		for _, key := range append(os.ids, id) {
			r.byID[key] = g.Index
		}
		for _, name := range os.gpu {
			r.byName[name] = g.Index
		}
		r.peers[g.Index] = os.peers
		n.GPUs = append(n.GPUs, g)
	case len(os.rdma) > 0 || isEFA(d.Vendor, d.Device) || isSlingshot(d.Vendor, d.Device) || strings.HasPrefix(d.Class, "0x02") && len(os.net) > 0:
		c := NIC{BDF: d.ID, PCI: at, Vendor: d.Vendor, Device: d.Device, Net: os.net, Prov: Provenance{"*": FromHwloc}}
		switch {
		case len(os.rdma) > 0:
			c.RDMA = os.rdma[0]
			c.Name = c.RDMA
		case len(os.net) > 0:
			c.Name = os.net[0]
		default:
			c.Name = shortBDF(d.ID)
		}
		n.NICs = append(n.NICs, c)
	}
	return nil
}

// Types of OS devices in hwloc 1 and 2, and their bits in hwloc 3.
const (
	osGPU, osNetwork, osOpenFabrics, osCoproc          = 1, 2, 3, 5
	osBitGPU, osBitCoproc, osBitNetwork, osBitOpenFabr = 4, 8, 16, 32
)

func (r *hwlocReader) osDevice(e *element, os *osDevices) {
	name, kind := e.attrs["name"], r.attrs().whole(e, "osdev_type", -1, -1, math.MaxInt32)
	if id := e.attrs["gp_index"]; id != "" {
		os.ids = append(os.ids, id)
	}
	isGPU, isNet, isRDMA, isCo := kind == osGPU, kind == osNetwork, kind == osOpenFabrics, kind == osCoproc
	if r.bitmask {
		isGPU, isCo = kind&osBitGPU != 0, kind&osBitCoproc != 0
		isRDMA = kind&osBitOpenFabr != 0
		isNet = kind&osBitNetwork != 0 && !isRDMA
	}
	switch {
	case isRDMA:
		os.rdma = append(os.rdma, name)
	case isNet:
		os.net = append(os.net, name)
	case isGPU || isCo:
		os.gpu = append(os.gpu, name)
		// card0 alone may be the console; a render node or a compute API is a GPU.
		if !strings.HasPrefix(name, "card") && !strings.HasPrefix(name, "controlD") {
			os.compute = true
		}
		for _, c := range e.children {
			if c.name != "info" {
				continue
			}
			switch value := c.attrs["value"]; c.attrs["name"] {
			case "GPUModel":
				os.model = value
			case "NVIDIAUUID", "AMDUUID":
				os.uuid = value
			case "NVIDIASerial", "AMDSerial":
				os.serial = value
			case "XGMIPeers":
				os.peers = strings.Fields(value)
			}
		}
	}
}

// xgmi turns the lists of peers into links.
func (r *hwlocReader) xgmi() {
	for i := range r.node.GPUs {
		g := &r.node.GPUs[i]
		for _, name := range r.peers[g.Index] {
			if p, ok := r.byName[name]; ok && p != g.Index {
				g.Links = append(g.Links, NVLink{Peer: PeerGPU, Target: r.node.GPUs[p].BDF, Count: 1, XGMI: true})
				r.node.Details.NVLinks = true
			}
		}
	}
}

// words are the numbers or names in the given children of a distances element.
func words(e *element, child string) []string {
	var all []string
	for _, c := range e.children {
		if c.name == child {
			all = append(all, strings.Fields(c.text)...)
		}
	}
	return all
}

func (r *hwlocReader) numaDistances(e *element) {
	if e.attrs["type"] != "NUMANode" || e.attrs["indexing"] != "os" || e.attrs["name"] != "NUMALatency" {
		return
	}
	ids, values := words(e, "indexes"), words(e, "u64values")
	if len(values) != len(ids)*len(ids) {
		r.node.note(r.at(e), "NUMALatency has %d values for %d nodes; left out", len(values), len(ids))
		return
	}
	for i, id := range ids {
		for k := range r.node.NUMA {
			if strconv.Itoa(r.node.NUMA[k].ID) == id {
				for j := range ids {
					v, err := strconv.Atoi(values[i*len(ids)+j])
					if err != nil || v < 0 {
						r.node.note(r.at(e), "NUMALatency has %q, which is no number", values[i*len(ids)+j])
						v = 0
					}
					r.node.NUMA[k].Distance = append(r.node.NUMA[k].Distance, v)
				}
			}
		}
	}
}

// nvlinks reads the NVLinkBandwidth distances: MB/s between GPUs, switches and CPUs. A link's own
// bandwidth is the smallest that occurs.
func (r *hwlocReader) nvlinks(e *element) error {
	ids, values := words(e, "indexes"), words(e, "u64values")
	if len(ids) == 0 || len(values) != len(ids)*len(ids) {
		return &ImportError{r.file, e.line, fmt.Sprintf("%s has %d values for %d objects, not the square", e.attrs["name"], len(values), len(ids))}
	}
	const self = 1000000
	mbs := make([]int, len(values))
	for i, v := range values {
		var err error
		if mbs[i], err = strconv.Atoi(v); err != nil || mbs[i] < 0 {
			return &ImportError{r.file, e.line, fmt.Sprintf("%s has %q, which is no bandwidth in MB/s", e.attrs["name"], v)}
		}
	}
	r.node.Details.NVLinks = true
	for i, from := range ids {
		_, key, _ := strings.Cut(from, ":")
		gi, ok := r.byID[key]
		if !ok {
			continue
		}
		g := &r.node.GPUs[gi]
		per := nvlinkMBs(g)
		for j, to := range ids {
			v := mbs[i*len(ids)+j]
			if i == j || v <= 0 || v >= self {
				continue
			}
			_, key, _ := strings.Cut(to, ":")
			link := NVLink{Peer: PeerUnknown, Count: max(1, (v+per/2)/per), GBs: float64(per) / 1000, Line: e.line}
			if p, ok := r.byID[key]; ok {
				link.Peer, link.Target = PeerGPU, r.node.GPUs[p].BDF
			} else if sw, ok := r.swOf[key]; ok {
				link.Peer, link.Target = PeerSwitch, sw
			} else if _, ok := r.cpuOf[key]; ok {
				link.Peer = PeerCPU
			}
			g.Links = append(g.Links, link)
		}
	}
	return nil
}

// nvlinkMBs is what one link of a GPU carries one way, by its generation.
func nvlinkMBs(g *GPU) int {
	switch d := g.Device; {
	case d >= 0x15f0 && d < 0x1700: // Pascal
		return 20000
	case d >= 0x2900: // Blackwell
		return 50000
	}
	return 25000
}
