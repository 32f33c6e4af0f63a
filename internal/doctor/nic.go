package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// NIC is a network device that may carry data between nodes.
type NIC struct {
	Name  string `json:"name"`  // e.g. "mlx5_0", "eth0"; the PCI address of an EFA without a driver
	Kind  string `json:"kind"`  // "rdma", "efa" or "ethernet"
	State string `json:"state"` // as the kernel says: "ACTIVE", "DOWN", "up"
	Rate  string `json:"rate"`  // e.g. "400 Gb/sec (4X NDR)"; "" when unknown
	PCI   string `json:"pci"`   // "" when not on PCI
}

func (r *Report) nics(h host) {
	efa := map[string]bool{} // by PCI address
	for _, pci := range h.pciDevices(func(vendor, device, _ string) bool {
		return vendor == "0x1d0f" && strings.HasPrefix(device, "0xefa")
	}) {
		efa[pci] = true
	}
	bound := map[string]bool{}
	var usable, down []string
	for _, name := range h.list("sys/class/infiniband") {
		n := NIC{Name: name, Kind: "rdma", State: "DOWN", PCI: h.pciOf("sys/class/infiniband/" + name)}
		if efa[n.PCI] {
			n.Kind = "efa"
			bound[n.PCI] = true
		}
		for _, port := range h.list("sys/class/infiniband/" + name + "/ports") {
			dir := "sys/class/infiniband/" + name + "/ports/" + port
			state := h.read(dir + "/state") // "4: ACTIVE"
			if _, word, ok := strings.Cut(state, ": "); ok {
				state = word
			}
			if state == "ACTIVE" || n.Rate == "" {
				n.State, n.Rate = state, h.read(dir+"/rate")
			}
			if state == "ACTIVE" {
				break
			}
		}
		if n.State == "ACTIVE" {
			usable = append(usable, fmt.Sprintf("%s (%s)", name, describe(n)))
		} else {
			down = append(down, fmt.Sprintf("%s (%s)", name, strings.ToLower(n.State)))
		}
		r.NICs = append(r.NICs, n)
	}
	var unbound []string
	for _, pci := range h.pciDevices(func(string, string, string) bool { return true }) {
		if efa[pci] && !bound[pci] {
			unbound = append(unbound, pci)
			r.NICs = append(r.NICs, NIC{Name: pci, Kind: "efa", State: "no driver", PCI: pci})
		}
	}
	var ethernet []string
	for _, name := range h.list("sys/class/net") {
		if name == "lo" || h.read("sys/class/net/"+name+"/operstate") != "up" {
			continue
		}
		n := NIC{Name: name, Kind: "ethernet", State: "up", PCI: h.pciOf("sys/class/net/" + name)}
		if mbit := h.read("sys/class/net/" + name + "/speed"); mbit != "" && !strings.HasPrefix(mbit, "-") {
			n.Rate = mbit + " Mb/sec"
		}
		ethernet = append(ethernet, name)
		r.NICs = append(r.NICs, n)
	}

	switch {
	case len(usable) > 0:
		r.ok("nic-rdma", "RDMA NICs: %s", strings.Join(usable, ", "))
	case len(down) == 0 && len(unbound) == 0:
		r.ok("nic-rdma", "no RDMA NIC: data between nodes goes over TCP")
	}
	if len(down) > 0 {
		r.bad("nic-rdma-down", Warn, "check cables, switch and subnet manager (ibstat shows the port)", "RDMA NICs that are not active: %s", strings.Join(down, ", "))
	}
	if len(unbound) > 0 {
		r.bad("nic-efa", Warn, "install the EFA driver (modprobe efa)", "EFA devices without a driver: %s", strings.Join(unbound, ", "))
	}
	if len(usable) > 0 {
		if problem := h.verbsAccess(); problem != "" {
			r.bad("nic-access", Warn, "in a container pass --device /dev/infiniband; else check the rdma udev rules", "%s", problem)
		}
	}
	if len(ethernet) == 0 {
		r.bad("nic-tcp", Warn, "this is fine for jobs on this machine alone; for several machines bring an interface up", "no network interface is up besides loopback")
	} else {
		r.ok("nic-tcp", "network interfaces that are up: %s", strings.Join(ethernet, ", "))
	}
}

func describe(n NIC) string {
	if n.Kind == "efa" {
		return "EFA"
	}
	return n.Rate
}

// verbsAccess says why user programs cannot reach the RDMA NICs; "" when they can.
func (h host) verbsAccess() string {
	devices, err := filepath.Glob(filepath.Join(h.root, "dev/infiniband/uverbs*"))
	if err != nil || len(devices) == 0 {
		return "there is no /dev/infiniband/uverbs*: programs cannot reach the RDMA NICs"
	}
	f, err := os.OpenFile(devices[0], os.O_RDWR, 0)
	if err != nil {
		return "programs cannot reach the RDMA NICs: " + err.Error()
	}
	_ = f.Close()
	return ""
}

// pciDevices returns the addresses of the devices that want accepts, sorted.
func (h host) pciDevices(want func(vendor, device, class string) bool) []string {
	const bus = "sys/bus/pci/devices"
	var found []string
	for _, addr := range h.list(bus) {
		dir := bus + "/" + addr
		if want(h.read(dir+"/vendor"), h.read(dir+"/device"), h.read(dir+"/class")) {
			found = append(found, addr)
		}
	}
	return found
}

// pciOf follows a class device to its PCI address; "" when it has none.
func (h host) pciOf(class string) string {
	target, err := filepath.EvalSymlinks(filepath.Join(h.root, class, "device"))
	if err != nil {
		return ""
	}
	addr := filepath.Base(target)
	if strings.Count(addr, ":") != 2 {
		return ""
	}
	return addr
}
