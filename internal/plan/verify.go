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
//   - every part of every result is written once, rows and columns in their places, and is what the plan's contract says
//     of it at that rank, bit by bit: the product of just these operands over the whole depth, or the sum of such
//     products, each added once, in the order, with the brackets and with the roundings that are declared;
//   - what each link carries is what is declared of it, as formulas, hence for all shapes; between nodes data and
//     notices stay on their rails and flags are stamps.
//
// A plan that bears the name of an operator must declare that operator's contract; VerifyFor holds it to the caller's.
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
	if f := newMemory(g).check(); f != nil {
		return f
	}
	return g.checkTraffic()
}
