package topology

import (
	"net"
	"net/netip"
)

// addresses are those of the network interfaces that are up, without link-local ones; IPv4 first.
func addresses() map[string][]string {
	devices, err := net.Interfaces()
	if err != nil {
		return nil
	}
	found := map[string][]string{}
	for _, d := range devices {
		addrs, err := d.Addrs()
		if err != nil || d.Flags&net.FlagUp == 0 || d.Flags&net.FlagLoopback != 0 {
			continue
		}
		var v4, v6 []string
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			switch {
			case err != nil || p.Addr().IsLinkLocalUnicast():
			case p.Addr().Is4():
				v4 = append(v4, p.String())
			default:
				v6 = append(v6, p.String())
			}
		}
		if all := append(v4, v6...); len(all) > 0 {
			found[d.Name] = all
		}
	}
	return found
}

// applyAddresses hands the addresses of interfaces to the ports behind them.
func (n *Node) applyAddresses(of map[string][]string) {
	for i := range n.NICs {
		c := &n.NICs[i]
		for k := range c.Ports {
			if len(c.Net) > 0 {
				c.Ports[k].Addrs = of[c.Net[0]]
			}
		}
	}
}

// subnet is what a port's peers on the same rail share: of InfiniBand the prefix of its first address, of Ethernet the
// network of its interface's first. "" if it is not known.
func (p *Port) subnet() string {
	if p.Layer == "InfiniBand" {
		for _, g := range p.GIDs {
			if a, err := netip.ParseAddr(g.GID); err == nil && a.Is6() {
				return a.WithZone("").StringExpanded()[:len("fe80:0000:0000:0000")]
			}
		}
		return ""
	}
	for _, text := range p.Addrs {
		if network, err := netip.ParsePrefix(text); err == nil {
			return network.Masked().String()
		}
	}
	return ""
}
