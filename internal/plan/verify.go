package plan

import "fmt"

// Verify proves a plan, for every shape and every number of workers per role, or refuses it with a *Fault that
// names the place. What holds of a plan that passes:
//
//   - its parts mean something by themselves (Validate);
//   - every wait is satisfied by exactly the signals that are raised, and every signal is waited for;
//   - every number of workers >= 1 per role makes progress, in every epoch;
//   - accesses to the same bytes of landing and output buffers are ordered, if one of them writes, within an
//     epoch and from one to the next; a read sees bytes that were written in its epoch; a result is written by
//     another rank only while it is not the caller's;
//   - counters count one epoch at a time, and stamps from other nodes arrive in order;
//   - every part of every result is written once, as the product over the whole depth of one matrix with
//     another, rows and columns in their places;
//   - what crosses links is what is declared, as formulas, hence for all shapes; between nodes data and
//     notices stay on their rails and flags are stamps.
//
// Only flags and the end of a rank's epoch order the work of two tasks; the place in a queue does not. See
// graph for why, and for what "before" means.
func Verify(p *Plan) error {
	if f := verify(p); f != nil {
		return f
	}
	return nil
}

func verify(p *Plan) *Fault {
	if f := p.validate(); f != nil {
		return f
	}
	g, f := newGraph(p)
	if f != nil {
		return f
	}
	for _, check := range []func() *Fault{g.checkFlags, g.checkProgress, g.checkMeaning} {
		if f := check(); f != nil {
			return f
		}
	}
	m := newMemory(g)
	if f := m.check(); f != nil {
		return f
	}
	return m.checkTraffic()
}

// matrix is what a buffer's bytes are: (a part of) an input, of all ranks together if it is sharded, else of one.
type matrix struct {
	input BufferID
	rank  int // -1 if the input is sharded: one matrix for all
}

func (x matrix) String(p *Plan) string {
	if x.rank < 0 {
		return fmt.Sprintf("%q", p.bufferName(x.input))
	}
	return fmt.Sprintf("%q of rank %d", p.bufferName(x.input), x.rank)
}

// checkMeaning follows the matrices from the inputs through copies into landing buffers and products. A landing
// buffer at a rank holds parts of one matrix only (Validate saw that the parts are in their places), and all
// parts of a result are products of the same two.
func (g *graph) checkMeaning() *Fault {
	p := g.p
	buffers := len(p.Buffers)
	const unknown = -2
	holds := make([]matrix, len(p.Ranks)*buffers) // by rank and buffer
	for i := range holds {
		b := i % buffers
		switch {
		case p.Buffers[b].Kind != BufInput:
			holds[i].rank = unknown
		case p.Buffers[b].Sharded:
			holds[i] = matrix{BufferID(b), -1}
		default:
			holds[i] = matrix{BufferID(b), i / buffers}
		}
	}
	// In this order a source is known before it is used, if the waits are right; the rounds end in any case, since
	// each but the last teaches what one more buffer holds.
	for learned := true; learned; {
		learned = false
		for _, id := range g.order {
			t := g.tasks[id]
			if t.Kind != Copy && t.Kind != Send {
				continue
			}
			src, dst := holds[int(g.rank[id])*buffers+int(t.Src.Buffer)], &holds[t.Peer*buffers+int(t.Dst.Buffer)]
			switch {
			case src.rank == unknown || src == *dst:
			case dst.rank == unknown:
				*dst, learned = src, true
			default:
				f := g.fault(RuleMeaning, id, "it brings a part of %s to rank %d, where others bring parts of %s", src.String(p), t.Peer, dst.String(p))
				f.Buffer = p.bufferName(t.Dst.Buffer)
				return f
			}
		}
	}
	products := make([][2]matrix, len(holds))
	known := make([]bool, len(holds))
	for id, t := range g.tasks {
		if t.Kind != Compute {
			continue
		}
		at := int(g.rank[id]) * buffers
		product := [2]matrix{holds[at+int(t.Src.Buffer)], holds[at+int(t.B.Buffer)]}
		if product[0].rank == unknown || product[1].rank == unknown {
			continue // nothing is ever copied there: the check of the memory says so, with the place
		}
		result := at + int(t.Dst.Buffer)
		if known[result] && products[result] != product {
			f := g.fault(RuleMeaning, int32(id), "it multiplies %s by %s; other parts of this result are products of %s by %s",
				product[0].String(p), product[1].String(p), products[result][0].String(p), products[result][1].String(p))
			f.Buffer = p.bufferName(t.Dst.Buffer)
			return f
		}
		products[result], known[result] = product, true
	}
	return nil
}

// checkTraffic holds what the tasks move against what is declared.
func (m *memory) checkTraffic() *Fault {
	g := m.g
	type area struct{ rows, cols Span }
	var moved [2]map[area]int64
	for i := range moved {
		moved[i] = make(map[area]int64)
	}
	for _, t := range g.tasks {
		switch t.Kind {
		case Copy:
			moved[0][area{t.Dst.Rows, t.Dst.Cols}]++
		case Send:
			moved[1][area{t.Dst.Rows, t.Dst.Cols}]++
		}
	}
	s := Shape{M: 10007, N: 1009, K: 2003} // primes, so that no rounding hides a difference
	for i, declared := range [][]Volume{g.p.Declared.Intra, g.p.Declared.Inter} {
		sum := make(formula)
		var volumes []Volume
		for a, n := range moved[i] {
			sum.add(m.cuts, n, a.rows, a.cols)
			volumes = append(volumes, Volume{n, a.rows, a.cols})
		}
		for _, v := range declared {
			sum.add(m.cuts, -v.Times, v.Rows, v.Cols)
		}
		if len(sum) > 0 {
			where := [...]string{"within nodes", "between nodes"}[i]
			return planFault(RuleTraffic, "the traffic %s is not what is declared: at M=%d N=%d K=%d tasks move %d elements, declared are %d",
				where, s.M, s.N, s.K, Elements(volumes, s), Elements(declared, s))
		}
	}
	if least, all := Elements(g.p.Declared.InterMinimum, s), Elements(g.p.Declared.Inter, s); least > all {
		return planFault(RuleTraffic, "between nodes no less than %d elements can be moved at M=%d N=%d K=%d, it is said, yet %d are", least, s.M, s.N, s.K, all)
	}
	return nil
}
