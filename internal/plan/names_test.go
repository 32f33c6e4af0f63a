package plan

import (
	"fmt"
	"slices"
	"strings"
)

// words writes what stands in a cell, for the explorer and the simulator: an input by its name, a product as
// (a*b@from-to), a sum in fp32 as [x+y+z], added from the left, and what was rounded to the operator's dtype with a ~
// in front. It shares nothing with the verifier but the cut points.
type words struct {
	p    *Plan
	cuts *cuts
}

func (w words) input(b BufferID, rank int) string {
	buffer := &w.p.Buffers[b]
	if buffer.Sharded || buffer.Same {
		return buffer.Name
	}
	return fmt.Sprintf("%s.%d", buffer.Name, rank)
}

func (w words) product(a, b string, depth Span) string {
	from, to := w.cuts.span(depth)
	end := fmt.Sprint(to)
	if depth.To.Num == depth.To.Den {
		end = "end"
	}
	return fmt.Sprintf("(%s*%s@%d-%s)", a, b, from, end)
}

func (w words) sum(parts []string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	all := strings.Join(parts, "+")
	if parts[0][0] == '[' { // which is ([x+y])+z: the same as x+y+z
		all = strings.Join(append([]string{parts[0][1 : len(parts[0])-1]}, parts[1:]...), "+")
	}
	return "[" + all + "]"
}

func (w words) rounded(what string, to Elem) string {
	if to == ElemOperand && (what[0] == '[' || what[0] == '(') {
		return "~" + what
	}
	return what
}

// made is what a task makes of its sources, cell by cell.
func (w words) made(t *Task, sources [][]string) []string {
	var out []string
	switch t.Kind {
	case Copy, Send:
		return sources[0]
	case Reduce:
		for i := range sources[0] {
			var parts []string
			for _, s := range sources {
				parts = append(parts, s[i])
			}
			out = append(out, w.sum(parts))
		}
	case Compute:
		dst := w.cuts.rect(t.Dst)
		rows, cols := int(dst.r1-dst.r0), int(dst.c1-dst.c0)
		row := func(cells []string, rows, i int) string { // what stands in a row, all of one if it is right
			n := len(cells) / rows
			return strings.Join(slices.Compact(slices.Clone(cells[i*n:(i+1)*n])), "/")
		}
		for i := range rows {
			for j := range cols {
				out = append(out, w.product(row(sources[0], rows, i), row(sources[1], cols, j), t.Src.Cols))
			}
		}
	}
	for i := range out {
		out[i] = w.rounded(out[i], w.p.Buffers[t.Dst.Buffer].Elem)
	}
	return out
}

// wanted is what a result should be at a rank, in one row of cells.
func (w words) wanted(name string, rank int, row int32) string {
	r := w.p.Results[slices.IndexFunc(w.p.Results, func(r Result) bool { return r.Name == name })]
	depth := max(1, r.Depth)
	operand := func(o Operand, rank int, row int32) string {
		if slices.ContainsFunc(w.p.Results, func(r Result) bool { return r.Name == o.Name }) {
			return w.wanted(o.Name, rank, row)
		}
		id := slices.IndexFunc(w.p.Buffers, func(b Buffer) bool { return b.Name == o.Name })
		if o.From != nil {
			rank = o.From[rank]
		}
		return w.input(BufferID(id), rank)
	}
	products := func(rank int) (out []string) {
		dim := w.p.Buffers[slices.IndexFunc(w.p.Buffers, func(b Buffer) bool { return b.Name == r.A.Name })].Cols
		for i := range depth {
			// Second operands that are results are uniform in their rows in all plans here.
			p := w.product(operand(r.A, rank, row), operand(r.B, rank, 0), Part(dim, i, depth))
			if depth > 1 || r.Sum != NoSum {
				p = w.rounded(p, r.Partials)
			}
			out = append(out, p)
		}
		return out
	}
	if r.Sum == NoSum {
		return w.rounded(w.sum(products(rank)), ElemOperand)
	}
	owner := 0 // of the row
	for owner+1 < len(w.p.Ranks) && (Ratio{uint32(owner + 1), uint32(len(w.p.Ranks))}).compare(w.cuts.sorted[r.Rows][row]) <= 0 {
		owner++
	}
	var nodes []string
	for node, first := 0, 0; node < len(w.p.World.PPN); node++ {
		var apart []string
		for range w.p.World.PPN[node] {
			apart = append(apart, products(first)...)
			first++
		}
		if r.Sum == SumAtOwner && w.p.World.NodeOf(owner) == node {
			nodes = append(nodes, apart...)
		} else {
			nodes = append(nodes, w.rounded(w.sum(apart), r.Partials))
		}
	}
	return w.rounded(w.sum(nodes), ElemOperand)
}
