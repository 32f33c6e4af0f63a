package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// roce is the usual machine with Ethernet rails, its addresses as told.
func roce(addr func(nic int) string) *Node {
	h := h200()
	for name, text := range h.files.files {
		if strings.HasSuffix(name, "/link_layer") && text == "InfiniBand\n" {
			h.files.files[name] = "Ethernet\n"
		}
	}
	c := h.captured()
	c.Addrs = map[string][]string{}
	n := assemble(h.files, c)
	for i := range n.NICs {
		n.NICs[i].Net = []string{fmt.Sprintf("eth%d", i)}
		c.Addrs[n.NICs[i].Net[0]] = []string{addr(i)}
	}
	n.applyAddresses(c.Addrs)
	return n
}

func TestRailsInAnotherNetwork(t *testing.T) {
	problems := func(nodes ...*Node) []string {
		var evals []*Eval
		for i, n := range nodes {
			n.Host = fmt.Sprintf("n%d", i)
			evals = append(evals, NewEval(n))
		}
		var all []string
		for _, r := range Rails(evals) {
			all = append(all, r.Problems...)
		}
		return all
	}
	same := func(host int) *Node {
		return roce(func(nic int) string { return fmt.Sprintf("10.7.%d.%d/24", nic, host) })
	}
	if p := problems(same(1), same(2), same(3)); len(p) != 0 {
		t.Errorf("rails in one network each: %q", p)
	}
	odd := roce(func(nic int) string {
		if nic == 2 {
			return "10.7.99.3/24"
		}
		return fmt.Sprintf("10.7.%d.3/24", nic)
	})
	if p := problems(same(1), same(2), odd); !slices.Equal(p, []string{"subnet differs from 10.7.2.0/24 on n2 (10.7.99.0/24)"}) {
		t.Errorf("a NIC in another network: %q", p)
	}
	routed := func(host int) *Node {
		return roce(func(nic int) string { return fmt.Sprintf("10.%d.%d.0/31", host, nic) })
	}
	if p := problems(routed(1), routed(2), routed(3)); len(p) != 0 {
		t.Errorf("a network for each link, routed: %q", p)
	}
	mixed := roce(func(nic int) string { return fmt.Sprintf("10.7.%d.4/16", nic) })
	if p := problems(same(1), same(2), mixed); len(p) != 8 {
		t.Errorf("another length of the network: %q", p)
	}
}

func TestSnapshotKeepsNetworksApart(t *testing.T) {
	p := &pseudonyms{map[string]string{}, map[string]int{}}
	secret := map[string][]string{
		"a": {"192.168.77.12/24", "2001:db8::7/64"}, "b": {"192.168.77.13/24"}, "c": {"192.168.78.13/24"}, "d": {"172.16.0.1/31"}, "e": {"172.16.0.0/31"}, "f": {"10.0.0.1/8"},
	}
	out := p.networks(secret)
	network := func(name string) string { return (&Port{Layer: "Ethernet", Addrs: out[name]}).subnet() }
	if network("a") != network("b") || network("a") == network("c") || network("d") != network("e") || network("c") == network("d") || out["a"][0] == out["b"][0] || out["d"][0] == out["e"][0] {
		t.Errorf("%v", out)
	}
	if text := fmt.Sprint(out); strings.Contains(text, "192.168") || strings.Contains(text, "172.16") || strings.Contains(text, "2001") || out["f"] != nil {
		t.Errorf("%v", out)
	}
}

func TestSubnetOfInfiniBand(t *testing.T) {
	for gid, want := range map[string]string{
		"fe80:0000:0000:0001:a088:c203:0067:0010": "fe80:0000:0000:0001", "fe80::1:a088:c203:67:10": "fe80:0000:0000:0001",
		"::1": "0000:0000:0000:0000", "fe80::1%eth0": "fe80:0000:0000:0000", "1.2.3.4": "", "": "", "x": "",
	} {
		if got := (&Port{Layer: "InfiniBand", GIDs: []GID{{GID: gid}}}).subnet(); got != want {
			t.Errorf("%q: %q, want %q", gid, got, want)
		}
	}
}
