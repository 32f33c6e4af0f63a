package topology

import "slices"

// RailNumbers numbers the rails of a node, by NIC, in a way that nodes of the same build agree on without knowing each
// other: by the first GPU slot that is nearest to a rail, and among several of one slot by position. So where a NIC or
// its GPU is missing, the others keep their numbers. Without GPUs they are numbered by position.
func (e *Eval) RailNumbers() map[int]int {
	numbers := map[int]int{}
	rails := e.railsOf()
	if len(rails) == 0 {
		for i, c := range e.railsWhere(func(*NIC) bool { return true }) {
			numbers[c] = i
		}
		return numbers
	}
	count, most := map[int]int{}, 1
	for _, r := range rails {
		count[r.slot]++
		most = max(most, count[r.slot])
	}
	next := map[int]int{}
	for _, r := range rails {
		numbers[r.nic] = r.slot*most + next[r.slot]
		next[r.slot]++
	}
	return numbers
}

// numbersOf are the numbers of NICs; nil if one of them has none.
func numbersOf(numbers map[int]int, nics []int) []int {
	var list []int
	for _, c := range nics {
		n, ok := numbers[c]
		if !ok {
			return nil
		}
		list = append(list, n)
	}
	return list
}

// ProxyCPUs says for each rank of a node, given its NICs' names and the CPUs that it is bound to (none: not bound), where
// the thread that drives those NICs runs best: near them on CPUs that no rank computes on, else anywhere on such CPUs,
// else near them. A set is empty where nothing is known or a rank has no NIC.
func (e *Eval) ProxyCPUs(nics [][]string, bound []CPUSet) []CPUSet {
	allowed, err := ParseCPUList(e.Node.System.Allowed)
	if err != nil {
		allowed = nil
	}
	all := allowed
	var taken CPUSet
	for _, b := range bound {
		taken = append(taken, b...)
	}
	slices.Sort(taken)
	taken = slices.Compact(taken)
	sets := make([]CPUSet, len(nics))
	for i, names := range nics {
		near := e.cpusNear(names)
		if len(all) > 0 && near != nil {
			near = near.intersect(all)
		}
		if len(names) == 0 || len(near) == 0 && len(all) == 0 {
			continue
		}
		if len(near) == 0 {
			near = all
		}
		for _, set := range []CPUSet{near.without(taken), all.without(taken), near} {
			if len(set) > 0 {
				sets[i] = set
				break
			}
		}
	}
	return sets
}

// cpusNear are the CPUs of the NUMA nodes of NICs; nil if none is known.
func (e *Eval) cpusNear(names []string) CPUSet {
	var near CPUSet
	for i := range e.Node.NICs {
		c := &e.Node.NICs[i]
		if c.NUMA == nil || *c.NUMA < 0 || !slices.Contains(names, c.Name) {
			continue
		}
		for _, m := range e.Node.NUMA {
			if cpus, err := ParseCPUList(m.CPUs); err == nil && m.ID == *c.NUMA {
				near = append(near, cpus...)
			}
		}
	}
	slices.Sort(near)
	return slices.Compact(near)
}

// without is a set less another; both are in order.
func (c CPUSet) without(d CPUSet) CPUSet {
	var left CPUSet
	for _, cpu := range c {
		if _, found := slices.BinarySearch(d, cpu); !found {
			left = append(left, cpu)
		}
	}
	return left
}
