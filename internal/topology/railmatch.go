package topology

import (
	"fmt"
	"slices"
	"strings"
)

// railsOf lists a node's rails in the order of its GPU slots. A rail belongs to the GPUs that are nearest to it: one
// that lost its own NIC and takes a neighbour's is no place of that rail.
func (e *Eval) railsOf() []RailNode { return e.railsAt(nil) }

// railsAt numbers the slots as another node's GPUs are, by PCI address, where this node has fewer.
func (e *Eval) railsAt(like *Eval) []RailNode {
	uses, order := e.Uses(), e.bySlot()
	slots := e.slotNumbers(order, like)
	owners := e.railOwners(uses, order)
	var rails []RailNode
	seen := map[int]bool{}
	for _, g := range order {
		for _, c := range uses[g].NICs {
			if seen[c] || !slices.Contains(owners[c], g) {
				continue
			}
			seen[c] = true
			nic := &e.Node.NICs[c]
			r := RailNode{Host: e.Node.Host, GPU: e.Node.GPUs[g].Index, NIC: NICRef{nic.Name, nic.BDF}, Rate: nic.rate(), Layer: nic.layer(), Level: uses[g].Near.Level, NUMA: nic.NUMA, nic: c, slot: slots[owners[c][0]]}
			var numbers []string
			for _, o := range owners[c] {
				numbers = append(numbers, fmt.Sprint(slots[o]))
			}
			r.slots = strings.Join(numbers, " ")
			for _, p := range nic.Ports {
				r.MTU = max(r.MTU, p.MTU)
				if r.net == "" {
					r.net = p.subnet()
				}
			}
			rails = append(rails, r)
		}
	}
	return rails
}

// railOwners are, for each rail, the GPUs that are nearest to it among those that have nothing nearer.
func (e *Eval) railOwners(uses []Use, order []int) map[int][]int {
	owners, least := map[int][]int{}, map[int]int{}
	for _, g := range order {
		for _, c := range uses[g].Near.NICs {
			rank, _ := e.distance(g, c)
			switch known, ok := least[c]; {
			case !ok || rank < known:
				least[c], owners[c] = rank, []int{g}
			case rank == known:
				owners[c] = append(owners[c], g)
			}
		}
	}
	return owners
}

// slotNumbers numbers the GPUs by their place in order. Where a node has fewer GPUs than another, at addresses that the
// other has, too, they are numbered as there: one that fell off the bus does not move the others.
func (e *Eval) slotNumbers(order []int, like *Eval) map[int]int {
	slots := map[int]int{}
	for slot, g := range order {
		slots[g] = slot
	}
	if like == nil || len(like.Node.GPUs) <= len(order) {
		return slots
	}
	at := map[string]int{}
	for slot, g := range like.bySlot() {
		at[like.Node.GPUs[g].BDF] = slot
	}
	there := map[int]int{}
	for _, g := range order {
		slot, ok := at[e.Node.GPUs[g].BDF]
		if !ok || e.Node.GPUs[g].BDF == "" {
			return slots
		}
		there[g] = slot
	}
	return there
}

// matchRails says for each rail which NIC it is on each node, nil where the node has none. The places are those of the
// node with the most rails and GPUs (of those the first with the commonest list), and any that only others have.
func matchRails(evals []*Eval) [][]*RailNode {
	if len(evals) == 0 {
		return nil
	}
	lists := make([][]RailNode, len(evals))
	keys := make([]string, len(evals))
	count := map[string]int{}
	ref := 0
	for i, e := range evals {
		lists[i] = e.railsOf()
		var key strings.Builder
		for _, r := range lists[i] {
			key.WriteString(r.slots + "/" + r.NIC.BDF + " ")
		}
		keys[i] = key.String()
		count[keys[i]]++
	}
	for i := range evals {
		a, b := lists[i], lists[ref]
		more := len(a) - len(b)
		if more == 0 {
			more = len(evals[i].Node.GPUs) - len(evals[ref].Node.GPUs)
		}
		if more > 0 || more == 0 && count[keys[i]] > count[keys[ref]] {
			ref = i
		}
	}
	m := &railMatch{evals: evals, ref: ref}
	for i := range evals {
		if len(evals[i].Node.GPUs) < len(evals[ref].Node.GPUs) {
			lists[i] = evals[i].railsAt(evals[ref])
		}
	}
	for r := range lists[ref] {
		m.insert(r, ref, &lists[ref][r])
	}
	for i := range lists {
		if i != ref {
			m.add(i, lists[i])
		}
	}
	return m.places
}

// railNumbers are the numbers of the rails over all nodes, for each node by NIC.
func railNumbers(evals []*Eval) []map[int]int {
	numbers := make([]map[int]int, len(evals))
	for i := range numbers {
		numbers[i] = map[int]int{}
	}
	for r, places := range matchRails(evals) {
		for i, at := range places {
			if at != nil {
				numbers[i][at.nic] = r
			}
		}
	}
	return numbers
}

// railMatch collects the places of rails.
type railMatch struct {
	evals  []*Eval
	ref    int
	places [][]*RailNode // by rail, then node
}

// first is a place's rail on some node.
func (m *railMatch) first(place int) *RailNode {
	if r := m.places[place][m.ref]; r != nil {
		return r
	}
	return m.places[place][slices.IndexFunc(m.places[place], func(r *RailNode) bool { return r != nil })]
}

func (m *railMatch) insert(at, node int, r *RailNode) {
	place := make([]*RailNode, len(m.evals))
	place[node] = r
	m.places = slices.Insert(m.places, at, place)
}

// add puts one node's rails into their places: those of the same GPU slots, and among several of the same slots by
// order, or by PCI address where one is known to lack some. Nodes that are built in another way, so that slots share
// rails which elsewhere have their own, are matched by order alone.
func (m *railMatch) add(node int, list []RailNode) {
	if !m.sameBuild(list) {
		for r := range list {
			if r == len(m.places) {
				m.insert(r, node, &list[r])
				continue
			}
			m.places[r][node] = &list[r]
		}
		return
	}
	groups := map[string][]*RailNode{}
	for r := range list {
		groups[list[r].slots] = append(groups[list[r].slots], &list[r])
	}
	for r := range list {
		if group := groups[list[r].slots]; group != nil {
			m.addGroup(node, group)
			delete(groups, list[r].slots)
		}
	}
}

// sameBuild says whether the slots that share rails are the same ones.
func (m *railMatch) sameBuild(list []RailNode) bool {
	shared := map[string]string{}
	for i := range m.places {
		slots := m.first(i).slots
		for s := range strings.FieldsSeq(slots) {
			shared[s] = slots
		}
	}
	for i := range list {
		for s := range strings.FieldsSeq(list[i].slots) {
			if have, ok := shared[s]; ok && have != list[i].slots {
				return false
			}
		}
	}
	return true
}

// addGroup places the rails of the same slots.
func (m *railMatch) addGroup(node int, group []*RailNode) {
	var places []int
	at := map[string]int{}
	for i := range m.places {
		if r := m.first(i); r.slots == group[0].slots {
			places = append(places, i)
			at[r.NIC.BDF] = i
		}
	}
	var more []*RailNode
	byAddress := m.byAddress(node, group, at, len(places))
	for k, r := range group {
		place, ok := at[r.NIC.BDF]
		if !byAddress {
			if ok = k < len(places); ok {
				place = places[k]
			}
		}
		if ok && m.places[place][node] == nil {
			m.places[place][node] = r
		} else {
			more = append(more, r)
		}
	}
	for _, r := range more {
		next := len(m.places)
		for i := range m.places {
			f := m.first(i)
			if f.slot > r.slot || f.slots == r.slots && compareBDF(f.NIC.BDF, r.NIC.BDF) > 0 {
				next = i
				break
			}
		}
		m.insert(next, node, r)
	}
}

// byAddress says whether PCI addresses tell the places of a group: some are the same, and either the numbers differ or
// an address that only one of the nodes uses as a rail is a NIC of the other, too.
func (m *railMatch) byAddress(node int, group []*RailNode, at map[string]int, places int) bool {
	mine, same, other := map[string]bool{}, false, false
	for _, r := range group {
		if _, err := ParseBDF(r.NIC.BDF); err != nil {
			return false // a name
		}
		mine[r.NIC.BDF] = true
		_, ok := at[r.NIC.BDF]
		same = same || ok
		other = other || !ok && m.evals[m.ref].hasNIC(r.NIC.BDF)
	}
	for bdf := range at {
		other = other || !mine[bdf] && m.evals[node].hasNIC(bdf)
	}
	return same && (other || len(group) != places)
}

func (e *Eval) hasNIC(bdf string) bool {
	return slices.ContainsFunc(e.Node.NICs, func(c NIC) bool { return c.BDF == bdf })
}
