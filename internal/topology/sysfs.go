package topology

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// sysReader describes a machine from its pseudo files. A file that is missing or unreadable leaves
// its value unknown; nothing here is an error, for every machine hides something.
type sysReader struct {
	f    files
	n    *Node
	at   map[string]int    // PCI address or root to its index
	dirs map[string]string // PCI address to its directory
}

func (r *sysReader) text(p string) string {
	s, err := r.f.read(p)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(s)
}

func (r *sysReader) number(p string) (int, bool) {
	v, err := strconv.ParseInt(r.text(p), 0, 64)
	return int(v), err == nil
}

func (r *sysReader) names(p string) []string {
	names, err := r.f.list(p)
	if err != nil {
		return nil
	}
	return names
}

// readSysfs fills a node from pseudo files.
func readSysfs(f files) *Node {
	r := &sysReader{f: f, at: map[string]int{}, dirs: map[string]string{},
		n: &Node{Origin: Origin{Kind: FromSysfs}, Tree: TreeFull, Details: Details{NICs: true}}}
	r.host()
	r.numa()
	r.devices()
	r.rdma()
	r.links()
	return r.n
}

func (r *sysReader) host() {
	n := r.n
	n.Host = r.text("/proc/sys/kernel/hostname")
	n.Product = strings.TrimSpace(r.text("/sys/class/dmi/id/sys_vendor") + " " + r.text("/sys/class/dmi/id/product_name"))
	cpu := r.text("/proc/cpuinfo")
	flags := cpuField(cpu, "flags")
	n.Virtual = r.text("/sys/hypervisor/type") != "" || strings.Contains(" "+flags+" ", " hypervisor ")
	n.System.Kernel = r.text("/proc/sys/kernel/osrelease")
	n.System.Driver = r.text("/sys/module/nvidia/version")
	n.System.Open = strings.Contains(r.text("/proc/driver/nvidia/version"), "Open Kernel Module")
	for _, m := range []string{"nvidia_peermem", "nv_peer_mem"} {
		switch v := r.text("/sys/module/" + m + "/version"); {
		case v != "":
			n.System.PeerMem = v
		case len(r.names("/sys/module/"+m)) > 0 && n.System.PeerMem == "":
			n.System.PeerMem = "loaded"
		}
	}
	for line := range strings.Lines(r.text("/proc/self/status")) {
		if v, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			n.System.Allowed = strings.TrimSpace(v)
		}
	}
}

// cpuField is the first value of a key in /proc/cpuinfo.
func cpuField(text, key string) string {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (r *sysReader) numa() {
	const dir = "/sys/devices/system/node"
	cpu := r.text("/proc/cpuinfo")
	family, _ := strconv.Atoi(cpuField(cpu, "cpu family"))
	model, _ := strconv.Atoi(cpuField(cpu, "model"))
	vendor, arch := cpuField(cpu, "vendor_id"), "x86_64"
	if vendor == "" {
		arch = "aarch64"
		if strings.Contains(cpu, "POWER") {
			arch = "ppc64"
		}
	}
	for _, name := range r.names(dir) {
		id, err := strconv.Atoi(strings.TrimPrefix(name, "node"))
		if err != nil || !strings.HasPrefix(name, "node") || id < 0 || id >= maxNUMA {
			continue
		}
		m := NUMANode{ID: id, Vendor: vendor, Family: family, Model: model, Arch: arch, Prov: Provenance{"*": FromSysfs}}
		if set, err := ParseCPUList(r.text(path.Join(dir, name, "cpulist"))); err == nil {
			m.CPUs, m.HasCPU = set.String(), len(set) > 0
		}
		for _, d := range strings.Fields(r.text(path.Join(dir, name, "distance"))) {
			if v, err := strconv.Atoi(d); err == nil {
				m.Distance = append(m.Distance, v)
			}
		}
		r.n.NUMA = append(r.n.NUMA, m)
	}
	slices.SortFunc(r.n.NUMA, func(a, b NUMANode) int { return a.ID - b.ID })
}

// devices finds the GPUs, NICs and NVSwitches among the PCI devices.
func (r *sysReader) devices() {
	const dir = "/sys/bus/pci/devices"
	for _, name := range r.names(dir) {
		if bdf, err := ParseBDF(name); err == nil {
			d := path.Join(dir, name)
			if target, err := r.f.link(d); err == nil {
				d = path.Join(dir, target)
			}
			r.dirs[bdf] = d
		}
	}
	if len(r.dirs) == 0 {
		for _, root := range r.names("/sys/devices") {
			if strings.HasPrefix(root, "pci") {
				r.walk(path.Join("/sys/devices", root), 0)
			}
		}
	}
	order := make([]string, 0, len(r.dirs))
	for bdf := range r.dirs {
		order = append(order, bdf)
	}
	slices.SortFunc(order, compareBDF)
	for _, bdf := range order {
		d := r.dirs[bdf]
		class := classText(r.text(d + "/class"))
		vendor, told := r.number(d + "/vendor")
		device, _ := r.number(d + "/device")
		switch {
		case strings.HasPrefix(class, "0x0680") && vendor == vendorNVIDIA:
			r.add(bdf)
			r.n.NVSwitches = append(r.n.NVSwitches, NVSwitch{ID: bdf, Visible: true})
		case isGPUClass(class, vendor) && (told || r.text("/proc/driver/nvidia/gpus/"+bdf+"/numa_status") != "") && (vendor == vendorNVIDIA || vendor == vendorAMD && !strings.HasPrefix(class, "0x0300") || !told):
			r.gpu(bdf, vendor, device)
		case strings.HasPrefix(class, "0x02") || isEFA(vendor, device) || isSlingshot(vendor, device):
			r.nic(bdf, vendor, device)
		}
	}
}

// walk finds PCI devices below a directory where /sys/bus is not there.
func (r *sysReader) walk(dir string, depth int) {
	for _, name := range r.names(dir) {
		if bdf, err := ParseBDF(name); err == nil && strings.Count(name, ":") == 2 && depth < maxDepth {
			r.dirs[bdf] = path.Join(dir, name)
			r.walk(path.Join(dir, name), depth+1)
		}
	}
}

// add puts a device and everything above it into the node's list and returns its index.
func (r *sysReader) add(bdf string) int {
	if i, ok := r.at[bdf]; ok {
		return i
	}
	dir := r.dirs[bdf]
	parent := -1
	for part := range strings.SplitSeq(path.Dir(dir), "/") {
		if strings.HasPrefix(part, "pci") && strings.Contains(part, ":") {
			i, ok := r.at[part]
			if !ok {
				i = len(r.n.PCI)
				r.at[part] = i
				r.n.PCI = append(r.n.PCI, Device{ID: part, Parent: -1, Kind: KindRoot, Prov: Provenance{"*": FromSysfs}})
			}
			parent = i
		} else if p, err := ParseBDF(part); err == nil && strings.Count(part, ":") == 2 {
			i, ok := r.at[p]
			if !ok {
				if _, known := r.dirs[p]; !known {
					continue
				}
				i = r.device(p, parent)
			}
			r.n.PCI[i].Kind = KindBridge
			parent = i
		}
	}
	return r.device(bdf, parent)
}

func (r *sysReader) device(bdf string, parent int) int {
	dir := r.dirs[bdf]
	d := Device{ID: bdf, Parent: parent, Kind: KindDevice, Class: classText(r.text(dir + "/class")), Prov: Provenance{"*": FromSysfs}}
	d.Vendor, _ = r.number(dir + "/vendor")
	d.Device, _ = r.number(dir + "/device")
	d.SubVendor, _ = r.number(dir + "/subsystem_vendor")
	d.SubDevice, _ = r.number(dir + "/subsystem_device")
	d.Speed, d.Width = r.linkNow(dir)
	d.MaxSpeed, d.MaxWidth = r.linkMax(dir)
	// What a link can is what both of its ends can.
	if up := path.Dir(dir); parent >= 0 && r.n.PCI[parent].Kind != KindRoot {
		if s, w := r.linkMax(up); s > 0 && w > 0 && d.MaxSpeed > 0 {
			d.MaxSpeed, d.MaxWidth = min(d.MaxSpeed, s), min(d.MaxWidth, w)
		}
	}
	d.NUMA = r.numaNode(dir + "/numa_node")
	if d.NUMA == nil || *d.NUMA < 0 {
		if v := r.numaByCPUs(dir); v >= 0 && (d.NUMA == nil) {
			d.NUMA = intp(v)
			d.Prov = d.Prov.with("numa", FromGuess)
		}
	}
	if target, err := r.f.link(dir + "/physfn"); err == nil {
		d.VFOf = path.Base(target)
	}
	i := len(r.n.PCI)
	r.n.PCI = append(r.n.PCI, d)
	r.at[bdf] = i
	return i
}

// numaNode reads a NUMA node's number or -1; nil if the file is not there or has none.
func (r *sysReader) numaNode(p string) *int {
	text := r.text(p)
	if text == "" {
		return nil
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < -1 || v >= maxNUMA {
		r.n.note(p, "%q is not a NUMA node's number: left out", text)
		return nil
	}
	return intp(v)
}

// numaByCPUs finds the node whose CPUs are exactly those near a device.
func (r *sysReader) numaByCPUs(dir string) int {
	set, _, err := ParseCPUMask(r.text(dir + "/local_cpus"))
	if err != nil || len(set) == 0 {
		return -1
	}
	for _, m := range r.n.NUMA {
		node, _, err := ParseCPUMask(r.text(fmt.Sprintf("/sys/devices/system/node/node%d/cpumap", m.ID)))
		if err == nil && len(node) > 0 && slices.Equal(set, node) {
			return m.ID
		}
	}
	return -1
}

func (r *sysReader) linkNow(dir string) (float64, int) {
	w, _ := r.number(dir + "/current_link_width")
	return parseGT(r.text(dir + "/current_link_speed")), lanes(w)
}

func (r *sysReader) linkMax(dir string) (float64, int) {
	w, _ := r.number(dir + "/max_link_width")
	return parseGT(r.text(dir + "/max_link_speed")), lanes(w)
}

// lanes drops widths that are none (0 and 255 stand for "no link").
func lanes(w int) int {
	if w < 1 || w > 32 {
		return 0
	}
	return w
}

func (r *sysReader) gpu(bdf string, vendor, device int) {
	i := r.add(bdf)
	g := GPU{Index: len(r.n.GPUs), BDF: bdf, PCI: i, Dev: len(r.n.GPUs), CUDA: -1, Module: -1, Vendor: vendor, Device: device,
		Prov: Provenance{"*": FromSysfs, "index": FromGuess}}
	proc := "/proc/driver/nvidia/gpus/" + bdf
	for line := range strings.Lines(r.text(proc + "/information")) {
		if v, ok := strings.CutPrefix(line, "Model:"); ok {
			g.Name = strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "GPU UUID:"); ok {
			g.UUID = strings.TrimSpace(v)
		}
	}
	for line := range strings.Lines(r.text(proc + "/numa_status")) {
		if v, ok := strings.CutPrefix(line, "Node:"); ok {
			if id, err := strconv.Atoi(strings.TrimSpace(v)); err == nil && id >= 0 {
				g.MemNode = intp(id)
			}
		}
	}
	if r.n.System.IOMMU == "" {
		switch t := r.text(r.dirs[bdf] + "/iommu_group/type"); {
		case strings.HasPrefix(t, "DMA"):
			r.n.System.IOMMU = "translated"
		case t == "identity":
			r.n.System.IOMMU = "passthrough"
		}
	}
	r.n.GPUs = append(r.n.GPUs, g)
}
