package topology

import (
	"fmt"
	"strings"
)

// What a NIC is good for. Only rails carry data between GPUs; frontend, and candidates in general,
// could, but are slower or of another kind.
const (
	RoleRail     = "rail"
	RoleFrontend = "frontend"        // RDMA, but slower than the rails, on another link layer, or nearest to no GPU
	RoleEthernet = "ethernet"        // no RDMA device
	RoleBridge   = "nvswitch-bridge" // manages the NVSwitches of an HGX board
	RoleVF       = "vf"              // virtual function of a NIC that is visible itself
	RoleDown     = "down"            // no port is active
	RoleBlocked  = "blocked"         // there, but not usable from here
)

// Role is what a NIC is good for, and why.
func (e *Eval) Role(nic int) Role { return e.roles[nic] }

// candidate says whether a NIC could carry data at all.
func (r Role) candidate() bool { return r.Role == RoleRail || r.Role == RoleFrontend }

func (e *Eval) findRoles() []Role {
	n := e.Node
	roles := make([]Role, len(n.NICs))
	blackwell := false
	for i := range n.GPUs {
		blackwell = blackwell || isBlackwellHGX(&n.GPUs[i])
	}
	for i := range n.NICs {
		roles[i] = e.ownRole(&n.NICs[i], blackwell)
	}
	e.roles = roles
	e.frontends(roles)
	e.reach = e.findReach()
	for i := range roles {
		if roles[i].Role == RoleRail && !e.near(i) {
			roles[i] = Role{RoleFrontend, "no GPU is nearest to it"}
		}
	}
	return roles
}

// ownRole is what a NIC is by itself.
func (e *Eval) ownRole(c *NIC, blackwell bool) Role {
	n := e.Node
	switch {
	case c.SwMng:
		return Role{RoleBridge, "its VPD contains SW_MNG: it manages the NVSwitches"}
	case blackwell && c.Vendor == vendorMellanox && c.Device == 0x1021 && e.thin(c):
		return Role{RoleBridge, "a ConnectX-7 of an HGX Blackwell board with a management link, not a data link"}
	case c.VFOf != "":
		for i := range n.NICs {
			if n.NICs[i].BDF == c.VFOf {
				return Role{RoleVF, "a virtual function of " + n.NICs[i].Name}
			}
		}
	}
	if len(c.Ports) > 0 {
		up, states := false, []string{}
		for _, p := range c.Ports {
			up = up || p.State == "ACTIVE" || p.State == ""
			states = append(states, fmt.Sprintf("port %d %s", p.Num, p.State))
		}
		if !up {
			return Role{RoleDown, strings.Join(states, ", ")}
		}
	}
	if c.RDMA == "" && c.PCI >= 0 && strings.HasPrefix(n.PCI[c.PCI].Class, "0x0207") && n.Origin.Kind == FromSysfs {
		return Role{RoleBlocked, "an InfiniBand function without an entry in /sys/class/infiniband: its driver is not loaded, or the container hides it"}
	}
	if c.RDMA == "" && !isEFA(c.Vendor, c.Device) && !isSlingshot(c.Vendor, c.Device) && (n.Origin.Kind == FromHwloc || n.Origin.Kind == FromSysfs) {
		return Role{RoleEthernet, "no RDMA device belongs to it"}
	}
	if c.Openable != nil && !*c.Openable {
		return Role{RoleBlocked, "an RDMA device in sysfs, but /dev/infiniband has no node that can be opened"}
	}
	return Role{RoleRail, ""}
}

// thin says whether a NIC's PCIe link, or its board, is that of a management function: a rail has 25
// GB/s and more.
func (e *Eval) thin(c *NIC) bool {
	if c.PCI < 0 {
		return false
	}
	d := &e.Node.PCI[c.PCI]
	if d.SubVendor == vendorMellanox && d.SubDevice == 0x0087 {
		return true
	}
	gbs := d.GBs
	if speed, width := max(d.Speed, d.MaxSpeed), max(d.Width, d.MaxWidth); gbs == 0 {
		gbs = speed * float64(width) / 8
	}
	return gbs > 0 && gbs < 8
}

// rate is what a NIC's active ports carry, in Mb/s; 0 if unknown.
func (c *NIC) rate() int {
	sum := 0
	for _, p := range c.Ports {
		if p.State == "ACTIVE" || p.State == "" {
			sum += p.Rate
		}
	}
	return sum
}

func (c *NIC) layer() string {
	for _, p := range c.Ports {
		if p.Layer != "" {
			return p.Layer
		}
	}
	return ""
}

// slowest is the least rate of a rail, in Mb/s: what is slower serves management.
const slowest = 10000

// frontends marks the candidates that are not rails: those of a lower rate class than the fastest
// that some GPU is nearest to, and those of the link layer that the minority has.
func (e *Eval) frontends(roles []Role) {
	n := e.Node
	best := 0
	for g := range n.GPUs {
		for _, c := range e.nearest(g, Role.candidate).NICs {
			best = max(best, n.NICs[c].rate())
		}
	}
	layers := map[string]int{}
	for i := range n.NICs {
		c := &n.NICs[i]
		if roles[i].Role != RoleRail {
			continue
		}
		if r := c.rate(); r > 0 && 3*r < 2*best {
			roles[i] = Role{RoleFrontend, fmt.Sprintf("%d Gb/s, the rails have %d", r/1000, best/1000)}
			continue
		}
		if r := c.rate(); r > 0 && r < slowest {
			roles[i] = Role{RoleFrontend, fmt.Sprintf("%g Gb/s: no rail", float64(r)/1000)}
			continue
		}
		if l := c.layer(); l != "" {
			layers[l]++
		}
	}
	main := ""
	for _, l := range []string{"InfiniBand", "Ethernet"} {
		if layers[l] > layers[main] {
			main = l
		}
	}
	for i := range n.NICs {
		if l := n.NICs[i].layer(); roles[i].Role == RoleRail && l != "" && l != main && 2*layers[l] < layers[main] {
			roles[i] = Role{RoleFrontend, fmt.Sprintf("%s, the rails are %s", l, main)}
		}
	}
}
