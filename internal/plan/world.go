package plan

import "fmt"

// World is the set of ranks a plan is made for: PPN[i] ranks on node i.
// Ranks are numbered node by node, then by local rank; nodes may differ in size.
type World struct {
	PPN []int `json:"ppn"`
}

// Uniform returns a world of the given number of nodes with ppn ranks each.
func Uniform(nodes, ppn int) World {
	w := World{PPN: make([]int, nodes)}
	for i := range w.PPN {
		w.PPN[i] = ppn
	}
	return w
}

// maxRanks bounds worlds far above any there is, so that sums and products of ranks stay small numbers.
const maxRanks = 1 << 20

// Validate reports a world with no node, a node with no rank, or more ranks than any machine has.
func (w World) Validate() error {
	if len(w.PPN) == 0 {
		return fmt.Errorf("a world needs at least one node")
	}
	size := 0
	for node, n := range w.PPN {
		if n < 1 {
			return fmt.Errorf("node %d has %d ranks; each node needs at least one", node, n)
		}
		if size += min(n, maxRanks+1); size > maxRanks {
			return fmt.Errorf("up to node %d the world has more than %d ranks", node, maxRanks)
		}
	}
	return nil
}

// Nodes is the number of nodes.
func (w World) Nodes() int { return len(w.PPN) }

// Size is the number of ranks.
func (w World) Size() int {
	size := 0
	for _, n := range w.PPN {
		size += n
	}
	return size
}

// RankAt is the rank with the given local rank on the given node.
func (w World) RankAt(node, local int) int {
	for _, n := range w.PPN[:node] {
		local += n
	}
	return local
}

// Place is the inverse of RankAt.
func (w World) Place(rank int) (node, local int) {
	for node, n := range w.PPN {
		if rank < n {
			return node, rank
		}
		rank -= n
	}
	panic(fmt.Sprintf("plan: rank outside a world of %d ranks", w.Size()))
}

// NodeOf is the node of a rank.
func (w World) NodeOf(rank int) int {
	node, _ := w.Place(rank)
	return node
}

// SameNode reports whether two ranks share a node (and so memory).
func (w World) SameNode(a, b int) bool { return w.NodeOf(a) == w.NodeOf(b) }

// Rail is the rank of a node that a given rank talks to when its data must go there: the one with the same
// local rank, or, where the node is smaller, that local rank modulo the node's size.
func (w World) Rail(rank, node int) int {
	_, local := w.Place(rank)
	return w.RankAt(node, local%w.PPN[node])
}

// OnRail reports whether two ranks of different nodes are each other's rail partner, seen from either side.
func (w World) OnRail(a, b int) bool {
	return w.Rail(a, w.NodeOf(b)) == b || w.Rail(b, w.NodeOf(a)) == a
}
