package plan

import "slices"

// bound is the least that must cross between nodes for one thing: the smallest of its alternatives.
type bound [][]Volume

// interMinimum is the least that any plan that fulfils the contract moves between nodes, if no more than the operands'
// type is needed for an element, and if ranks' own operands stay on their nodes. (A contract that asks for partial sums
// in fp32 makes them twice as large; the ratio to the minimum shows what that costs.) It follows from what must get where:
//
//   - A product of which one operand is a rank's own is made on that rank's node. What the node does not have of the other
//     operand must get there.
//   - Else the product may be made elsewhere and come instead.
//   - Each element of a sum over all ranks has a part from every node. To bring n parts together takes n - 1 messages,
//     however they are added on the way. To let all nodes know of all takes 2n - 2: in the first n - 2 and fewer nobody
//     knows all but one part, and whoever knows the whole only then has still to be told (the gossip problem, one way).
//
// Bounds add up, since they are about different elements: an operand is counted once per node, wherever it is used.
func (c Contract) interMinimum() []bound {
	nodes := int64(c.World.Nodes())
	if nodes < 2 {
		return nil
	}
	m := minimum{Contract: c, places: newPlaces(c.World), got: make(map[need]bool)}
	everywhere := make([]bool, len(c.Results)) // of sums: every node needs all of it
	for i := range c.Results {
		r := &c.Results[i]
		everywhere[i] = !r.Inner && !r.Sharded
		for _, o := range []Operand{r.A, r.B} {
			if j := m.result(o); j >= 0 && m.own(r, 0) && !c.Results[j].Sharded {
				everywhere[j] = true
			}
		}
	}
	var out []bound
	for i := range c.Results {
		r := &c.Results[i]
		out = append(out, m.operands(r)...)
		if r.Sum != NoSum && m.own(r, 0) {
			times := nodes - 1
			if everywhere[i] {
				times *= 2
			}
			out = append(out, bound{{{Times: times, Rows: All(r.Rows), Cols: All(r.Cols)}}})
		}
	}
	return out
}

// minimum is a contract with what finding its minimum needs at hand.
type minimum struct {
	Contract
	places
	got map[need]bool // what nodes get, so that nothing is counted twice
}

type need struct {
	name       string
	node, rank int // whose it is; -1 for the other nodes' shards
}

func (m *minimum) result(o Operand) int {
	return slices.IndexFunc(m.Results, func(r Result) bool { return r.Name == o.Name })
}

func (m *minimum) input(o Operand) *Matrix {
	return &m.Inputs[slices.IndexFunc(m.Inputs, func(in Matrix) bool { return in.Name == o.Name })]
}

// owner is the rank whose own operand a rank's product takes, or -1 if it is nobody's own.
func (m *minimum) owner(o Operand, rank int) int {
	if i := m.result(o); i >= 0 {
		if r := &m.Results[i]; r.Sum != NoSum || r.Sharded {
			return -1
		}
		return rank
	}
	switch in := m.input(o); {
	case in.Sharded || in.Same:
		return -1
	case o.From != nil:
		return o.From[rank]
	}
	return rank
}

// own reports whether one operand of a rank's product is of its own node.
func (m *minimum) own(r *Result, rank int) bool {
	for _, o := range []Operand{r.A, r.B} {
		if of := m.owner(o, rank); of >= 0 && o.From == nil {
			return true
		}
	}
	return false
}

// operands is what nodes lack of the operands of a result.
func (m *minimum) operands(r *Result) []bound {
	var out []bound
	for rank := range m.node {
		a, b := m.lacks(r.A, rank), m.lacks(r.B, rank)
		if r.Sharded && r.Sum == NoSum && m.owner(r.A, rank) < 0 {
			a = nil // a rank needs just its own rows, and may have them
		}
		lacks := append(a, b...)
		switch {
		case lacks == nil:
		case m.own(r, rank):
			out = append(out, bound{lacks})
		case r.Sharded || r.Sum != NoSum || a != nil && b != nil:
			// The product may be made elsewhere, or the sum, and less may do.
		default:
			product := slices.Clone(lacks) // of the rows that are not here, or of the columns
			for i := range product {
				if a != nil {
					product[i].Cols = All(r.Cols)
				} else {
					product[i].Rows, product[i].Cols = All(r.Rows), lacks[i].Rows
				}
			}
			out = append(out, bound{lacks, product})
		}
	}
	return out
}

// lacks is what is not on a rank's node of an operand, and was not counted before.
func (m *minimum) lacks(o Operand, rank int) []Volume {
	node := m.node[rank]
	var rows, cols Dim
	var sharded bool
	if i := m.result(o); i >= 0 {
		rows, cols, sharded = m.Results[i].Rows, m.Results[i].Cols, m.Results[i].Sharded
	} else {
		in := m.input(o)
		rows, cols, sharded = in.Rows, in.Cols, in.Sharded
	}
	of := m.owner(o, rank)
	key := need{o.Name, node, of}
	if of < 0 && !sharded || of >= 0 && m.node[of] == node || m.got[key] {
		return nil
	}
	m.got[key] = true
	if of >= 0 {
		return []Volume{{Times: 1, Rows: All(rows), Cols: All(cols)}}
	}
	var out []Volume
	size, first := uint32(len(m.node)), uint32(m.first[node])
	if last := first + uint32(m.PPN[node]); last < size {
		out = append(out, Volume{Times: 1, Rows: Span{rows, Ratio{last, size}, Ratio{1, 1}}, Cols: All(cols)})
	}
	if first > 0 {
		out = append(out, Volume{Times: 1, Rows: Span{rows, Ratio{0, 1}, Ratio{first, size}}, Cols: All(cols)})
	}
	return out
}
