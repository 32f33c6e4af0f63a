package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/count"
)

// Severity of a finding.
type Severity string

// Severities: a degraded node is slower or smaller than it should be; a warning may cost speed.
const (
	Degraded Severity = "degraded"
	Warning  Severity = "warning"
)

// Finding is one thing that the health check found.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Node     string   `json:"node"`
	Where    string   `json:"where"`
	What     string   `json:"what"`
	Do       string   `json:"do"`
}

type checkup struct {
	e    *Eval
	list []Finding
}

func (c *checkup) add(s Severity, code, where, do, format string, args ...any) {
	c.list = append(c.list, Finding{code, s, c.e.Node.Host, where, fmt.Sprintf(format, args...), do})
}

// Health checks one node against what its products are known to have and its devices against each
// other. What the source does not tell is not found missing.
func (e *Eval) Health() []Finding {
	c := &checkup{e: e}
	c.links()
	c.fabric()
	c.pcie()
	c.nics()
	c.gpus()
	c.xids()
	c.system()
	c.measured()
	return c.list
}

// links compares NVLinks with the product's number, then with the other GPUs of the node.
func (c *checkup) links() {
	n := c.e.Node
	if !n.Details.NVLinks {
		return
	}
	counts := map[int]int{}
	var told []int
	for i := range n.GPUs {
		// With MIG the fabric manager may turn links off, and instances have no peers.
		if links, ok := c.e.NVLinks(i); ok && len(n.GPUs[i].MIG) == 0 {
			counts[links]++
			told = append(told, i)
		}
	}
	usual := 0
	for links, times := range counts {
		if times > counts[usual] || times == counts[usual] && links > usual {
			usual = links
		}
	}
	const do = "nvidia-smi nvlink -s and dmesg (Xid 74) say which; a dead link needs a GPU reset or service"
	c.selfLinks()
	for _, i := range told {
		g := &n.GPUs[i]
		where := fmt.Sprintf("GPU%d", g.Index)
		links, _ := c.e.NVLinks(i)
		down := 0
		for _, l := range g.Links {
			down += l.Down
		}
		p := productOf(g)
		switch {
		case p != nil && !slices.Contains(p.links, links) && links < p.links[0]:
			c.add(Degraded, "nvlink-count", where, do, "%d NVLinks active, %s has %d", links, p.name, p.links[0])
		case links < usual:
			c.add(Degraded, "nvlink-count", where, do, "%d NVLinks active, %d of %d GPUs have %d", links, counts[usual], len(told), usual)
		case down > 0 && links > 0 && p == nil:
			c.add(Warning, "nvlink-down", where, do, "%d links are not active; how many its board wires is not known", down)
		}
	}
}

// selfLinks finds links that end where they start: a hand-made file, or a driver that is wrong.
func (c *checkup) selfLinks() {
	n := c.e.Node
	what, do := "the topology file is wrong", "correct the target in the file"
	if n.Origin.Kind == FromSysfs {
		what, do = "the driver is wrong", "compare with nvidia-smi nvlink -R; reset the GPU, update the driver"
	}
	for i := range n.GPUs {
		for _, l := range n.GPUs[i].Links {
			if l.Peer == PeerSelf {
				c.add(Degraded, "nvlink-self", fmt.Sprintf("GPU%d", n.GPUs[i].Index), do, "%s end at the GPU itself: %s, peers are not found", count.Of(l.Count, "link"), what)
			}
		}
	}
}

func (c *checkup) fabric() {
	for i := range c.e.Node.GPUs {
		g := &c.e.Node.GPUs[i]
		f := g.Fabric
		if f == nil || f.State == "not-supported" || f.State == "" {
			continue
		}
		where := fmt.Sprintf("GPU%d", g.Index)
		switch {
		case f.State != "completed":
			c.add(Degraded, "fabric-state", where, "start nvidia-fabricmanager (on B200 and later also NVLSM, which needs the ib_umad module) and look into its log", "its NVLink fabric is %s: it has no peers", f.State)
		case !f.ok():
			c.add(Degraded, "fabric-status", where, "look into the fabric manager's log", "the fabric says completed, but with status %q", f.Status)
		}
		if len(f.Health) > 0 {
			c.add(Degraded, "fabric-health", where, "look into the fabric manager's log", "fabric health: %s", strings.Join(f.Health, ", "))
		}
	}
}

// pcie compares links with what both ends can. A GPU that idles at a low speed is not a fault.
func (c *checkup) pcie() {
	n := c.e.Node
	look := func(pci int, where string, idles bool) {
		if pci < 0 {
			return
		}
		d := &n.PCI[pci]
		if d.Width > 0 && d.MaxWidth > d.Width {
			c.add(Degraded, "pcie-width", where, "reseat the card or its riser", "PCIe x%d, both ends can x%d", d.Width, d.MaxWidth)
		}
		if !idles && d.Speed > 0 && d.MaxSpeed > d.Speed {
			c.add(Degraded, "pcie-speed", where, "reseat the card; look for AER errors in dmesg", "PCIe at %g GT/s, both ends can %g", d.Speed, d.MaxSpeed)
		}
	}
	for i := range n.GPUs {
		look(n.GPUs[i].PCI, fmt.Sprintf("GPU%d", n.GPUs[i].Index), true)
	}
	for i := range n.NICs {
		if c.e.roles[i].candidate() {
			look(n.NICs[i].PCI, n.NICs[i].Name, false)
		}
	}
}

// nics compares each NIC with those of its kind and place: the same product, the same port of its card, and a rail's
// place or not. A second port that no card of the kind has cabled is no fault, nor is a card for storage that is slower.
func (c *checkup) nics() {
	n := c.e.Node
	ports := c.e.cardPorts()
	kinds := make([]string, len(n.NICs))
	for i := range n.NICs {
		x := &n.NICs[i]
		kinds[i] = fmt.Sprintf("%04x:%04x %s %d %t", x.Vendor, x.Device, x.Board, ports[i], c.e.near(i))
	}
	up := map[string]map[int]int{}
	for i := range n.NICs {
		if r := n.NICs[i].rate(); r > 0 && c.e.roles[i].candidate() {
			if up[kinds[i]] == nil {
				up[kinds[i]] = map[int]int{}
			}
			up[kinds[i]][r]++
		}
	}
	for i := range n.NICs {
		x := &n.NICs[i]
		rates := up[kinds[i]]
		usual, alive := 0, 0
		for r, times := range rates {
			alive += times
			if times > rates[usual] {
				usual = r
			}
		}
		switch {
		case c.e.roles[i].Role == RoleDown && alive > 0 && x.Vendor != 0:
			sev := Warning
			if c.e.near(i) && (c.e.belowGPU(i) || alive > 1) {
				sev = Degraded
			}
			c.add(sev, "nic-down", x.Name, "check cable, transceiver and switch port", "%s; %d NICs of its kind are up", c.e.roles[i].Why, alive)
		case c.e.roles[i].candidate() && usual > 0 && x.rate() > 0 && x.rate() < usual && rates[usual] > rates[x.rate()]:
			c.add(Degraded, "nic-rate", x.Name, "check cable and transceiver: lanes may be missing", "%d Gb/s, %d NICs of its kind have %d", x.rate()/1000, rates[usual], usual/1000)
		case c.e.roles[i].Role == RoleBlocked:
			c.add(Degraded, "nic-blocked", x.Name, "load the driver (mlx5_ib); in a container, pass /dev/infiniband and the RDMA devices in", "%s", c.e.roles[i].Why)
		}
	}
}

// cardPorts numbers the functions of each card that are ports of it: those in one slot, or, where a virtual machine gives
// each its own, those with one GUID.
func (e *Eval) cardPorts() []int {
	ports := make([]int, len(e.Node.NICs))
	slots, guids := map[string]int{}, map[string]int{}
	for i := range e.Node.NICs {
		x := &e.Node.NICs[i]
		if e.roles[i].Role == RoleVF {
			continue
		}
		if x.PCI >= 0 {
			ports[i] = slots[slot(x.BDF)]
			slots[slot(x.BDF)]++
		}
		if x.GUID != "" {
			ports[i] = max(ports[i], guids[x.GUID])
			guids[x.GUID]++
		}
	}
	return ports
}

// belowGPU says whether a NIC shares a switch with a GPU.
func (e *Eval) belowGPU(nic int) bool {
	for g := range e.Node.GPUs {
		if l, _ := e.NICLevel(g, nic); l == LevelPIX || l == LevelPXB {
			return true
		}
	}
	return false
}

func (c *checkup) gpus() {
	for i := range c.e.Node.GPUs {
		g := &c.e.Node.GPUs[i]
		where := fmt.Sprintf("GPU%d", g.Index)
		if g.Hidden {
			continue
		}
		h := g.Health
		if h == nil {
			continue
		}
		if h.Uncorrected > 0 {
			c.add(Degraded, "gpu-ecc", where, "drain the node and reset the GPU; replace it if it comes back", "%d uncorrected memory errors since the last reset", h.Uncorrected)
		}
		if h.RemapFailed {
			c.add(Degraded, "gpu-remap", where, "replace the GPU", "a memory row could not be remapped")
		} else if h.RemapWaits {
			c.add(Warning, "gpu-remap", where, "reset the GPU when it is idle", "a memory row waits to be remapped")
		}
		if len(h.Throttle) > 0 {
			c.add(Degraded, "gpu-throttle", where, "check cooling and power supplies", "clocks are held down: %s", strings.Join(h.Throttle, ", "))
		}
	}
}

func (c *checkup) system() {
	n := c.e.Node
	s := &n.System
	if len(s.ACS) > 0 {
		c.add(Warning, "acs", strings.Join(s.ACS[:min(4, len(s.ACS))], " "), "turn ACS off for these bridges (BIOS, or setpci)", "%d bridges send peer-to-peer traffic through the CPU", len(s.ACS))
	}
	if s.IOMMU == "translated" {
		c.add(Warning, "iommu", n.Host, "boot with iommu=pt", "the IOMMU translates: peer-to-peer is slow, or data is dropped")
	}
	rails := slices.ContainsFunc(c.e.roles, func(r Role) bool { return r.Role == RoleRail })
	if n.Origin.Kind == FromSysfs && rails && s.Driver != "" && s.PeerMem == "" && !s.dmaBuf() {
		c.add(Warning, "gdr", n.Host, "modprobe nvidia_peermem, or use the open driver module with Linux 5.12 or newer", "NICs cannot read GPU memory: neither nvidia_peermem is loaded nor can the driver export dma-buf; data goes through the host")
	}
	efa := slices.ContainsFunc(n.NICs, func(nic NIC) bool { return isEFA(nic.Vendor, nic.Device) })
	if efa && !s.provides("efa") {
		c.add(Warning, "libfabric", n.Host, "install the EFA build of libfabric, and put it first in LD_LIBRARY_PATH", "there are EFA NICs, but the libfabric that is found has no efa provider")
	}
	for _, k := range []string{"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_IB_HCA"} {
		if v := s.Env[k]; v != "" {
			c.add(Warning, "override", k, "unset it, or compare: mkrun topo --expect FILE", "%s=%s overrides what NCCL finds; it may be older than the hardware", k, v)
		}
	}
	hidden := 0
	for i := range n.GPUs {
		if n.GPUs[i].Hidden {
			hidden++
		}
	}
	if hidden > 0 {
		c.add(Warning, "hidden", n.Host, "give the container all GPUs of the job (peers must see each other)", "%d of %d GPUs are hidden by isolation: links to them exist, but cannot be used from here", hidden, len(n.GPUs))
	}
}

// dmaBuf says whether GPU memory can be exported as dma-buf: Linux 5.12 and the open driver module.
func (s *System) dmaBuf() bool {
	var major, minor int
	if _, err := fmt.Sscanf(s.Kernel, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return s.Open && (major > 5 || major == 5 && minor >= 12)
}
