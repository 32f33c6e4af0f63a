package plan

import (
	"fmt"
	"slices"
	"strings"
)

// String says the span in words, e.g. "M 3/8..4/8" or "all K".
func (s Span) String() string {
	if s == All(s.Dim) {
		return "all " + s.Dim.String()
	}
	return fmt.Sprintf("%v %d/%d..%d/%d", s.Dim, s.From.Num, s.From.Den, s.To.Num, s.To.Den)
}

// Describe says in one line what a task of this plan does, without its waits and signals.
func (p *Plan) Describe(t Task) string {
	switch t.Kind {
	case Copy, Send:
		return fmt.Sprintf("%v %s to %s of rank %d", t.Kind, p.region(t.Src), p.bufferName(t.Dst.Buffer), t.Peer)
	case Compute:
		dst := p.region(t.Dst)
		if int(t.Dst.Buffer) < len(p.Buffers) && p.Buffers[t.Dst.Buffer].InHeap() {
			dst += fmt.Sprintf(" of rank %d", t.Peer)
		}
		return fmt.Sprintf("compute %s = %s x %s", dst, p.region(t.Src), p.region(t.B))
	case Reduce:
		names := make([]string, len(t.Srcs))
		for i, r := range t.Srcs {
			names[i] = p.bufferName(r.Buffer)
		}
		return fmt.Sprintf("reduce %s = %s", p.region(t.Dst), strings.Join(names, " + "))
	case Notify:
		var to []string
		for _, s := range t.Signals {
			to = append(to, fmt.Sprintf("rank %d of %q", s.Rank, p.flagName(s.Flag)))
		}
		return "notify " + strings.Join(to, ", ")
	}
	return t.Kind.String() + " task"
}

// Schedule says in one line what a task waits for, does and signals.
func (p *Plan) Schedule(t Task) string {
	var b strings.Builder
	for i, w := range t.Waits {
		if i == 0 {
			b.WriteString("wait for ")
		} else {
			b.WriteString(" and ")
		}
		fmt.Fprintf(&b, "%q", p.flagName(w.Flag))
		if p.flagKind(w.Flag) == Counter {
			fmt.Fprintf(&b, " x%d", w.Count)
		}
		if w.Lag > 0 {
			b.WriteString(" of the epoch before")
		}
		if w.Step > 0 {
			fmt.Fprintf(&b, " before step %d of %d", w.Step, t.Steps)
		}
	}
	if len(t.Waits) > 0 {
		b.WriteString("; ")
	}
	b.WriteString(p.Describe(t))
	if t.Kind == Notify {
		return b.String()
	}
	for i, s := range t.Signals {
		if i == 0 {
			b.WriteString("; signal ")
		} else {
			b.WriteString(" and ")
		}
		fmt.Fprintf(&b, "%q at rank %d", p.flagName(s.Flag), s.Rank)
	}
	return b.String()
}

// Owes says who raises a flag of a rank, for messages about waits that were not satisfied:
// "rank 2 intra task 3 (copy ...)". Of a counter with many writers the first few are named.
func (p *Plan) Owes(rank int, flag FlagID) string {
	const most = 4
	var named []string
	var more int
	for from := range p.Ranks {
		for role, queue := range p.Ranks[from].Queues {
			for i, t := range queue {
				for _, s := range t.Signals {
					if s != (Signal{Rank: rank, Flag: flag}) {
						continue
					}
					if len(named) == most {
						more++
						continue
					}
					named = append(named, fmt.Sprintf("rank %d %v task %d (%s)", from, Role(role), i, p.Describe(t)))
				}
			}
		}
	}
	switch {
	case len(named) == 0:
		return "nobody"
	case more > 0:
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return strings.Join(named, ", ")
}

// Owing is the ranks of which Owes tells, in ascending order.
func (p *Plan) Owing(rank int, flag FlagID) []int {
	var owing []int
	for from := range p.Ranks {
		raises := func(t Task) bool { return slices.Contains(t.Signals, Signal{Rank: rank, Flag: flag}) }
		if slices.ContainsFunc(p.Ranks[from].Queues[:], func(queue []Task) bool { return slices.ContainsFunc(queue, raises) }) {
			owing = append(owing, from)
		}
	}
	return owing
}

func (p *Plan) region(r Region) string {
	return fmt.Sprintf("%s[%v, %v]", p.bufferName(r.Buffer), r.Rows, r.Cols)
}

func (p *Plan) bufferName(id BufferID) string {
	if int(id) < len(p.Buffers) {
		return p.Buffers[id].Name
	}
	return fmt.Sprintf("buffer %d", id)
}

func (p *Plan) flagName(id FlagID) string {
	if int64(id) < int64(len(p.Flags)) {
		return p.Flags[id].Name
	}
	return fmt.Sprintf("flag %d", id)
}

func (p *Plan) flagKind(id FlagID) FlagKind {
	if int64(id) < int64(len(p.Flags)) {
		return p.Flags[id].Kind
	}
	return Stamp
}
