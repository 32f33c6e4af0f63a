package topology

import "fmt"

// nvmlState is what the NVIDIA driver library told; it is also what a snapshot keeps of it.
type nvmlState struct {
	Problem string    `json:"problem"` // why there is nothing, "" if it answered
	Driver  string    `json:"driver"`
	InitMS  float64   `json:"init_ms"`
	AskMS   float64   `json:"ask_ms"` // all questions after that
	GPUs    []nvmlGPU `json:"gpus"`
}

// nvmlGPU is a GPU with the link that the driver reports for it.
type nvmlGPU struct {
	GPU
	Gen      int `json:"pcie_gen"`
	Width    int `json:"pcie_width"`
	MaxGen   int `json:"pcie_max_gen"`
	MaxWidth int `json:"pcie_max_width"`
}

// merge puts what NVML told into a node that was read from sysfs. NVML's index becomes the GPU's; a
// GPU that only sysfs shows is hidden here.
func (s *nvmlState) merge(n *Node) {
	n.System.TimingMS, n.System.AskMS = s.InitMS, s.AskMS
	if s.Driver != "" {
		n.System.Driver = s.Driver
	}
	if s.Problem != "" {
		if len(n.GPUs) > 0 {
			n.note("nvml", "the driver library does not answer (%s): NVLinks, UUIDs and health are unknown, GPUs are numbered by PCI address", s.Problem)
		}
		return
	}
	n.Details.NVLinks = true
	told := map[string]*nvmlGPU{}
	for i := range s.GPUs {
		told[s.GPUs[i].BDF] = &s.GPUs[i]
	}
	hidden := len(s.GPUs)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		t, ok := told[g.BDF]
		if !ok {
			if g.Vendor == vendorNVIDIA {
				g.Hidden = true
				g.Index, g.Dev = hidden, -1
				hidden++
			}
			continue
		}
		delete(told, g.BDF)
		numa, mem, pci, device := g.NUMA, g.MemNode, g.PCI, g.Device
		*g = t.GPU
		g.PCI, g.Device, g.NUMA, g.CUDA = pci, device, numa, -1
		g.Vendor = vendorNVIDIA
		if g.MemNode == nil {
			g.MemNode = mem
		}
		g.Prov = Provenance{"*": FromNVML, "pci": FromSysfs, "numa": FromSysfs, "cpus": FromSysfs}
		t.link(&n.PCI[pci])
	}
	for bdf, t := range told {
		g := t.GPU
		g.PCI, g.CUDA, g.Vendor = -1, -1, vendorNVIDIA
		g.Prov = Provenance{"*": FromNVML}
		n.GPUs = append(n.GPUs, g)
		n.note(bdf, "NVML shows this GPU, sysfs does not: its place in the machine is unknown")
	}
	for i := range n.GPUs {
		for k := range n.GPUs[i].Links {
			if l := &n.GPUs[i].Links[k]; l.Peer == PeerSwitch && len(n.NVSwitches) == 0 {
				n.NVSwitches = append(n.NVSwitches, NVSwitch{ID: "nvswitch"})
			}
		}
	}
}

// gtOfGen is GT/s per lane of a PCIe generation.
var gtOfGen = []float64{0, 2.5, 5, 8, 16, 32, 64}

func (t *nvmlGPU) link(d *Device) {
	if t.Gen > 0 && t.Gen < len(gtOfGen) && t.Width > 0 {
		d.Speed, d.Width = gtOfGen[t.Gen], t.Width
		d.Prov = d.Prov.with("speed", FromNVML).with("width", FromNVML)
	}
	if t.MaxGen > 0 && t.MaxGen < len(gtOfGen) && t.MaxWidth > 0 {
		d.MaxSpeed, d.MaxWidth = gtOfGen[t.MaxGen], t.MaxWidth
		d.Prov = d.Prov.with("max_speed", FromNVML).with("max_width", FromNVML)
	}
}

// bundle collects the links of one GPU by target.
type bundle struct {
	links []NVLink
	down  int
}

func (b *bundle) add(l NVLink) {
	for i := range b.links {
		if b.links[i].Target == l.Target && b.links[i].Peer == l.Peer && b.links[i].GBs == l.GBs {
			b.links[i].Count += l.Count
			return
		}
	}
	b.links = append(b.links, l)
}

// done hangs links that are down on the first bundle: where they would lead is not known.
func (b *bundle) done() []NVLink {
	if b.down > 0 {
		if len(b.links) == 0 {
			b.links = append(b.links, NVLink{Peer: PeerUnknown})
		}
		b.links[0].Down = b.down
	}
	return b.links
}

// bdfOf writes NVML's numbers as a PCI address; "" for the all-ones and all-zeroes of hidden targets.
func bdfOf(domain, bus, device uint32) string {
	if domain >= 0xfffffff || bus > 0xff || device > 0x1f || domain == 0 && bus == 0 && device == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, device)
}
