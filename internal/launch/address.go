package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// ownAddress is an address of this machine.
type ownAddress struct {
	device string
	addr   netip.Addr // with its zone, if it is link-local
}

// ownAddresses lists the addresses of interfaces that are up, in the kernel's order.
func ownAddresses() ([]ownAddress, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing this host's interfaces: %w", err)
	}
	var own []ownAddress
	for _, d := range devices {
		if d.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := d.Addrs()
		if err != nil {
			return nil, fmt.Errorf("listing the addresses of %s: %w", d.Name, err)
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue // not IP
			}
			addr := prefix.Addr().Unmap()
			if addr.Is6() && addr.IsLinkLocalUnicast() {
				addr = addr.WithZone(d.Name)
			}
			own = append(own, ownAddress{d.Name, addr})
		}
	}
	return own, nil
}

// loopbackUp refuses a loopback address where nothing passes: one can listen there, but not connect.
func loopbackUp(address string, devices []net.Interface) error {
	if addr, _ := netip.ParseAddr(address); !addr.IsLoopback() {
		return nil
	}
	down := ""
	for _, d := range devices {
		if d.Flags&net.FlagLoopback != 0 {
			if d.Flags&net.FlagUp != 0 {
				return nil
			}
			down = d.Name
		}
	}
	if down == "" {
		return nil
	}
	return fmt.Errorf("the loopback interface %s is down, and nobody can connect to %s: ip link set %s up, in this network namespace", down, address, down)
}

// private reports whether an address means something else, or nothing, on other hosts.
func (o ownAddress) private() bool {
	if o.addr.IsLoopback() || o.addr.IsUnspecified() {
		return true
	}
	// Bridges of containers and virtual machines have the same addresses on every host.
	for _, prefix := range []string{"docker", "virbr", "br-", "cni", "flannel", "veth", "cali", "lxc", "podman"} {
		if strings.HasPrefix(o.device, prefix) {
			return true
		}
	}
	return false
}

// chooser finds the address at which the other nodes reach this one.
type chooser struct {
	own   []ownAddress
	whom  string                                      // by whom an address is wanted, for errors
	route func(to netip.AddrPort) (netip.Addr, error) // the source address of packets to there
}

func newChooser(ctx context.Context) (chooser, error) {
	own, err := ownAddresses()
	return chooser{own: own, route: func(to netip.AddrPort) (netip.Addr, error) { return sourceAddress(ctx, to) }}, err
}

// choose takes, in this order: the first address of the interfaces that were asked for; the first candidate, which is
// what the launcher knows this host by, that is an address of this host; the address from which this host reaches
// its parent. Never one that other hosts have too.
func (c chooser) choose(devices, candidates, parents []string) (netip.Addr, error) {
	if len(devices) > 0 {
		return c.betweenHosts().ofDevices(devices)
	}
	var dropped []string
	for _, text := range candidates {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		i := slices.IndexFunc(c.own, func(o ownAddress) bool { return o.addr.WithZone("") == addr.Unmap().WithZone("") })
		switch {
		case i < 0:
			dropped = append(dropped, text+" is not an address of this host")
		case c.own[i].private():
			dropped = append(dropped, fmt.Sprintf("%s (%s) is one that other hosts have too", text, c.own[i].device))
		default:
			return c.own[i].addr, nil
		}
	}
	for _, p := range parents {
		to, err := netip.ParseAddrPort(p)
		if err != nil {
			continue
		}
		from, err := c.route(to)
		if err != nil {
			dropped = append(dropped, fmt.Sprintf("no route to the head's %s: %v", p, err))
			continue
		}
		if i := slices.IndexFunc(c.own, func(o ownAddress) bool { return o.addr == from }); i >= 0 && !c.own[i].private() {
			return from, nil
		}
		dropped = append(dropped, fmt.Sprintf("the way to the head's %s leaves from %v, which other hosts have too", p, from))
	}
	return netip.Addr{}, fmt.Errorf("no address found at which other hosts reach this one; name the interface with --iface: %s",
		strings.Join(dropped, "; "))
}

// betweenHosts leaves out what every host has for itself. (An address that others have a route to may be at lo, too.)
func (c chooser) betweenHosts() chooser {
	c.whom = " that other hosts reach"
	c.own = slices.DeleteFunc(slices.Clone(c.own), func(o ownAddress) bool { return o.addr.IsLoopback() })
	return c
}

// ofDevices takes the first address of the named interfaces, in the order of the names; those with an IPv4 address
// give that one. Names are compared whole.
func (c chooser) ofDevices(devices []string) (netip.Addr, error) {
	for _, want := range devices {
		var found netip.Addr
		for _, o := range c.own {
			if o.device == want && (!found.IsValid() || found.Is6() && o.addr.Is4()) {
				found = o.addr
			}
		}
		if found.IsValid() {
			return found, nil
		}
	}
	var names []string
	for _, o := range c.own {
		if !slices.Contains(names, o.device) {
			names = append(names, o.device)
		}
	}
	return netip.Addr{}, fmt.Errorf("--iface %s: no such interface here that is up and has an address%s; there are %s",
		strings.Join(devices, ","), c.whom, strings.Join(names, ", "))
}

// sourceAddress asks the kernel's routes; nothing is sent.
func sourceAddress(ctx context.Context, to netip.AddrPort) (netip.Addr, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", to.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = conn.Close() }()
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, errors.New("no address of its own")
	}
	return local.AddrPort().Addr().Unmap(), nil
}

// maxParents bounds the addresses of the head that agents try at the same time.
const maxParents = 16

// reachable lists the addresses at which other hosts may reach this one: those from which it reaches them first.
func (c chooser) reachable(devices []string, hosts []Host, port int) ([]string, error) {
	var found []netip.Addr
	add := func(addr netip.Addr) {
		i := slices.IndexFunc(c.own, func(o ownAddress) bool { return o.addr == addr })
		if i >= 0 && !c.own[i].private() && len(found) < maxParents && !slices.Contains(found, addr) {
			found = append(found, addr)
		}
	}
	if len(devices) > 0 {
		for _, d := range devices {
			for _, o := range c.own {
				if o.device == d {
					add(o.addr)
				}
			}
		}
	}
	if len(found) == 0 {
		for _, h := range hosts {
			for _, text := range h.Candidates {
				if to, err := netip.ParseAddr(text); err == nil {
					if from, err := c.route(netip.AddrPortFrom(to, 9)); err == nil {
						add(from)
					}
				}
			}
		}
		for _, o := range c.own {
			if !o.addr.IsLinkLocalUnicast() { // its zone means nothing on another host
				add(o.addr)
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("this host has no address that other hosts could reach")
	}
	parents := make([]string, 0, len(found))
	for _, addr := range found {
		parents = append(parents, netip.AddrPortFrom(addr.WithZone(""), uint16(port)).String())
	}
	return parents, nil
}
