package plan

import (
	"fmt"
	"slices"
)

// Then is one plan of two operators on one world, the second of which takes the result of the first as one of its
// operands, as in an MLP block: Then(AGGemm, GemmRS, "a"). The result stays where the first operator leaves it, in a
// landing buffer, and each task of the second waits for the parts that it reads, not for the whole.
//
// The dims of the second are those of the first in another order: the operand has those of the result, and the one
// left over is the one left over. So after C = A (M x K) * Bᵀ (N x K) comes C' = C (M x N) * B'ᵀ (K x N). Names of the
// second operator's buffers and flags get "2." in front (of a third's "3."). No credits are needed between the two, since a rank's next
// epoch begins when both are done.
func Then(first, second *Plan, operand string) (*Plan, error) {
	fail := func(format string, args ...any) (*Plan, error) {
		return nil, fmt.Errorf("planning %s after %s: %w", second.Operator, first.Operator, fmt.Errorf(format, args...))
	}
	contract, err := first.Contract().Then(second.Contract(), operand)
	if err != nil {
		return fail("%w", err)
	}
	out := slices.IndexFunc(first.Buffers, func(b Buffer) bool { return b.Kind == BufOutput })
	in := slices.IndexFunc(second.Buffers, func(b Buffer) bool { return b.Name == operand && b.Kind == BufInput })
	if out < 0 || in < 0 {
		return fail("there is no result, or no operand %q", operand)
	}
	result, taken := first.Buffers[out], second.Buffers[in]
	if len(first.Buffers)+len(second.Buffers) > maxBuffers {
		return fail("together they have more than %d buffers", maxBuffers)
	}
	j := joiner{out: BufferID(out), in: BufferID(in), buffers: BufferID(len(first.Buffers)), flags: FlagID(len(first.Flags))}
	prefix := fmt.Sprintf("%d.", 1+len(first.Results))
	j.dims[taken.Rows], j.dims[taken.Cols] = result.Rows, result.Cols
	j.dims[DimM+DimN+DimK-taken.Rows-taken.Cols] = DimM + DimN + DimK - result.Rows - result.Cols

	p := &Plan{
		Operator: first.Operator + "+" + second.Operator, Algorithm: first.Algorithm + "+" + second.Algorithm,
		World: first.World, Chunks: first.Chunks,
		Buffers: slices.Clone(first.Buffers), Flags: slices.Clone(first.Flags), Ranks: make([]RankPlan, len(first.Ranks)),
		Results:  contract.Results,
		Declared: slices.Clone(first.Declared),
	}
	for _, f := range second.Declared {
		f.Rows, f.Cols = j.span(f.Rows), j.span(f.Cols)
		p.Declared = append(p.Declared, f)
	}
	p.Buffers[out] = Buffer{Name: result.Name, Kind: BufLanding, Rows: result.Rows, Cols: result.Cols, Sharded: result.Sharded}
	for i, b := range second.Buffers {
		if i != in {
			b.Name, b.Rows, b.Cols = prefix+b.Name, j.dims[b.Rows], j.dims[b.Cols]
			p.Buffers = append(p.Buffers, b)
		}
	}
	for _, f := range second.Flags {
		f.Name = prefix + f.Name
		if f.Field != nil {
			field := *f.Field
			field.Region = j.region(field.Region)
			f.Field = &field
		}
		p.Flags = append(p.Flags, f)
	}
	j.plan = p
	parts := j.first(first)
	j.second(second, parts)
	return p, nil
}

// joiner translates the second plan.
type joiner struct {
	plan    *Plan
	out, in BufferID
	buffers BufferID // of the first plan
	flags   FlagID
	dims    [numDims]Dim
}

// part is what one task writes of the first result at a rank, with the flag that says so.
type part struct {
	region Region
	flag   FlagID
}

// first copies the queues of the first plan; who writes a part of its result raises a flag where it is.
func (j *joiner) first(from *Plan) [][]part {
	parts := make([][]part, len(from.Ranks))
	var flags []FlagID // the i-th part of any rank has the same
	for rank := range from.Ranks {
		for role, queue := range from.Ranks[rank].Queues {
			queue = slices.Clone(queue)
			for i := range queue {
				t := &queue[i]
				if t.Kind == Notify || t.Dst.Buffer != j.out {
					continue
				}
				n := len(parts[t.Peer])
				if n == len(flags) {
					flags = append(flags, FlagID(len(j.plan.Flags)))
					j.plan.Flags = append(j.plan.Flags, Flag{Name: fmt.Sprintf("%s part %d", from.Buffers[j.out].Name, n), Kind: Stamp})
				}
				parts[t.Peer] = append(parts[t.Peer], part{t.Dst, flags[n]})
				t.Signals = append(slices.Clone(t.Signals), Signal{Rank: t.Peer, Flag: flags[n]})
			}
			j.plan.Ranks[rank].Queues[role] = queue
		}
	}
	return parts
}

// second appends the queues of the second plan; who reads the operand waits for its parts.
func (j *joiner) second(from *Plan, parts [][]part) {
	for rank := range from.Ranks {
		for role, queue := range from.Ranks[rank].Queues {
			for _, t := range queue {
				t.Waits, t.Signals, t.Srcs = slices.Clone(t.Waits), slices.Clone(t.Signals), slices.Clone(t.Srcs)
				for i := range t.Waits {
					t.Waits[i].Flag += j.flags
				}
				for i := range t.Signals {
					t.Signals[i].Flag += j.flags
				}
				for i := range t.Srcs {
					t.Srcs[i] = j.region(t.Srcs[i])
				}
				if t.Kind != Notify {
					t.Dst = j.region(t.Dst)
				}
				if t.Kind != Notify && t.Kind != Reduce {
					t.Src = j.region(t.Src)
				}
				if t.Kind == Compute {
					t.B = j.region(t.B)
				}
				var waits []Wait
				for _, p := range parts[rank] {
					if p.region.overlaps(t.Src) || t.Kind == Compute && p.region.overlaps(t.B) {
						waits = append(waits, Wait{Flag: p.flag, Count: 1})
					}
				}
				t.Waits = append(waits, t.Waits...)
				j.plan.Ranks[rank].Queues[role] = append(j.plan.Ranks[rank].Queues[role], t)
			}
		}
	}
}

func (j *joiner) span(s Span) Span { s.Dim = j.dims[s.Dim]; return s }

func (j *joiner) region(r Region) Region {
	r.Rows, r.Cols = j.span(r.Rows), j.span(r.Cols)
	switch {
	case r.Buffer == j.in:
		r.Buffer = j.out
	case r.Buffer > j.in:
		r.Buffer += j.buffers - 1
	default:
		r.Buffer += j.buffers
	}
	return r
}

// overlaps reports whether two regions have elements in common at some shape.
func (r Region) overlaps(o Region) bool {
	meet := func(a, b Span) bool {
		return a.Dim == b.Dim && a.From.valid() && b.From.valid() && a.From.compare(b.To) < 0 && b.From.compare(a.To) < 0
	}
	return r.Buffer == o.Buffer && meet(r.Rows, o.Rows) && meet(r.Cols, o.Cols)
}
