package plan

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// value is what the elements of a buffer mean: those of an input, or a sum of products. Rows and columns are always
// in their places (Validate sees to that), so it says nothing of these.
type value struct {
	input BufferID // if there are no terms
	terms []term   // sorted by owner, operands and depth; no two touch
	owner int32    // the rank whose own operands it is made of; of an input that all ranks share, or of a sum over ranks, -1
	form  int32    // equal for values that are made alike by different ranks
}

// term is a product of two values over a part of their depth, given in cut points.
type term struct {
	a, b   int32 // ids of the operands
	dim    Dim   // of the depth
	k0, k1 int32
	owner  int32 // the rank whose own operands these are; -1 if no operand is a rank's own; mixed
}

// mixed is the owner of a product of operands that belong to different ranks.
const mixed = -2

// values numbers values, so that equal ones have equal ids.
type values struct {
	list   []value
	inputs map[[2]int32]int32
	terms  map[term]int32   // products as such
	sums   map[string]int32 // by their terms
	forms  map[string]int32
	added  map[string]int32 // by the ids of the values added
	key    []byte
}

func newValues() *values {
	return &values{
		inputs: make(map[[2]int32]int32), terms: make(map[term]int32), sums: make(map[string]int32),
		forms: make(map[string]int32), added: make(map[string]int32),
	}
}

func (v *values) form() int32 {
	id, ok := v.forms[string(v.key)]
	if !ok {
		id = int32(len(v.forms))
		v.forms[string(v.key)] = id
	}
	return id
}

func (v *values) put(numbers ...int32) {
	for _, n := range numbers {
		v.key = binary.LittleEndian.AppendUint32(v.key, uint32(n))
	}
}

// input is the value of a rank's input, or of one that is the same for all ranks (rank -1).
func (v *values) input(id BufferID, rank int32) int32 {
	at, ok := v.inputs[[2]int32{int32(id), rank}]
	if !ok {
		v.key = v.key[:0]
		v.put(int32(id), min(rank, 0))
		at = int32(len(v.list))
		v.list = append(v.list, value{input: id, owner: rank, form: v.form()})
		v.inputs[[2]int32{int32(id), rank}] = at
	}
	return at
}

// product is the value of a product of two values over a part of the depth.
func (v *values) product(a, b int32, dim Dim, k0, k1 int32) int32 {
	t := term{a: a, b: b, dim: dim, k0: k0, k1: k1}
	id, ok := v.terms[t]
	if !ok {
		key := t
		switch x, y := v.list[a].owner, v.list[b].owner; {
		case x >= 0 && y >= 0 && x != y || x == mixed || y == mixed:
			t.owner = mixed
		default:
			t.owner = max(x, y)
		}
		id = v.sum([]term{t})
		v.terms[key] = id
	}
	return id
}

// sum is the value with the given terms, which are sorted.
func (v *values) sum(terms []term) int32 {
	v.key = v.key[:0]
	for _, t := range terms {
		v.put(t.a, t.b, int32(t.dim), t.k0, t.k1)
	}
	if id, ok := v.sums[string(v.key)]; ok {
		return id
	}
	id := int32(len(v.list))
	v.sums[string(v.key)] = id
	x := value{terms: terms, owner: terms[0].owner}
	v.key = v.key[:0]
	var last [5]int32
	for i, t := range terms {
		if t.owner != x.owner {
			x.owner = -1
		}
		// As many like terms as may be have one form.
		if like := [5]int32{v.list[t.a].form, v.list[t.b].form, int32(t.dim), t.k0, t.k1}; i == 0 || like != last {
			v.put(like[:]...)
			last = like
		}
	}
	x.form = v.form()
	v.list = append(v.list, x)
	return id
}

// add is the value of a sum of values; why says what is wrong with it.
func (v *values) add(p *Plan, ids []int32) (id int32, why string) {
	v.key = v.key[:0]
	v.put(ids...)
	key := string(v.key)
	if id, ok := v.added[key]; ok {
		return id, ""
	}
	var all []term
	for i, id := range ids {
		x := &v.list[id]
		if x.terms == nil {
			return 0, fmt.Sprintf("source %d holds %s, which is no product", i, v.text(p, id))
		}
		if i > 0 {
			before, first := v.list[ids[i-1]].terms[0], x.terms[0]
			if first.owner >= 0 && cmp.Or(cmp.Compare(before.owner, first.owner), cmp.Compare(before.k0, first.k0)) > 0 {
				return 0, fmt.Sprintf("source %d, %s, comes after %s: sums are in the order of ranks", i, v.text(p, id), v.text(p, ids[i-1]))
			}
		}
		all = append(all, x.terms...)
	}
	slices.SortFunc(all, func(x, y term) int {
		return cmp.Or(cmp.Compare(x.owner, y.owner), cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b), cmp.Compare(x.k0, y.k0), cmp.Compare(x.k1, y.k1))
	})
	merged := all[:1]
	for _, t := range all[1:] {
		last := &merged[len(merged)-1]
		if t.a != last.a || t.b != last.b {
			merged = append(merged, t)
			continue
		}
		if t.k0 < last.k1 {
			return 0, fmt.Sprintf("it adds a part of %s twice", v.termText(p, t))
		}
		if t.k0 > last.k1 {
			merged = append(merged, t)
			continue
		}
		last.k1 = t.k1
	}
	id = v.sum(slices.Clip(merged))
	v.added[key] = id
	return id, ""
}

// text names a value.
func (v *values) text(p *Plan, id int32) string {
	x := &v.list[id]
	switch {
	case x.terms == nil && x.owner < 0:
		return fmt.Sprintf("%q", p.bufferName(x.input))
	case x.terms == nil:
		return fmt.Sprintf("%q of rank %d", p.bufferName(x.input), x.owner)
	}
	const most = 4
	var parts []string
	for _, t := range x.terms[:min(most, len(x.terms))] {
		parts = append(parts, v.termText(p, t))
	}
	if more := len(x.terms) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, " + ")
}

func (v *values) termText(p *Plan, t term) string {
	return v.text(p, t.a) + " x " + v.text(p, t.b)
}

// checkMeaning follows the elements from the inputs through copies, products and sums. A buffer at a rank holds parts
// of one value only, and no product is added twice on the way.
//
// The tasks are taken in an order in which those come first that others wait for. A source that is still unknown then
// is read before it is written, or nobody writes it: the check of the memory says so, with the place.
func (g *graph) checkMeaning() *Fault {
	const unknown = -1
	p, buffers := g.p, len(g.p.Buffers)
	v := newValues()
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
			if slices.Contains(ids, unknown) {
				break
			}
			var why string
			if got, why = v.add(p, ids); why != "" {
				return g.fault(RuleMeaning, id, "%s", why)
			}
		}
		if got == unknown {
			continue
		}
		dst := &holds[t.Peer*buffers+int(t.Dst.Buffer)]
		if *dst != unknown && *dst != got {
			f := g.fault(RuleMeaning, id, "it puts a part of %s at rank %d, where others put parts of %s", v.text(p, got), t.Peer, v.text(p, *dst))
			f.Buffer = p.bufferName(t.Dst.Buffer)
			return f
		}
		*dst = got
	}
	g.values, g.holds = v, holds
	return nil
}

// checkResults holds the results against what they should be: one product over the whole depth, or, if it is a sum, one
// such product of each rank's own operands. It comes after the check of the memory, which knows better where a product
// got lost that never reached a sum.
func (g *graph) checkResults() *Fault {
	buffers := len(g.p.Buffers)
	for i, id := range g.holds {
		b := &g.p.Buffers[i%buffers]
		if b.Kind != BufOutput {
			continue
		}
		if why := g.incomplete(g.values, b, id); why != "" {
			return &Fault{Rule: RuleMeaning, Rank: i / buffers, Index: -1, Buffer: b.Name, Detail: why}
		}
	}
	return nil
}

// incomplete says what a result lacks; "" if nothing.
func (g *graph) incomplete(v *values, b *Buffer, id int32) string {
	x := &v.list[id]
	for _, t := range x.terms {
		if t.k0 != 0 || int(t.k1) != len(g.cuts.sorted[t.dim])-1 {
			return fmt.Sprintf("the result has %s over a part of %v only", v.termText(g.p, t), t.dim)
		}
	}
	if !b.Sum {
		if len(x.terms) > 1 {
			return fmt.Sprintf("the result is a sum, %s, and should be one product", v.text(g.p, id))
		}
		return ""
	}
	if x.terms == nil {
		return fmt.Sprintf("the result is %s, and should be a sum of products", v.text(g.p, id))
	}
	next := int32(0)
	for _, t := range x.terms {
		switch {
		case t.owner < 0:
			return fmt.Sprintf("the sum has %s, which are not one rank's own operands", v.termText(g.p, t))
		case t.owner < next:
			return fmt.Sprintf("the sum has two products of rank %d: %s and another", t.owner, v.termText(g.p, t))
		case t.owner > next:
			return fmt.Sprintf("the sum lacks the product of rank %d", next)
		}
		if first := x.terms[0]; v.list[t.a].form != v.list[first.a].form || v.list[t.b].form != v.list[first.b].form {
			return fmt.Sprintf("the sum has %s of rank %d, but %s of rank 0", v.termText(g.p, t), t.owner, v.termText(g.p, first))
		}
		next++
	}
	if int(next) < len(g.p.Ranks) {
		return fmt.Sprintf("the sum lacks the product of rank %d", next)
	}
	return ""
}
