package plan

// Traffic is what an algorithm says it moves in an epoch, link by link, as formulas. A link is a pair of ranks, one way;
// a product or copy that a rank writes into its own memory crosses none. Flows over the same link add up.
type Traffic []Flow

// Flow is what all links of a kind carry: the whole of a Rows x Cols matrix, or a part of its rows.
type Flow struct {
	Path Path `json:"path"`
	From int  `json:"from,omitempty"` // of PathPair
	To   int  `json:"to,omitempty"`
	Elem Elem `json:"elem"`
	Rows Span `json:"rows"` // but for PathPair all of a dim
	Cols Span `json:"cols"`
}

// Path is a kind of links, and which part of the rows each of them carries.
//
// Rank r of W owns part r of the rows. A node's gateway for a rank of another node is its rank on that one's rail; a
// rank stands for its own part and for those of the ranks that it is the gateway of.
type Path uint8

const (
	PathPair          Path = iota // from one rank to one other: Rows
	PathGatherMates               // from each rank to each other of its node: the parts that the sender stands for
	PathScatterMates              // the same: the parts that the receiver stands for
	PathExchangeMates             // the same: all rows
	PathGatherRails               // from each rank to its gateways on all other nodes: its part
	PathScatterRails              // from a rank's gateways on all other nodes to it: its part
	PathExchangeRails             // the same: all rows
)

// Volume is Times * Rows * Cols elements.
type Volume struct {
	Times int64 `json:"times"`
	Elem  Elem  `json:"elem"`
	Rows  Span  `json:"rows"`
	Cols  Span  `json:"cols"`
}

// Elements evaluates a list of volumes for a shape.
func Elements(vs []Volume, s Shape) int64 {
	var sum int64
	for _, v := range vs {
		sum += v.Times * v.Rows.Len(s) * v.Cols.Len(s)
	}
	return sum
}

// Totals adds up all links within nodes, and all between them.
func (t Traffic) Totals(w World) (intra, inter []Volume) {
	size, nodes, mates := int64(w.Size()), int64(w.Nodes()), int64(0)
	for _, ppn := range w.PPN {
		mates += int64(ppn) * int64(ppn-1)
	}
	for _, f := range t {
		v := Volume{Elem: f.Elem, Rows: f.Rows, Cols: f.Cols}
		list := &inter
		switch f.Path {
		case PathPair:
			v.Times = 1
			if w.SameNode(f.From, f.To) {
				list = &intra
			}
		case PathGatherMates, PathScatterMates:
			// The ranks of a node stand for all rows together, and each part goes to, or comes from, all but one of them.
			list, v.Times = &intra, size-nodes
		case PathExchangeMates:
			list, v.Times = &intra, mates
		case PathGatherRails, PathScatterRails:
			v.Times = nodes - 1
		case PathExchangeRails:
			v.Times = size * (nodes - 1)
		}
		if v.Times > 0 {
			*list = append(*list, v)
		}
	}
	return intra, inter
}

// from calls f for what each link from a rank carries.
func (t Traffic) from(p *places, rank int, f func(to int, v Volume)) {
	node, size := p.node[rank], len(p.node)
	for _, flow := range t {
		v := Volume{Times: 1, Elem: flow.Elem, Rows: flow.Rows, Cols: flow.Cols}
		part := func(to, of int) {
			v.Rows = Part(flow.Rows.Dim, of, size)
			f(to, v)
		}
		for to := p.first[node]; to < p.first[node]+p.PPN[node]; to++ {
			switch {
			case to == rank:
			case flow.Path == PathGatherMates:
				p.standsFor(rank, func(of int) { part(to, of) })
			case flow.Path == PathScatterMates:
				p.standsFor(to, func(of int) { part(to, of) })
			case flow.Path == PathExchangeMates:
				f(to, v)
			}
		}
		switch flow.Path {
		case PathPair:
			if flow.From == rank {
				f(flow.To, v)
			}
		case PathGatherRails:
			for other := range p.PPN {
				if other != node {
					part(p.gateway(rank, other), rank)
				}
			}
		case PathScatterRails, PathExchangeRails:
			for to := range size {
				switch {
				case p.node[to] == node || p.gateway(to, node) != rank:
				case flow.Path == PathScatterRails:
					part(to, to)
				default:
					f(to, v)
				}
			}
		}
	}
}

// standsFor calls f for the parts that a rank stands for.
func (p *places) standsFor(rank int, f func(part int)) {
	for part := range p.node {
		if part == rank || p.node[part] != p.node[rank] && p.gateway(part, p.node[rank]) == rank {
			f(part)
		}
	}
}

// checkDeclared sees that what is declared means something.
func (p *Plan) checkDeclared() *Fault {
	size := len(p.Ranks)
	for i, f := range p.Declared {
		pair := f.Path == PathPair
		switch {
		case int(f.Path) >= len(pathNames) || int(f.Elem) >= len(elemNames) || !f.Rows.valid() || !f.Cols.valid():
			return planFault(RuleStructure, "declared flow %d, (%v) x (%v), means nothing", i, f.Rows, f.Cols)
		case !pair && (f.From != 0 || f.To != 0 || f.Rows != All(f.Rows.Dim)):
			return planFault(RuleStructure, "declared flow %d, %v, names ranks or rows", i, f.Path)
		case pair && (f.From < 0 || f.From >= size || f.To < 0 || f.To >= size || f.From == f.To):
			return planFault(RuleStructure, "declared flow %d goes from rank %d to rank %d", i, f.From, f.To)
		}
	}
	return nil
}
