package topology

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// nic adds a network function.
func (r *sysReader) nic(bdf string, vendor, device int) int {
	i := r.add(bdf)
	dir := r.dirs[bdf]
	c := NIC{BDF: bdf, PCI: i, Vendor: vendor, Device: device, VFOf: r.n.PCI[i].VFOf, Net: r.names(dir + "/net"), Prov: Provenance{"*": FromSysfs}}
	c.Name = shortBDF(bdf)
	if len(c.Net) > 0 {
		c.Name = c.Net[0]
	}
	if vendor == vendorMellanox && device == 0x1021 {
		vpd, err := r.f.read(dir + "/vpd")
		c.SwMng = err == nil && strings.Contains(vpd, "SW_MNG")
	}
	r.n.NICs = append(r.n.NICs, c)
	return len(r.n.NICs) - 1
}

// rdma adds what /sys/class/infiniband tells: that, and not a name, makes a device an RDMA device.
func (r *sysReader) rdma() {
	const class = "/sys/class/infiniband"
	uverbs := r.uverbs()
	for _, name := range r.names(class) {
		dir := path.Join(class, name)
		if target, err := r.f.link(dir); err == nil {
			dir = path.Join(class, target)
		}
		bdf := lastBDF(dir)
		if bdf == "" {
			if target, err := r.f.link(dir + "/device"); err == nil {
				bdf = lastBDF(path.Join(dir, target))
			}
		}
		at := slices.IndexFunc(r.n.NICs, func(c NIC) bool { return c.BDF == bdf && c.RDMA == "" && bdf != "" })
		switch {
		case at >= 0:
		case r.dirs[bdf] != "":
			vendor, _ := r.number(r.dirs[bdf] + "/vendor")
			device, _ := r.number(r.dirs[bdf] + "/device")
			at = r.nic(bdf, vendor, device)
		default:
			where := bdf
			if where == "" {
				where = name
			}
			r.n.NICs = append(r.n.NICs, NIC{BDF: where, PCI: -1, Prov: Provenance{"*": FromSysfs}})
			at = len(r.n.NICs) - 1
		}
		c := &r.n.NICs[at]
		c.Name, c.RDMA = name, name
		c.GUID = r.text(dir + "/sys_image_guid")
		if c.GUID == "" {
			c.GUID = r.text(dir + "/node_guid")
		}
		c.Board, c.Firmware = r.text(dir+"/board_id"), r.text(dir+"/fw_ver")
		for _, p := range r.names(dir + "/ports") {
			if num, err := strconv.Atoi(p); err == nil {
				c.Ports = append(c.Ports, r.port(path.Join(dir, "ports", p), num, c.Net))
			}
		}
		if node, ok := uverbs[name]; ok {
			if can, err := r.f.writable("/dev/infiniband/" + node); err == nil {
				c.Openable = &can
			}
		}
	}
}

// uverbs maps RDMA devices to their nodes in /dev/infiniband.
func (r *sysReader) uverbs() map[string]string {
	const class = "/sys/class/infiniband_verbs"
	nodes := map[string]string{}
	for _, name := range r.names(class) {
		if dev := r.text(path.Join(class, name, "ibdev")); dev != "" {
			nodes[dev] = name
		}
	}
	return nodes
}

func (r *sysReader) port(dir string, num int, nets []string) Port {
	p := Port{Num: num, State: afterColon(r.text(dir + "/state")), Phys: afterColon(r.text(dir + "/phys_state")), Layer: r.text(dir + "/link_layer")}
	rate := r.text(dir + "/rate")
	var ok bool
	if p.Rate, p.Width, ok = parseRate(rate); !ok && rate != "" {
		r.n.note(dir+"/rate", "%q is not a rate such as 400 Gb/sec (4X NDR): left out", rate)
	}
	const few = 4 // the table has hundreds of empty entries
	for k := range few {
		gid := r.text(dir + "/gids/" + strconv.Itoa(k))
		if gid == "" || strings.Trim(gid, "0:") == "" {
			continue
		}
		p.GIDs = append(p.GIDs, GID{Index: k, GID: gid, Type: r.text(dir + "/gid_attrs/types/" + strconv.Itoa(k)), Net: r.text(dir + "/gid_attrs/ndevs/" + strconv.Itoa(k))})
	}
	if len(nets) > 0 {
		p.MTU, _ = r.number("/sys/class/net/" + nets[0] + "/mtu")
	}
	return p
}

// afterColon is the word of "4: ACTIVE".
func afterColon(s string) string {
	if _, word, ok := strings.Cut(s, ":"); ok {
		return strings.TrimSpace(word)
	}
	return s
}

// parseRate reads "400 Gb/sec (4X NDR)" into Mb/s and what is in the brackets.
func parseRate(s string) (mbps int, width string, ok bool) {
	word, rest, _ := strings.Cut(s, " ")
	v, err := strconv.ParseFloat(word, 64)
	if err != nil || !within(v*1000, maxRate) {
		return 0, "", false
	}
	if _, inner, ok := strings.Cut(rest, "("); ok {
		width = strings.TrimSuffix(inner, ")")
	}
	return int(v * 1000), width, true
}

// lastBDF is the last PCI address in a path.
func lastBDF(p string) string {
	found := ""
	for part := range strings.SplitSeq(p, "/") {
		if bdf, err := ParseBDF(part); err == nil && strings.Count(part, ":") == 2 {
			found = bdf
		}
	}
	return found
}

// links looks at the bridges above GPUs and NICs: those with ACS send peer-to-peer traffic to the
// root. Reading the extended configuration space takes root's rights.
func (r *sysReader) links() {
	for i := range r.n.PCI {
		d := &r.n.PCI[i]
		if d.Kind != KindBridge || !strings.HasPrefix(d.Class, "0x0604") {
			continue
		}
		config, err := r.f.read(r.dirs[d.ID] + "/config")
		if err == nil && acsRedirects([]byte(config)) {
			r.n.System.ACS = append(r.n.System.ACS, d.ID)
		}
	}
}

// acsRedirects walks the extended capabilities of a configuration space for Access Control Services
// with request or completion redirect on.
func acsRedirects(config []byte) bool {
	const first, acs = 0x100, 0x000d
	at := first
	for range 64 {
		if at < first || at+8 > len(config) {
			return false
		}
		head := uint32(config[at]) | uint32(config[at+1])<<8 | uint32(config[at+2])<<16 | uint32(config[at+3])<<24
		if head == 0 || head == 0xffffffff {
			return false
		}
		if head&0xffff == acs {
			control := uint16(config[at+6]) | uint16(config[at+7])<<8
			return control&(1<<2|1<<3) != 0
		}
		at = int(head >> 20)
	}
	return false
}
