package topology

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/pattern"
)

var (
	uuidText = pattern.Of(`\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b`)
	gidText  = pattern.Of(`\b(?:[0-9a-fA-F]{4}:){7}[0-9a-fA-F]{4}\b`)
	guidText = pattern.Of(`\b(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4}\b`)
	macText  = pattern.Of(`\b(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}\b`)
)

// pseudonyms replaces identifying words, equal ones by equal ones.
type pseudonyms struct {
	seen map[string]string
	n    map[string]int
}

func (p *pseudonyms) get(kind, word string, make func(i int) string) string {
	key := kind + " " + strings.ToLower(word)
	if s, ok := p.seen[key]; ok {
		return s
	}
	p.n[kind]++
	p.seen[key] = make(p.n[kind])
	return p.seen[key]
}

func (p *pseudonyms) uuid(s string) string {
	return p.get("uuid", s, func(i int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", i) })
}

// guid keeps the last byte: the functions of one card keep a common prefix.
func (p *pseudonyms) guid(s string) string {
	if strings.Trim(s, "0:") == "" {
		return s
	}
	card := p.get("guid", s[:len(s)-2], func(i int) string { return fmt.Sprintf("0200:00ff:%04x:%02x", i>>8&0xffff, i&0xff) })
	return card + s[len(s)-2:]
}

// gid keeps the well-known prefixes of link-local and IPv4-mapped addresses.
func (p *pseudonyms) gid(s string) string {
	groups := strings.Split(s, ":")
	if strings.Trim(strings.Join(groups[:5], ""), "0") == "" && strings.EqualFold(groups[5], "ffff") {
		v4 := p.get("ipv4", s, func(i int) string { return fmt.Sprintf("0a00:%04x", i&0xffff) })
		return strings.Join(groups[:6], ":") + ":" + v4
	}
	prefix := strings.Join(groups[:4], ":")
	if !strings.EqualFold(prefix, "fe80:0000:0000:0000") && strings.Trim(prefix, "0:") != "" {
		prefix = p.get("subnet", prefix, func(i int) string { return fmt.Sprintf("fec0:0000:0000:%04x", i&0xffff) })
	}
	return prefix + ":" + p.guid(strings.Join(groups[4:], ":"))
}

func (p *pseudonyms) mac(s string) string {
	return p.get("mac", s, func(i int) string { return fmt.Sprintf("02:00:00:%02x:%02x:%02x", i>>16&0xff, i>>8&0xff, i&0xff) })
}

// text replaces everything that identifies a machine.
func (p *pseudonyms) text(s string) string {
	s = uuidText().ReplaceAllStringFunc(s, p.uuid)
	s = gidText().ReplaceAllStringFunc(s, p.gid)
	s = guidText().ReplaceAllStringFunc(s, func(g string) string {
		if strings.HasPrefix(g, "0200:00ff:") || strings.HasPrefix(g, "fe80:") || strings.HasPrefix(g, "fec0:") || strings.HasPrefix(g, "0000:0000:0000") {
			return g // a part of what was replaced already
		}
		return p.guid(g)
	})
	return macText().ReplaceAllStringFunc(s, p.mac)
}

// pseudonymise returns what was captured with every name of the machine, UUID, GUID, GID, serial
// number and MAC replaced, and with files cut to what discovery reads in them.
func pseudonymise(c captured, m *memFiles) (captured, *memFiles) {
	p := &pseudonyms{map[string]string{}, map[string]int{}}
	out := newMemFiles()
	out.links, out.deny, out.empty = m.links, m.deny, m.empty
	for _, name := range slices.Sorted(maps.Keys(m.files)) { // in order, so that the same machine gives the same snapshot
		s := m.files[name]
		switch base := path.Base(name); {
		case name == "/proc/sys/kernel/hostname":
			s = "node0\n"
		case name == "/proc/cpuinfo":
			s = cutCPUInfo(s)
		case name == "/proc/self/status":
			s = keepLines(s, "Cpus_allowed_list:")
		case name == "/proc/driver/nvidia/version":
			s = map[bool]string{true: "Open Kernel Module"}[strings.Contains(s, "Open Kernel Module")] // the rest names who built it
		case name == "/etc/nccl.conf":
			continue // its settings that count are in the environment that was captured
		case base == "vpd":
			s = map[bool]string{true: "SW_MNG"}[strings.Contains(s, "SW_MNG")]
		case base == "config":
			s = withoutSerial(s)
		case strings.HasSuffix(name, "/information"):
			s = p.text(keepLines(s, "Model:", "GPU UUID:"))
		default:
			s = p.text(s)
		}
		out.files[name] = s
	}
	env := map[string]string{}
	for k, v := range c.Env {
		if strings.HasSuffix(k, "_FILE") {
			v = path.Base(v)
		}
		env[k] = p.text(v)
	}
	c.Env = env
	c.Vendor = c.Vendor.pseudonymised(p)
	c.Addrs = p.networks(c.Addrs)
	for i := range c.NVML.GPUs {
		g := &c.NVML.GPUs[i]
		if g.Serial != "" {
			g.Serial = p.get("serial", g.Serial, func(i int) string { return fmt.Sprintf("SN%09d", i) })
		}
		g.UUID = p.text(g.UUID)
		if g.Fabric != nil && g.Fabric.Cluster != "" {
			f := *g.Fabric
			f.Cluster = p.get("cluster", f.Cluster, func(i int) string { return fmt.Sprintf("%032x", i) })
			g.Fabric = &f
		}
		for k := range g.MIG {
			g.MIG[k].UUID = p.text(g.MIG[k].UUID)
		}
	}
	return c, out
}

// cutCPUInfo keeps what is read of /proc/cpuinfo.
func cutCPUInfo(s string) string {
	var b strings.Builder
	for _, k := range []string{"vendor_id", "cpu family", "model", "cpu"} {
		if v := cpuField(s, k); v != "" {
			fmt.Fprintf(&b, "%s\t: %s\n", k, v)
		}
	}
	if strings.Contains(" "+cpuField(s, "flags")+" ", " hypervisor ") {
		b.WriteString("flags\t: hypervisor\n")
	}
	return b.String()
}

func keepLines(s string, prefixes ...string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		for _, p := range prefixes {
			if strings.HasPrefix(line, p) {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

// withoutSerial zeroes the Device Serial Number capability of a configuration space.
func withoutSerial(s string) string {
	const first, serial = 0x100, 0x0003
	config := []byte(s)
	at := first
	for range 64 {
		if at < first || at+12 > len(config) {
			break
		}
		head := uint32(config[at]) | uint32(config[at+1])<<8 | uint32(config[at+2])<<16 | uint32(config[at+3])<<24
		if head == 0 || head == 0xffffffff {
			break
		}
		if head&0xffff == serial {
			clear(config[at+4 : at+12])
		}
		at = int(head >> 20)
	}
	return string(config)
}

// pseudonymised is the same without the folder it was in, and without what identifies the machine it was made on.
func (v *vendorTopology) pseudonymised(p *pseudonyms) *vendorTopology {
	if v == nil {
		return nil
	}
	out := *v
	dir := path.Dir(v.File) + "/"
	out.File, out.Origin.File = path.Base(v.File), path.Base(v.File)
	out.Notes = nil
	for _, n := range v.Notes {
		out.Notes = append(out.Notes, Note{p.text(strings.TrimPrefix(n.Where, dir)), p.text(n.What)})
	}
	return &out
}

// networks replaces IPv4 addresses so that those of one network stay in one; others are left out.
func (p *pseudonyms) networks(of map[string][]string) map[string][]string {
	out := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		for _, text := range of[name] {
			a, err := netip.ParsePrefix(text)
			if err != nil || !a.Addr().Is4() || a.Bits() < 9 {
				continue
			}
			host := uint32(1)<<(32-a.Bits()) - 1 // mask of the part that numbers hosts
			out[name] = append(out[name], p.get("address", text, func(i int) string {
				var network uint32
				_, _ = fmt.Sscan(p.get("network", a.Masked().String(), func(i int) string { return fmt.Sprint(i) }), &network)
				word := 10<<24 | (network<<(32-a.Bits()))&(1<<24-1)&^host | uint32(i)&host
				return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(word >> 24), byte(word >> 16), byte(word >> 8), byte(word)}), a.Bits()).String()
			}))
		}
	}
	return out
}
