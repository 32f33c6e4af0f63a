package topology

import "slices"

// Islands are the sets of GPUs that reach each other over NVLink (or xGMI), by index, each sorted by
// PCI address; a GPU without links is one by itself.
func (e *Eval) Islands() [][]int {
	n := e.Node
	seen := make([]bool, len(n.GPUs))
	islands := [][]int{}
	for _, g := range e.bySlot() {
		if seen[g] {
			continue
		}
		island := []int{g}
		seen[g] = true
		for k := 0; k < len(island); k++ {
			for p := range n.GPUs {
				if !seen[p] && e.nv[island[k]][p] > 0 {
					seen[p] = true
					island = append(island, p)
				}
			}
		}
		slices.SortFunc(island, e.gpuOrder)
		for k := range island {
			island[k] = n.GPUs[island[k]].Index
		}
		islands = append(islands, island)
	}
	return islands
}

// bySlot are the GPUs in an order that does not depend on names or numbering: NUMA node, then PCI
// address.
func (e *Eval) bySlot() []int {
	order := make([]int, len(e.Node.GPUs))
	for i := range order {
		order[i] = i
	}
	numa := func(i int) int {
		if m := e.Node.GPUs[i].NUMA; m != nil {
			return *m
		}
		return -1
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if d := numa(a) - numa(b); d != 0 {
			return d
		}
		return e.gpuOrder(a, b)
	})
	return order
}
