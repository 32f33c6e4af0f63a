package topology

// gpuReach is how near a GPU's nearest rails are.
type gpuReach struct {
	rank int
	some bool // there is a rail, and its distance is told
	own  bool // what is as near as these is a rail of this GPU's
}

// findReach looks at the GPUs' nearest rails. A GPU farther from its rails than most GPUs are, and whose nearest ones
// are nearer to others, lost its own: what else is that far from it is not made a rail by it.
func (e *Eval) findReach() []gpuReach {
	n := e.Node
	all := make([]gpuReach, len(n.GPUs))
	sets := make([][]int, len(n.GPUs))
	least, times := map[int]int{}, map[int]int{}
	for g := range n.GPUs {
		sets[g] = e.nearest(g, func(r Role) bool { return r.Role == RoleRail }).NICs
		if len(sets[g]) == 0 {
			continue
		}
		rank, _ := e.distance(g, sets[g][0])
		all[g] = gpuReach{rank: rank, some: true}
		times[rank]++
		for _, c := range sets[g] {
			if known, ok := least[c]; !ok || rank < known {
				least[c] = rank
			}
		}
	}
	usual := 0
	for rank, k := range times {
		if k > times[usual] || k == times[usual] && rank > usual {
			usual = rank
		}
	}
	for g := range all {
		all[g].own = true
		for _, c := range sets[g] {
			if all[g].rank > usual && least[c] < all[g].rank {
				all[g].own = false
			}
		}
	}
	return all
}

// near says whether a NIC would be a rail of some GPU if it were up and fast: it is as near as that GPU's own rails, or
// nearer. Where no distance is known, and without GPUs, every NIC is.
func (e *Eval) near(nic int) bool {
	told := false
	for g, r := range e.reach {
		rank, ok := e.distance(g, nic)
		if !ok || !r.some {
			continue
		}
		told = true
		if rank < r.rank || rank == r.rank && r.own {
			return true
		}
	}
	return !told
}
