package topology

import (
	"fmt"
	"strings"
)

// Rail is the r-th rail over all nodes: on each node the NIC that the r-th GPU slot uses first (or
// the k-th that it uses). Rails are matched by position, never by name.
type Rail struct {
	Rail     int        `json:"rail"`
	Members  []RailNode `json:"members"`
	Problems []string   `json:"problems"` // what differs between the nodes
}

// RailNode is a rail's NIC on one node.
type RailNode struct {
	Host  string `json:"host"`
	GPU   int    `json:"gpu"` // index of the first GPU that uses it
	NIC   NICRef `json:"nic"`
	Rate  int    `json:"rate"`
	Layer string `json:"layer"`
	MTU   int    `json:"mtu"`
	Level Level  `json:"level"`
	NUMA  *int   `json:"numa"`
	net   string // subnet prefix
	nic   int
	slots string // of the GPUs whose nearest it is, in order: "2" or "0 1"
	slot  int    // the first of them
}

// Rails matches the rails of all nodes by position and names what differs. A node that lacks one leaves a gap: the
// others keep their places.
func Rails(evals []*Eval) []Rail {
	rails := []Rail{}
	for r, places := range matchRails(evals) {
		rail := Rail{Rail: r, Members: []RailNode{}, Problems: []string{}}
		var missing []string
		for i, at := range places {
			if at == nil {
				missing = append(missing, evals[i].Node.Host)
			} else {
				rail.Members = append(rail.Members, *at)
			}
		}
		if len(missing) > 0 {
			rail.Problems = append(rail.Problems, "missing on "+shorten(missing))
		}
		rail.compare()
		rails = append(rails, rail)
	}
	return rails
}

// compare names the members that differ from the majority.
func (r *Rail) compare() {
	check := func(what string, key func(*RailNode) string) {
		counts := map[string]int{}
		for i := range r.Members {
			if k := key(&r.Members[i]); k != "" {
				counts[k]++
			}
		}
		if len(counts) < 2 {
			return
		}
		usual := ""
		for i := range r.Members {
			if k := key(&r.Members[i]); counts[k] > counts[usual] {
				usual = k
			}
		}
		var odd []string
		for i := range r.Members {
			if k := key(&r.Members[i]); k != "" && k != usual {
				odd = append(odd, fmt.Sprintf("%s (%s)", r.Members[i].Host, k))
			}
		}
		r.Problems = append(r.Problems, fmt.Sprintf("%s differs from %s on %s", what, usual, shorten(odd)))
	}
	check("rate", func(m *RailNode) string {
		if m.Rate == 0 {
			return ""
		}
		return fmt.Sprintf("%d Gb/s", m.Rate/1000)
	})
	check("link layer", func(m *RailNode) string { return m.Layer })
	check("MTU", func(m *RailNode) string {
		if m.MTU == 0 {
			return ""
		}
		return fmt.Sprint(m.MTU)
	})
	if r.shareNetwork() {
		check("subnet", func(m *RailNode) string { return m.net })
	}
	check("distance to its GPU", func(m *RailNode) string {
		if m.Level == LevelUnknown {
			return ""
		}
		return string(m.Level)
	})
	check("NUMA node", func(m *RailNode) string {
		if m.NUMA == nil || *m.NUMA < 0 {
			return ""
		}
		return fmt.Sprint(*m.NUMA)
	})
}

// shareNetwork says whether most members are in one network. Where each has its own, as behind switches that route to
// every host, different ones are right.
func (r *Rail) shareNetwork() bool {
	counts, most, told := map[string]int{}, 0, 0
	for i := range r.Members {
		if net := r.Members[i].net; net != "" {
			counts[net]++
			told++
			most = max(most, counts[net])
		}
	}
	return 2*most > told || r.Members[0].Layer == "InfiniBand"
}

// shorten lists a few names and counts the rest.
func shorten(names []string) string {
	const few = 6
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
