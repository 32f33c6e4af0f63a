package plan

import (
	"cmp"
	"slices"
)

// cuts numbers the cut points of each dim that a plan uses, in their order, which is the same for all shapes.
// Regions become rectangles of small integers, and what is shown of these holds for every shape: spans that
// are disjoint or cover each other as ratios do so at every size, and those that overlap do so at some size.
type cuts struct {
	index  [numDims]map[Ratio]int32
	sorted [numDims][]Ratio // without equal ones
}

// rect is a region in cut points: rows and columns, half open.
type rect struct{ r0, r1, c0, c1 int32 }

func newCuts(p *Plan) *cuts {
	c := &cuts{}
	for d := range c.index {
		c.index[d] = map[Ratio]int32{{0, 1}: 0, {1, 1}: 0}
	}
	var last [2]Span // most spans are the one before, or a whole dim
	add := func(i int, s Span) {
		if s != last[i] && s != All(s.Dim) {
			c.index[s.Dim][s.From] = 0
			c.index[s.Dim][s.To] = 0
			last[i] = s
		}
	}
	for rank := range p.Ranks {
		for _, queue := range p.Ranks[rank].Queues {
			for i := range queue {
				if t := &queue[i]; t.Kind != Notify {
					add(0, t.Dst.Rows)
					add(1, t.Dst.Cols)
					if t.Kind == Reduce {
						for _, src := range t.Srcs {
							add(0, src.Rows)
							add(1, src.Cols)
						}
						continue
					}
					add(0, t.Src.Rows)
					add(1, t.Src.Cols)
					if t.Kind == Compute {
						add(0, t.B.Rows)
						add(1, t.B.Cols)
						for step := range t.Steps {
							add(1, t.depthPart(t.Src, step).Cols)
							add(1, t.depthPart(t.B, step).Cols)
						}
					}
				}
			}
		}
	}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Sharded && b.Kind == BufOutput {
			for rank := range p.Ranks {
				add(0, b.RowSpan(rank, len(p.Ranks)))
			}
		}
	}
	for i := range p.Results {
		r := &p.Results[i]
		for part := range max(1, r.Depth) {
			add(0, Part(p.depthOf(r), part, max(1, r.Depth)))
		}
		first := 0
		for _, ppn := range p.World.PPN { // a sum may be another one at each node
			if r.Sum == SumAtOwner {
				add(0, Part(r.Rows, first, len(p.Ranks)))
			}
			first += ppn
		}
	}
	for _, f := range p.Declared {
		add(0, f.Rows)
		add(1, f.Cols)
		for rank := range p.Ranks { // of which the flow has parts
			if f.Path != PathPair {
				add(0, Part(f.Rows.Dim, rank, len(p.Ranks)))
			}
		}
	}
	for d := range c.index {
		all := make([]Ratio, 0, len(c.index[d]))
		for r := range c.index[d] {
			all = append(all, r)
		}
		slices.SortFunc(all, func(a, b Ratio) int { return cmp.Or(a.compare(b), cmp.Compare(a.Den, b.Den)) })
		for _, r := range all {
			if n := len(c.sorted[d]); n == 0 || c.sorted[d][n-1].compare(r) != 0 {
				c.sorted[d] = append(c.sorted[d], r)
			}
			c.index[d][r] = int32(len(c.sorted[d]) - 1)
		}
	}
	return c
}

func (c *cuts) span(s Span) (from, to int32) {
	if s == All(s.Dim) {
		return 0, c.last(s.Dim)
	}
	return c.index[s.Dim][s.From], c.index[s.Dim][s.To]
}

// last is the cut point at the end of a dim.
func (c *cuts) last(d Dim) int32 { return int32(len(c.sorted[d]) - 1) }

func (c *cuts) rect(r Region) rect {
	r0, r1 := c.span(r.Rows)
	c0, c1 := c.span(r.Cols)
	return rect{r0, r1, c0, c1}
}

// region is the inverse of rect.
func (c *cuts) region(id BufferID, b *Buffer, r rect) Region {
	return Region{
		Buffer: id,
		Rows:   Span{b.Rows, c.sorted[b.Rows][r.r0], c.sorted[b.Rows][r.r1]},
		Cols:   Span{b.Cols, c.sorted[b.Cols][r.c0], c.sorted[b.Cols][r.c1]},
	}
}

func (r rect) overlaps(o rect) bool {
	return r.r0 < o.r1 && o.r0 < r.r1 && r.c0 < o.c1 && o.c0 < r.c1
}

// minus appends to out what is left of r without o: up to four rectangles.
func (r rect) minus(o rect, out []rect) []rect {
	if !r.overlaps(o) {
		return append(out, r)
	}
	if r.r0 < o.r0 {
		out = append(out, rect{r.r0, o.r0, r.c0, r.c1})
		r.r0 = o.r0
	}
	if o.r1 < r.r1 {
		out = append(out, rect{o.r1, r.r1, r.c0, r.c1})
		r.r1 = o.r1
	}
	if r.c0 < o.c0 {
		out = append(out, rect{r.r0, r.r1, r.c0, o.c0})
	}
	if o.c1 < r.c1 {
		out = append(out, rect{r.r0, r.r1, o.c1, r.c1})
	}
	return out
}
