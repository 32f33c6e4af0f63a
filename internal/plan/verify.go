package plan

// Verify proves a plan, for every shape and every number of workers per role, or refuses it with a *Fault that
// names the place. What holds of a plan that passes:
//
//   - its parts mean something by themselves (Validate);
//   - every wait is satisfied by exactly the signals that are raised, and every signal is waited for;
//   - every number of workers >= 1 per role makes progress, in every epoch;
//   - accesses to the same bytes of landing and output buffers are ordered, if one of them writes, within an
//     epoch and from one to the next; a read sees bytes that were written in its epoch, and what is written to a
//     landing buffer is read; a result is written by another rank only while it is not the caller's;
//   - counters count one epoch at a time, and stamps from other nodes arrive in order;
//   - every part of every result is written once, rows and columns in their places: as the product over the whole
//     depth of one matrix with another, or as the sum of such products, one of each rank's own operands, each part of
//     the depth added once and in the order of ranks;
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

// VerifyFor proves a plan for somebody who knows what it should do: it does what Verify does, and refuses a plan that
// says that it does something else than the contract.
func VerifyFor(p *Plan, c Contract) error {
	if why := p.Contract().differs(c); why != "" {
		return planFault(RuleContract, "%s", why)
	}
	return Verify(p)
}

func verify(p *Plan) *Fault {
	if f := p.validate(); f != nil {
		return f
	}
	if f := p.checkContract(); f != nil {
		return f
	}
	if f := p.checkName(); f != nil {
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

// checkTraffic holds what the tasks move against what is declared.
func (m *memory) checkTraffic() *Fault {
	g := m.g
	type area struct {
		elem       Elem
		rows, cols Span
	}
	var moved [2]map[area]int64
	for i := range moved {
		moved[i] = make(map[area]int64)
	}
	for id, t := range g.tasks {
		if rank := int(g.rank[id]); t.Peer != rank {
			link := 0
			if g.node[t.Peer] != g.node[rank] {
				link = 1
			}
			moved[link][area{g.p.Buffers[t.Dst.Buffer].Elem, t.Dst.Rows, t.Dst.Cols}]++
		}
	}
	s := Shape{M: 10007, N: 1009, K: 2003} // primes, so that no rounding hides a difference
	for i, declared := range [][]Volume{g.p.Declared.Intra, g.p.Declared.Inter} {
		var sum [len(elemNames)]formula
		for elem := range sum {
			sum[elem] = make(formula)
		}
		var volumes []Volume
		for a, n := range moved[i] {
			sum[a.elem].add(m.cuts, n, a.rows, a.cols)
			volumes = append(volumes, Volume{n, a.elem, a.rows, a.cols})
		}
		for _, v := range declared {
			sum[v.Elem].add(m.cuts, -v.Times, v.Rows, v.Cols)
		}
		for elem, rest := range sum {
			if len(rest) > 0 {
				where := [...]string{"within nodes", "between nodes"}[i]
				return planFault(RuleTraffic, "the traffic %s is not what is declared: at M=%d N=%d K=%d tasks move %d elements, declared are %d; those of type %v differ",
					where, s.M, s.N, s.K, Elements(volumes, s), Elements(declared, s), Elem(elem))
			}
		}
	}
	if least, all := Elements(g.p.Declared.InterMinimum, s), Elements(g.p.Declared.Inter, s); least > all {
		return planFault(RuleTraffic, "between nodes no less than %d elements can be moved at M=%d N=%d K=%d, it is said, yet %d are", least, s.M, s.N, s.K, all)
	}
	return nil
}
