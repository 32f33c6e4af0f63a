package plan

import "slices"

// unknown is the value of what nobody has written.
const unknown = -1

// promise is what the results are to be, as values.
type promise struct {
	results []promised // one for each of Plan.Results
	known   int32      // values below it are what results are made of, and no others are
}

// promised is one result.
type promised struct {
	ranks []int32 // its value at each rank
	// Of a sum that is another expression at each owner's node: these, by node, and the cut points of its rows between
	// the nodes' parts, one more than there are nodes.
	nodes []int32
	rows  []int32
	dim   Dim // of the rows
}

// promise writes the results as values.
func (g *graph) promise(v *values) promise {
	var made promise
	for i := range g.p.Results {
		made.results = append(made.results, g.promised(v, i, made.results))
	}
	made.known = int32(len(v.list))
	return made
}

func (g *graph) promised(v *values, i int, earlier []promised) promised {
	r := &g.p.Results[i]
	size := len(g.p.Ranks)
	out := promised{ranks: make([]int32, size)}
	parts := func(rank int) []int32 {
		a, b := g.operand(v, r.A, rank, earlier), g.operand(v, r.B, rank, earlier)
		dim := g.p.depthOf(r)
		ids := make([]int32, max(1, r.Depth))
		for part := range ids {
			k0, k1 := g.cuts.span(Part(dim, part, len(ids)))
			ids[part] = v.product(a, b, dim, k0, k1)
			if r.Sum != NoSum || len(ids) > 1 {
				ids[part] = v.as(ids[part], r.Partials)
			}
		}
		return ids
	}
	if r.Sum == NoSum {
		for rank := range size {
			out.ranks[rank] = v.as(v.sum(parts(rank)), ElemOperand)
		}
		return out
	}
	apart := make([][]int32, g.p.World.Nodes()) // the products of each node
	for rank := range size {
		apart[g.node[rank]] = append(apart[g.node[rank]], parts(rank)...)
	}
	sums := make([]int32, len(apart))
	for node := range sums {
		sums[node] = v.as(v.sum(apart[node]), r.Partials)
	}
	all := v.as(v.sum(sums), ElemOperand)
	if r.Sum == SumAtOwner {
		for node := range apart {
			list := slices.Concat(sums[:node], apart[node], sums[node+1:])
			out.nodes = append(out.nodes, v.as(v.sum(list), ElemOperand))
		}
		all = out.nodes[0]
		if slices.ContainsFunc(out.nodes, func(id int32) bool { return id != all }) {
			all = v.result(i)
		}
		out.dim = r.Rows
		first := 0
		for _, ppn := range g.p.World.PPN {
			from, _ := g.cuts.span(Part(r.Rows, first, size))
			out.rows = append(out.rows, from)
			first += ppn
		}
		out.rows = append(out.rows, g.cuts.last(r.Rows))
	}
	for rank := range out.ranks {
		out.ranks[rank] = all
	}
	return out
}

// operand is the value of an operand of a rank's product.
func (g *graph) operand(v *values, o Operand, rank int, earlier []promised) int32 {
	for i := range earlier {
		if g.p.Results[i].Name == o.Name {
			return earlier[i].ranks[rank]
		}
	}
	id := slices.IndexFunc(g.p.Buffers, func(b Buffer) bool { return b.Kind == BufInput && b.Name == o.Name })
	switch b := &g.p.Buffers[id]; {
	case b.Sharded || b.Same:
		return v.input(BufferID(id), -1)
	case o.From != nil:
		return v.input(BufferID(id), int32(o.From[rank]))
	}
	return v.input(BufferID(id), int32(rank))
}

// depthOf is the dim over which a result's products run: that of the columns of its operands.
func (p *Plan) depthOf(r *Result) Dim {
	for i := range p.Results {
		if p.Results[i].Name == r.A.Name {
			return p.Results[i].Cols
		}
	}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Kind == BufInput && b.Name == r.A.Name {
			return b.Cols
		}
	}
	return r.Rows // checkContract has seen that there is one
}

// named is the value of rows in which a sum is just what a result is to be there; else it is as it was.
func (made *promise) named(id int32, dim Dim, r0, r1 int32) int32 {
	for i := range made.results {
		r := &made.results[i]
		if r.nodes == nil || r.dim != dim || !slices.Contains(r.nodes, id) {
			continue
		}
		fits := true
		for node, want := range r.nodes {
			fits = fits && (want == id || r.rows[node+1] <= r0 || r1 <= r.rows[node])
		}
		if fits {
			return r.ranks[0]
		}
	}
	return id
}

// begins reports whether a value is how a sum begins of which results are made, not rounded yet.
func (made *promise) begins(v *values, id int32) bool {
	x := &v.list[id]
	return x.kind == valSum && slices.ContainsFunc(v.list[:made.known], func(y value) bool {
		return y.kind == valSum && len(y.of) > len(x.of) && slices.Equal(y.of[:len(x.of)], x.of)
	})
}

// checkMeaning follows the elements from the inputs through copies, products, sums and roundings. A buffer at a rank
// holds parts of one value only; a value is made only if results are made of it; and what is put into a result is what
// the contract says of it.
//
// The tasks are taken in an order in which those come first that others wait for. A source that is still unknown then
// is read before it is written, or nobody writes it: the check of the memory says so, with the place.
func (g *graph) checkMeaning() *Fault {
	p, buffers := g.p, len(g.p.Buffers)
	v := newValues(p, g.cuts)
	holds := make([]int32, len(p.Ranks)*buffers) // by rank and buffer
	for i := range holds {
		holds[i] = unknown
		if b := &p.Buffers[i%buffers]; b.Kind == BufInput {
			rank := int32(i / buffers)
			if b.Sharded || b.Same {
				rank = -1
			}
			holds[i] = v.input(BufferID(i%buffers), rank)
		}
	}
	made := g.promise(v)
	want := make([]*promised, buffers) // of outputs
	for i := range p.Results {
		id := slices.IndexFunc(p.Buffers, func(b Buffer) bool { return b.Kind == BufOutput && b.Name == p.Results[i].Name })
		if id >= 0 {
			want[id] = &made.results[i]
		}
	}
	var ids []int32
	for _, id := range g.order {
		t := g.tasks[id]
		at := holds[int(g.rank[id])*buffers:][:buffers]
		got := int32(unknown)
		switch t.Kind {
		case Copy, Send:
			got = at[t.Src.Buffer]
		case Compute:
			if a, b := at[t.Src.Buffer], at[t.B.Buffer]; a != unknown && b != unknown {
				k0, k1 := g.cuts.span(t.Src.Cols)
				got = v.product(a, b, t.Src.Cols.Dim, k0, k1)
			}
		case Reduce:
			ids = ids[:0]
			for _, src := range t.Srcs {
				ids = append(ids, at[src.Buffer])
			}
			if !slices.Contains(ids, unknown) {
				got = v.sum(ids)
			}
		}
		if got == unknown {
			continue
		}
		got = v.as(got, p.Buffers[t.Dst.Buffer].Elem)
		if t.Kind == Reduce || t.Kind == Compute {
			r0, r1 := g.cuts.span(t.Dst.Rows)
			got = made.named(got, t.Dst.Rows.Dim, r0, r1)
		}
		dst := &holds[t.Peer*buffers+int(t.Dst.Buffer)]
		var f *Fault
		switch w := want[t.Dst.Buffer]; {
		case w != nil && w.ranks[t.Peer] != got:
			f = g.fault(RuleMeaning, id, "it puts %s at rank %d, where the result is to be %s", v.text(got), t.Peer, g.wanted(v, w, t))
		case *dst != unknown && *dst != got:
			f = g.fault(RuleMeaning, id, "it puts a part of %s at rank %d, where others put parts of %s", v.text(got), t.Peer, v.text(*dst))
		case got >= made.known && !made.begins(v, got):
			f = g.fault(RuleMeaning, id, "it makes %s, of which no result is made", v.text(got))
		}
		if f != nil {
			f.Buffer = p.bufferName(t.Dst.Buffer)
			return f
		}
		*dst = got
	}
	return nil
}

// wanted names what a result is to be where a task writes.
func (g *graph) wanted(v *values, w *promised, t *Task) string {
	id := w.ranks[t.Peer]
	if w.nodes != nil {
		r0, _ := g.cuts.span(t.Dst.Rows)
		node := 0
		for w.rows[node+1] <= r0 {
			node++
		}
		id = w.nodes[node]
	}
	return v.text(id)
}
