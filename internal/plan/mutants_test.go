package plan

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// clone copies a plan deeply enough that no mutation of the copy shows in the original.
func clone(p *Plan) *Plan {
	q := *p
	q.World.PPN = slices.Clone(p.World.PPN)
	q.Buffers, q.Flags, q.Ranks = slices.Clone(p.Buffers), slices.Clone(p.Flags), slices.Clone(p.Ranks)
	q.Declared = slices.Clone(p.Declared)
	q.Results = slices.Clone(p.Results)
	for i := range q.Results {
		q.Results[i].A.From, q.Results[i].B.From = slices.Clone(q.Results[i].A.From), slices.Clone(q.Results[i].B.From)
	}
	for i := range q.Buffers {
		q.Buffers[i].Parts = slices.Clone(q.Buffers[i].Parts)
	}
	for rank := range q.Ranks {
		for role := range q.Ranks[rank].Queues {
			queue := slices.Clone(q.Ranks[rank].Queues[role])
			for i := range queue {
				queue[i].Waits, queue[i].Signals = slices.Clone(queue[i].Waits), slices.Clone(queue[i].Signals)
				queue[i].Srcs = slices.Clone(queue[i].Srcs)
			}
			q.Ranks[rank].Queues[role] = queue
		}
	}
	return &q
}

// site is a task of a plan that a mutation is applied to.
type site struct {
	p    *Plan
	rank int
	role Role
	i    int
}

func (s site) queue() *[]Task { return &s.p.Ranks[s.rank].Queues[s.role] }
func (s site) task() *Task    { return &(*s.queue())[s.i] }

// mutation makes one fault. variant counts from 0; it returns false when there is no such variant, or when the
// variant would leave the plan as it is.
type mutation struct {
	name   string
	mutate func(s site, variant int) bool
	// variants is how many to try; the ones that return false are not counted.
	variants func(s site) int
}

func once(site) int      { return 1 }
func perWait(s site) int { return len(s.task().Waits) }
func perSig(s site) int  { return len(s.task().Signals) }
func perRank(s site) int { return len(s.p.Ranks) }
func perSrc(s site) int  { return len(s.task().Srcs) }
func twice(f func(site) int) func(site) int {
	return func(s site) int { return 2 * f(s) }
}

// longer edits all regions of a task that have the rows and columns of its destination, as far as one has both.
func longer(t *Task, f func(r *Region)) {
	f(&t.Dst)
	if t.Kind != Reduce {
		cols := t.Src.Cols
		f(&t.Src)
		if t.Kind == Compute { // whose source has the depth for its columns
			if t.Src.Cols != cols {
				t.Src.Cols = cols
				t.B.Rows = t.Dst.Cols
			}
		}
		return
	}
	for i := range t.Srcs {
		f(&t.Srcs[i])
	}
}

func shift(s *Span, by int) bool {
	from, to := int(s.From.Num)+by, int(s.To.Num)+by
	if s.From.Den != s.To.Den || from < 0 || to > int(s.To.Den) {
		return false
	}
	s.From.Num, s.To.Num = uint32(from), uint32(to)
	return true
}

// sign turns variants 0, 1 into -1, +1.
func sign(variant int) int { return 2*(variant%2) - 1 }

func bumpFlag(p *Plan, f *FlagID, by int) bool {
	n := int(*f) + by
	if n < 0 || n >= len(p.Flags) {
		return false
	}
	*f = FlagID(n)
	return true
}

var mutations = []mutation{
	{"drop a signal", func(s site, v int) bool {
		t := s.task()
		t.Signals = slices.Delete(t.Signals, v, v+1)
		return true
	}, perSig},
	{"double a signal", func(s site, v int) bool {
		t := s.task()
		t.Signals = append(t.Signals, t.Signals[v])
		return true
	}, perSig},
	{"signal the flag next to it", func(s site, v int) bool {
		return bumpFlag(s.p, &s.task().Signals[v/2].Flag, sign(v))
	}, twice(perSig)},
	{"signal another rank", func(s site, v int) bool {
		t := s.task()
		if len(t.Signals) == 0 || t.Signals[0].Rank == v {
			return false
		}
		t.Signals[0].Rank = v
		return true
	}, perRank},
	{"swap signals with the next task", func(s site, _ int) bool {
		q := *s.queue()
		if s.i+1 == len(q) || slices.EqualFunc(q[s.i].Signals, q[s.i+1].Signals, func(a, b Signal) bool { return alike(s.p, a, b) }) {
			return false
		}
		q[s.i].Signals, q[s.i+1].Signals = q[s.i+1].Signals, q[s.i].Signals
		return true
	}, once},
	{"drop a wait", func(s site, v int) bool {
		t := s.task()
		t.Waits = slices.Delete(t.Waits, v, v+1)
		return true
	}, perWait},
	{"count of a wait off by one", func(s site, v int) bool {
		w := &s.task().Waits[v/2]
		w.Count = uint32(int(w.Count) + sign(v))
		return true
	}, twice(perWait)},
	{"lag of a wait flipped", func(s site, v int) bool {
		s.task().Waits[v].Lag ^= 1
		return true
	}, perWait},
	{"wait for the flag next to it", func(s site, v int) bool {
		return bumpFlag(s.p, &s.task().Waits[v/2].Flag, sign(v))
	}, twice(perWait)},
	{"swap waits with the next task", func(s site, _ int) bool {
		q := *s.queue()
		if s.i+1 == len(q) || slices.Equal(q[s.i].Waits, q[s.i+1].Waits) {
			return false
		}
		q[s.i].Waits, q[s.i+1].Waits = q[s.i+1].Waits, q[s.i].Waits
		return true
	}, once},
	{"leave the task out", func(s site, _ int) bool {
		*s.queue() = slices.Delete(*s.queue(), s.i, s.i+1)
		return true
	}, once},
	{"leave the task out, and all that is said about it", func(s site, _ int) bool {
		t := *s.task()
		*s.queue() = slices.Delete(*s.queue(), s.i, s.i+1)
		for _, sig := range t.Signals {
			retire(s.p, sig)
		}
		return true
	}, once},
	{"do the task twice", func(s site, v int) bool {
		at := s.i
		if v == 1 {
			at = len(*s.queue())
		}
		t := *s.task()
		*s.queue() = slices.Insert(*s.queue(), at, t)
		return len(t.Signals) > 0 || t.Kind != Notify // else it only waits twice
	}, twice(once)},
	{"do the task twice, the second time in silence", func(s site, _ int) bool {
		t := *s.task()
		t.Signals = nil
		*s.queue() = append(*s.queue(), t)
		return t.Kind != Notify
	}, once},
	{"another peer", func(s site, v int) bool {
		t := s.task()
		if t.Peer == v {
			return false
		}
		t.Peer = v
		return true
	}, perRank},
	{"another peer, with its signal", func(s site, v int) bool {
		t := s.task()
		if t.Peer == v || len(t.Signals) == 0 {
			return false
		}
		t.Peer, t.Signals[0].Rank = v, v
		return true
	}, perRank},
	{"source rows shifted", func(s site, v int) bool { return shift(&s.task().Src.Rows, sign(v)) }, twice(once)},
	{"destination rows shifted", func(s site, v int) bool { return shift(&s.task().Dst.Rows, sign(v)) }, twice(once)},
	{"both rows shifted: another chunk", func(s site, v int) bool {
		t := s.task()
		for i := range t.Srcs {
			shift(&t.Srcs[i].Rows, sign(v))
		}
		return (t.Kind == Reduce || shift(&t.Src.Rows, sign(v))) && shift(&t.Dst.Rows, sign(v))
	}, twice(once)},
	{"rows one cut point longer", func(s site, _ int) bool {
		t := s.task()
		if t.Dst.Rows.To.Num >= t.Dst.Rows.To.Den {
			return false
		}
		longer(t, func(r *Region) { r.Rows.To.Num++ })
		return true
	}, once},
	{"half the rows", func(s site, _ int) bool {
		t := s.task()
		half := Ratio{t.Dst.Rows.From.Num + t.Dst.Rows.To.Num, 2 * t.Dst.Rows.To.Den}
		longer(t, func(r *Region) { r.Rows.To = half })
		return t.Kind != Notify
	}, once},
	{"half the columns", func(s site, _ int) bool {
		t := s.task()
		longer(t, func(r *Region) { r.Cols.To = Ratio{1, 2} })
		return t.Kind != Notify
	}, once},
	{"a source of a sum left out", func(s site, v int) bool {
		t := s.task()
		t.Srcs = slices.Delete(t.Srcs, v, v+1)
		return true
	}, perSrc},
	{"a source of a sum left out, and the slot it was in", func(s site, v int) bool {
		t := s.task()
		out := t.Srcs[v].Buffer
		rank := s.rank
		t.Srcs = slices.Delete(t.Srcs, v, v+1)
		for r := range s.p.Ranks {
			for role := range s.p.Ranks[r].Queues {
				q := &s.p.Ranks[r].Queues[role]
				for i := len(*q) - 1; i >= 0; i-- {
					if w := (*q)[i]; w.Kind != Notify && w.Peer == rank && w.Dst.Buffer == out && w.Dst.Rows.same(t.Dst.Rows) {
						*q = slices.Delete(*q, i, i+1)
						for _, sig := range w.Signals {
							retire(s.p, sig)
						}
						for _, wait := range w.Waits {
							unheed(s.p, r, wait.Flag)
						}
					}
				}
			}
		}
		return true
	}, perSrc},
	{"a source of a sum twice", func(s site, v int) bool {
		t := s.task()
		t.Srcs = append(t.Srcs, t.Srcs[v])
		return true
	}, perSrc},
	{"another source of a sum", func(s site, v int) bool {
		r := &s.task().Srcs[v/2]
		id := int(r.Buffer) + sign(v)
		if id >= len(s.p.Buffers) {
			return false
		}
		r.Buffer = BufferID(id)
		return true
	}, twice(perSrc)},
	{"sources of a sum swapped", func(s site, v int) bool {
		t := s.task()
		if v+1 >= len(t.Srcs) {
			return false
		}
		t.Srcs[v], t.Srcs[v+1] = t.Srcs[v+1], t.Srcs[v]
		return true
	}, perSrc},
	{"rows of a source of a sum shifted", func(s site, v int) bool { return shift(&s.task().Srcs[v/2].Rows, sign(v)) }, twice(perSrc)},
	{"a sum bracketed otherwise, through a slot of fp32", func(s site, v int) bool { return throughExtra(s, ElemFP32, 1+v, false) }, perSrc},
	{"a sum bracketed otherwise, through a slot of the operands' type", func(s site, v int) bool { return throughExtra(s, ElemOperand, 1+v, false) }, perSrc},
	{"the first partial sums rounded on their way", func(s site, v int) bool { return throughExtra(s, ElemOperand, 2+v, true) }, perSrc},
	{"what it makes is also put where nobody reads it", func(s site, _ int) bool {
		t := *s.task()
		if t.Kind == Notify {
			return false
		}
		t.Dst.Buffer, t.Signals = extraBuffer(s.p, t.Dst.Buffer, s.p.Buffers[t.Dst.Buffer].Elem), nil
		*s.queue() = append(*s.queue(), t)
		return true
	}, once},
	{"no sources", func(s site, _ int) bool {
		had := s.task().Srcs != nil
		s.task().Srcs = nil
		return had
	}, once},
	{"a product split in its depth, both halves into one place", func(s site, _ int) bool {
		t := s.task()
		if t.Kind != Compute {
			return false
		}
		second := *t
		second.Signals, second.Waits = slices.Clone(t.Signals), slices.Clone(t.Waits)
		t.Src.Cols.To, t.B.Cols.To = Ratio{1, 2}, Ratio{1, 2}
		second.Src.Cols.From, second.B.Cols.From = Ratio{1, 2}, Ratio{1, 2}
		t.Signals = nil
		*s.queue() = slices.Insert(*s.queue(), s.i+1, second)
		return true
	}, once},
	{"half the depth", func(s site, _ int) bool {
		t := s.task()
		t.Src.Cols.To, t.B.Cols.To = Ratio{1, 2}, Ratio{1, 2}
		return t.Kind == Compute
	}, once},
	{"half of the second operand", func(s site, _ int) bool {
		t := s.task()
		t.B.Rows.To, t.Dst.Cols.To = Ratio{1, 2}, Ratio{1, 2}
		return t.Kind == Compute
	}, once},
	{"another source buffer", func(s site, v int) bool {
		t := s.task()
		if t.Kind == Notify || t.Src.Buffer == BufferID(v) {
			return false
		}
		t.Src.Buffer = BufferID(v)
		return true
	}, func(s site) int { return len(s.p.Buffers) }},
	{"another second operand", func(s site, v int) bool {
		t := s.task()
		if t.Kind != Compute || t.B.Buffer == BufferID(v) {
			return false
		}
		t.B.Buffer = BufferID(v)
		return true
	}, func(s site) int { return len(s.p.Buffers) }},
	{"another destination buffer", func(s site, v int) bool {
		t := s.task()
		if t.Kind == Notify || t.Dst.Buffer == BufferID(v) {
			return false
		}
		t.Dst.Buffer = BufferID(v)
		return true
	}, func(s site) int { return len(s.p.Buffers) }},
	{"another kind", func(s site, v int) bool {
		t := s.task()
		if t.Kind == Kind(v) {
			return false
		}
		t.Kind = Kind(v)
		return true
	}, func(site) int { return len(kindNames) + 1 }},
	{"another queue", func(s site, v int) bool {
		if s.role == Role(v) {
			return false
		}
		t := *s.task()
		*s.queue() = slices.Delete(*s.queue(), s.i, s.i+1)
		other := &s.p.Ranks[s.rank].Queues[v]
		*other = append(*other, t)
		return true
	}, func(site) int { return int(NumRoles) }},
	{"a flag lost with all that is said about it", func(s site, v int) bool {
		flag := s.task().Waits[v].Flag
		edit(s.p, func(rank int, t *Task) {
			t.Signals = slices.DeleteFunc(t.Signals, func(x Signal) bool { return x == Signal{s.rank, flag} })
			if rank == s.rank {
				t.Waits = slices.DeleteFunc(t.Waits, func(w Wait) bool { return w.Flag == flag })
			}
		})
		return true
	}, perWait},
	{"a signal lost, and counted on no more", func(s site, v int) bool {
		sig := s.task().Signals[v]
		s.task().Signals = slices.Delete(s.task().Signals, v, v+1)
		retire(s.p, sig)
		return true
	}, perSig},
	{"a signal raised early, by the task before", func(s site, v int) bool {
		if s.i == 0 {
			return false
		}
		t, before := s.task(), &(*s.queue())[s.i-1]
		before.Signals = append(before.Signals, t.Signals[v])
		t.Signals = slices.Delete(t.Signals, v, v+1)
		return true
	}, perSig},
	{"nonsense in a field", func(s site, v int) bool {
		return nonsense[v](s.task(), s.p)
	}, func(site) int { return len(nonsense) }},
	{"a wait for the flag of another epoch, both ways", func(s site, v int) bool {
		w := &s.task().Waits[v]
		w.Lag ^= 1
		if w.Lag == 0 && s.i+1 < len(*s.queue()) {
			q := *s.queue()
			q[s.i], q[s.i+1] = q[s.i+1], q[s.i]
		}
		return true
	}, perWait},
	{"a gate moved", func(s site, v int) bool {
		t := s.task()
		step := int(t.Waits[v/2].Step) + sign(v)
		if t.Steps == 0 || step < 0 {
			return false
		}
		t.Waits[v/2].Step = uint32(step)
		return sign(v) > 0 // one that stands earlier is right, if slow
	}, twice(perWait)},
	{"another number of steps", func(s site, v int) bool {
		t := s.task()
		t.Steps = uint32(int(t.Steps) + []int{1, 2, -1}[v])
		// More steps stand earlier, which is right, if slow.
		return t.Kind != Compute || v == 2 && len(t.Waits) > 0 && t.Waits[len(t.Waits)-1].Step > 0
	}, func(site) int { return 3 }},
	{"the wait for what a product reads made a gate behind its first part", func(s site, v int) bool {
		t := s.task()
		w := t.Waits[v]
		brings := false
		edit(s.p, func(_ int, o *Task) {
			brings = brings || o.Dst.Buffer == t.Src.Buffer && slices.Contains(o.Signals, Signal{s.rank, w.Flag})
		})
		if t.Kind != Compute || t.Steps > 0 || w.Lag > 0 || !brings {
			return false
		}
		t.Steps, w.Step = uint32(2+v%2), 1
		t.Waits = append(slices.Delete(t.Waits, v, v+1), w)
		return true
	}, perWait},
	{"a wait twice over", func(s site, v int) bool {
		t := s.task()
		t.Waits = append(t.Waits, t.Waits[v])
		return true
	}, perWait},
}

// extraBuffer adds a landing buffer that is held as another is.
func extraBuffer(p *Plan, like BufferID, elem Elem) BufferID {
	b := p.Buffers[like]
	b.Name, b.Kind, b.Elem, b.Sum, b.Shared = "extra", BufLanding, elem, false, false
	p.Buffers = append(p.Buffers, b)
	return BufferID(len(p.Buffers) - 1)
}

// throughExtra lets a sum add some of its sources first, into a buffer of their own: those from the n-th on, or those
// before it. It returns false if that gives the same bits.
func throughExtra(s site, elem Elem, n int, before bool) bool {
	t := s.task()
	if t.Kind != Reduce || n > len(t.Srcs) || !before && n+1 >= len(t.Srcs) {
		return false
	}
	if before && n == len(t.Srcs) && s.p.Buffers[t.Dst.Buffer].Elem == ElemOperand {
		return false // rounded twice
	}
	first := *t
	extra := t.Dst
	extra.Buffer = extraBuffer(s.p, t.Dst.Buffer, elem)
	flag := s.p.addFlag(Stamp, "extra")
	first.Dst, first.Signals = extra, []Signal{{s.rank, flag}}
	second := *t
	second.Waits = append(slices.Clone(t.Waits), Wait{Flag: flag, Count: 1})
	if before {
		first.Srcs, second.Srcs = t.Srcs[:n], append([]Region{extra}, t.Srcs[n:]...)
	} else {
		first.Srcs, second.Srcs = t.Srcs[n:], append(slices.Clone(t.Srcs[:n]), extra)
	}
	*s.queue() = slices.Replace(*s.queue(), s.i, s.i+1, first, second)
	return true
}

// nonsense puts values into fields of a task that no plan has there; false if it has no such field.
var nonsense = []func(t *Task, p *Plan) bool{
	func(t *Task, p *Plan) bool { t.Peer = len(p.Ranks); return true },
	func(t *Task, p *Plan) bool { t.Peer = -1; return true },
	func(t *Task, p *Plan) bool {
		t.Waits = append(t.Waits, Wait{Flag: FlagID(len(p.Flags)), Count: 1})
		return true
	},
	func(t *Task, p *Plan) bool {
		t.Signals = append(t.Signals, Signal{Flag: FlagID(len(p.Flags))})
		return true
	},
	func(t *Task, p *Plan) bool {
		t.Signals = append(t.Signals, Signal{Rank: len(p.Ranks)})
		return len(p.Flags) > 0
	},
	func(t *Task, _ *Plan) bool { t.Src.Buffer = 999; return true },
	func(t *Task, _ *Plan) bool { t.Dst.Buffer = 999; return true },
	func(t *Task, _ *Plan) bool { t.B.Buffer = 999; return true },
	func(t *Task, _ *Plan) bool { t.Srcs = append(t.Srcs, Region{Buffer: 999}); return true },
	func(t *Task, _ *Plan) bool {
		if t.Srcs == nil {
			return false
		}
		t.Srcs[0].Buffer = 0 // an input
		return true
	},
	func(t *Task, _ *Plan) bool { t.Src.Rows.Dim = 9; return true },
	func(t *Task, _ *Plan) bool { t.Dst.Cols.Dim = DimM; return t.Kind != Notify },
	func(t *Task, _ *Plan) bool { t.Dst.Rows.From.Den = 0; return t.Kind != Notify },
	func(t *Task, _ *Plan) bool { t.B.Rows.To = Ratio{2, 1}; return true },
	func(t *Task, _ *Plan) bool {
		t.Src.Rows.From, t.Src.Rows.To = t.Src.Rows.To, t.Src.Rows.From
		return t.Kind != Notify && t.Kind != Reduce
	},
	func(t *Task, _ *Plan) bool {
		t.Src.Rows.To = t.Src.Rows.From
		return t.Kind != Notify && t.Kind != Reduce
	},
	func(t *Task, _ *Plan) bool { t.Dst.Rows.To = t.Dst.Rows.From; return t.Kind != Notify },
	func(t *Task, _ *Plan) bool {
		if len(t.Waits) == 0 {
			return false
		}
		t.Waits[0].Lag = 2
		return true
	},
	func(t *Task, _ *Plan) bool {
		if len(t.Waits) == 0 {
			return false
		}
		t.Waits[0].Lag = 1 << 31
		return true
	},
	func(t *Task, _ *Plan) bool {
		if len(t.Waits) == 0 {
			return false
		}
		t.Waits[0].Count = 0
		return true
	},
}

func edit(p *Plan, f func(rank int, t *Task)) {
	for rank := range p.Ranks {
		for role := range p.Ranks[rank].Queues {
			for i := range p.Ranks[rank].Queues[role] {
				f(rank, &p.Ranks[rank].Queues[role][i])
			}
		}
	}
}

// alike reports whether two signals say the same to those who wait for them: to exchange them is to exchange names.
func alike(p *Plan, a, b Signal) bool {
	if a.Rank != b.Rank {
		return false
	}
	same := true
	edit(p, func(rank int, t *Task) {
		if rank == a.Rank {
			at := func(flag FlagID) int { return slices.IndexFunc(t.Waits, func(w Wait) bool { return w.Flag == flag }) }
			i, j := at(a.Flag), at(b.Flag)
			if (i < 0) != (j < 0) || i >= 0 && t.Waits[i].Lag != t.Waits[j].Lag {
				same = false
			}
		}
	})
	return same
}

// unheed lets nobody signal a flag of a rank for which nobody waits any more.
func unheed(p *Plan, rank int, flag FlagID) {
	heeded := false
	edit(p, func(r int, t *Task) {
		heeded = heeded || r == rank && slices.ContainsFunc(t.Waits, func(w Wait) bool { return w.Flag == flag })
	})
	if heeded {
		return
	}
	edit(p, func(_ int, t *Task) {
		t.Signals = slices.DeleteFunc(t.Signals, func(s Signal) bool { return s == Signal{rank, flag} })
	})
}

// retire makes the waits for a flag expect one signal less, or go if none is left.
func retire(p *Plan, sig Signal) {
	edit(p, func(rank int, t *Task) {
		if rank != sig.Rank {
			return
		}
		t.Waits = slices.DeleteFunc(t.Waits, func(w Wait) bool { return w.Flag == sig.Flag && w.Count == 1 })
		for i := range t.Waits {
			if t.Waits[i].Flag == sig.Flag {
				t.Waits[i].Count--
			}
		}
	})
}

// planMutations are faults of a plan's tables.
var planMutations = []struct {
	name   string
	mutate func(p *Plan) bool
}{
	{"a queue missing", func(p *Plan) bool { p.Ranks = p.Ranks[1:]; return true }},
	{"no node", func(p *Plan) bool { p.World.PPN = nil; return true }},
	{"another world", func(p *Plan) bool {
		p.World = Uniform(1, len(p.Ranks))
		return p.World.Nodes() > 1
	}},
	{"no chunks", func(p *Plan) bool { p.Chunks = 0; return true }},
	{"shards not shards", func(p *Plan) bool {
		i := slices.IndexFunc(p.Buffers, func(b Buffer) bool { return b.Sharded && b.Kind != BufLanding })
		if i < 0 || len(p.Ranks) == 1 {
			return false
		}
		p.Buffers[i].Sharded = false
		return true
	}},
	{"whole buffer sharded", func(p *Plan) bool {
		i := slices.IndexFunc(p.Buffers, func(b Buffer) bool { return !b.Sharded })
		p.Buffers[i].Sharded = true
		return len(p.Ranks) > 1
	}},
	{"a sum taken for a product, or the other way round", func(p *Plan) bool {
		p.Buffers[agC].Sum = !p.Buffers[agC].Sum
		return len(p.Ranks) > 1 // on one rank they are the same
	}},
	{"a result that is not in the heap after all", func(p *Plan) bool {
		was := p.Buffers[agC].Shared
		p.Buffers[agC].Shared = false
		return was
	}},
	{"the result said to be another sum", func(p *Plan) bool {
		p.Results[0].Sum = (p.Results[0].Sum + 1) % Sum(len(sumNames))
		return true
	}},
	{"the result said to have partial sums of another type", func(p *Plan) bool {
		p.Results[0].Partials = 1 - p.Results[0].Partials
		return len(p.Ranks) > 1 && p.Buffers[agC].Sum
	}},
	{"the result said to be of another rank's operand", func(p *Plan) bool {
		from := make([]int, len(p.Ranks))
		for rank := range from {
			from[rank] = (rank + 1) % len(from)
		}
		p.Results[0].B.From = from
		return true
	}},
	{"the result said to be of two parts of the depth", func(p *Plan) bool { p.Results[0].Depth = 2; return true }},
	{"the result said to be of one operand", func(p *Plan) bool { p.Results[0].B = p.Results[0].A; return true }},
	{"no result said", func(p *Plan) bool { p.Results = nil; return true }},
	{"a result said twice", func(p *Plan) bool { p.Results = append(p.Results, p.Results[0]); return true }},
	{"a result of another name", func(p *Plan) bool { p.Results[0].Name = "d"; return true }},
	{"a result that is not given out", func(p *Plan) bool { p.Results[0].Inner = true; return true }},
	{"an input said to be a sum", func(p *Plan) bool { p.Buffers[agA].Sum = true; return true }},
	{"an output said to be the same on all ranks", func(p *Plan) bool { p.Buffers[agC].Same = true; return true }},
	{"an operand said to be the same on all ranks", func(p *Plan) bool {
		// The operands of a sum are each rank's own.
		p.Buffers[agA].Same, p.Buffers[agB].Same = true, true
		return p.Buffers[agC].Sum || p.Buffers[agA].Sharded
	}},
	{"an input of fp32", func(p *Plan) bool { p.Buffers[agA].Elem = ElemFP32; return true }},
	{"a buffer of an unknown type", func(p *Plan) bool { p.Buffers[len(p.Buffers)-1].Elem = 7; return true }},
	{"another type of what others write here", func(p *Plan) bool {
		for rank := range p.Ranks {
			for role := range p.Ranks[rank].Queues {
				for _, t := range p.Ranks[rank].Queues[role] {
					if b := &p.Buffers[t.Dst.Buffer]; t.Peer != rank && b.Kind == BufLanding {
						b.Elem = 1 - b.Elem
						return true
					}
				}
			}
		}
		return false
	}},
	{"another part in a rank's slots", func(p *Plan) bool {
		for i := range p.Buffers {
			for rank, part := range p.Buffers[i].Parts {
				if part >= 0 && len(p.Ranks) > 1 {
					p.Buffers[i].Parts[rank] = (part + 1) % int32(len(p.Ranks))
					return true
				}
			}
		}
		return false
	}},
	{"a part that is not there", func(p *Plan) bool {
		for i := range p.Buffers {
			if p.Buffers[i].Parts != nil {
				p.Buffers[i].Parts[0] = int32(len(p.Ranks))
				return true
			}
		}
		return false
	}},
	{"parts of too few ranks", func(p *Plan) bool {
		for i := range p.Buffers {
			if p.Buffers[i].Parts != nil {
				p.Buffers[i].Parts = p.Buffers[i].Parts[1:]
				return true
			}
		}
		return false
	}},
	{"output as input", func(p *Plan) bool { p.Buffers[agC].Kind = BufInput; return true }},
	{"input as output", func(p *Plan) bool { p.Buffers[agB].Kind = BufOutput; return true }},
	{"input as landing", func(p *Plan) bool { p.Buffers[agB].Kind = BufLanding; return true }},
	{"landing as output", func(p *Plan) bool {
		if len(p.Buffers) > int(agGathered) {
			p.Buffers[agGathered].Kind = BufOutput
		}
		return len(p.Buffers) > int(agGathered)
	}},
	{"landing as input", func(p *Plan) bool {
		if len(p.Buffers) > int(agGathered) {
			p.Buffers[agGathered].Kind = BufInput
		}
		return len(p.Ranks) > 1
	}},
	{"unknown buffer kind", func(p *Plan) bool { p.Buffers[agA].Kind = 9; return true }},
	{"buffer of other dims", func(p *Plan) bool { p.Buffers[agA].Cols = DimN; return true }},
	{"buffer of unknown dims", func(p *Plan) bool { p.Buffers[agA].Cols = 7; return true }},
	{"two buffers of one name", func(p *Plan) bool { p.Buffers[agA].Name = "b"; return true }},
	{"two flags of one name", func(p *Plan) bool {
		if len(p.Flags) < 2 {
			return false
		}
		p.Flags[0].Name = p.Flags[1].Name
		return true
	}},
	{"unknown flag kind", func(p *Plan) bool {
		if len(p.Flags) == 0 {
			return false
		}
		p.Flags[0].Kind = 3
		return true
	}},
	{"a flag too few", func(p *Plan) bool {
		if len(p.Flags) == 0 {
			return false
		}
		p.Flags = p.Flags[:len(p.Flags)-1]
		return true
	}},
	{"more declared of a link", func(p *Plan) bool {
		p.Declared = append(p.Declared, onLink(0, len(p.Ranks)-1, Part(DimM, 1, 97), All(DimK)))
		return len(p.Ranks) > 1
	}},
	{"more declared of all links within nodes", func(p *Plan) bool {
		p.Declared = append(p.Declared, p.Declared[0])
		return len(p.Ranks) > p.World.Nodes()
	}},
	{"a flow not declared within nodes", func(p *Plan) bool {
		p.Declared = p.Declared[1:]
		return len(p.Ranks) > p.World.Nodes()
	}},
	{"a flow not declared between nodes", func(p *Plan) bool {
		p.Declared = slices.Delete(p.Declared, 1, 2)
		return p.World.Nodes() > 1
	}},
	{"other parts declared of the same links: as many bytes in all", func(p *Plan) bool {
		for i := range p.Declared {
			swap := map[Path]Path{PathGatherMates: PathScatterMates, PathScatterMates: PathGatherMates, PathGatherRails: PathScatterRails, PathScatterRails: PathGatherRails}
			if to, ok := swap[p.Declared[i].Path]; ok && len(p.Declared) == 2 {
				p.Declared[i].Path = to
			} else {
				return false
			}
		}
		return len(p.Ranks) > 1
	}},
	{"the bytes of one link declared of another", func(p *Plan) bool {
		for rank := range p.Ranks {
			for role := range p.Ranks[rank].Queues {
				for _, t := range p.Ranks[rank].Queues[role] {
					if t.Kind != Notify && t.Peer != rank {
						// As many bytes in all: one link is declared to carry more, and a task goes there that does not.
						p.Declared = append(p.Declared, Flow{From: t.Peer, To: rank, Elem: p.Buffers[t.Dst.Buffer].Elem, Rows: t.Dst.Rows, Cols: t.Dst.Cols})
						return true
					}
				}
			}
		}
		return false
	}},
	{"declared of another matrix", func(p *Plan) bool {
		for i := range p.Declared {
			p.Declared[i].Rows, p.Declared[i].Cols = All(DimN), All(DimK)
		}
		return len(p.Ranks) > 1
	}},
	{"declared of another type", func(p *Plan) bool {
		p.Declared[0].Elem = 1 - p.Declared[0].Elem
		return len(p.Ranks) > p.World.Nodes()
	}},
	{"declared of an unknown type", func(p *Plan) bool { p.Declared[0].Elem = 9; return true }},
	{"declared of unknown links", func(p *Plan) bool { p.Declared[0].Path = 9; return true }},
	{"declared without meaning", func(p *Plan) bool { p.Declared[0].Rows = Span{}; return true }},
	{"declared of part of the rows", func(p *Plan) bool { p.Declared[1].Rows = Part(DimM, 0, 2); return true }},
	{"declared of a rank that is not there", func(p *Plan) bool {
		p.Declared = append(p.Declared, onLink(0, len(p.Ranks), All(DimM), All(DimK)))
		return true
	}},
	{"declared from a rank to itself", func(p *Plan) bool { p.Declared = append(p.Declared, onLink(0, 0, All(DimM), All(DimK))); return true }},
}

// equivalents are mutants that are right plans, with the reason.
var equivalents = map[string]string{
	`one-shot [3] wait for the flag next to it variant 1 of rank 2 intra task 1: wait for "computed chunk 0" and "free at local rank 1 chunk 0" of the epoch before; copy slot 2[all M, all N] to slot 2 of rank 1; signal "partials chunk 0" at rank 1`: "it waits until rank 0 has added the same product, which is later than when it was computed",
}

// score counts mutants of one name.
type score struct{ made, killed int }

// TestMutants makes every mutation of every task of several plans; Verify has to refuse each with its place.
func TestMutants(t *testing.T) {
	type mutated struct {
		make   string
		ppn    []int
		chunks int
	}
	cases := []mutated{
		{"ag_gemm", []int{1}, 2}, {"ag_gemm", []int{3}, 1}, {"ag_gemm", []int{1, 1, 1}, 1}, {"ag_gemm", []int{2, 2}, 2}, {"ag_gemm", []int{3, 1}, 1},
		{"gemm_rs", []int{1}, 2}, {"gemm_rs", []int{2}, 2}, {"gemm_rs", []int{2, 2}, 1}, {"gemm_rs fp32", []int{1, 2}, 1}, {"gemm_rs", []int{1, 1, 1}, 1},
		{"gemm_ar two-shot", []int{2}, 1}, {"gemm_ar two-shot", []int{2, 1}, 1},
		{"gemm_ar one-shot", []int{3}, 1}, {"gemm_ar one-shot", []int{2, 1}, 1}, {"gemm_ar one-shot", []int{1, 1}, 2},
	}
	if brief {
		cases = []mutated{{"ag_gemm", []int{2, 1}, 1}, {"gemm_rs", []int{2, 1}, 1}, {"gemm_ar one-shot", []int{1, 1}, 1}}
	} else if !testing.Short() {
		cases = append(cases, mutated{"ag_gemm", []int{1, 3}, 2}, mutated{"ag_gemm", []int{2, 3, 1}, 1}, mutated{"gemm_rs", []int{2, 3, 1}, 1},
			mutated{"gemm_ar two-shot", []int{2, 2}, 2}, mutated{"gemm_ar one-shot", []int{2, 2}, 2})
	}
	equivalent := 0
	byName := make(map[string]*score)
	byKind := make(map[string]*score)
	byRule := make(map[Rule]int)
	count := func(m map[string]*score, key string, killed bool) {
		if m[key] == nil {
			m[key] = &score{}
		}
		m[key].made++
		if killed {
			m[key].killed++
		}
	}
	check := func(name, kind string, original, mutant *Plan, what string, near []int) {
		err := Verify(mutant)
		if err == nil && reflect.DeepEqual(original, mutant) {
			return // the variant changes nothing here
		}
		if reason := equivalents[original.Algorithm+" "+fmt.Sprint(original.World.PPN)+" "+name+" "+what]; err == nil && reason != "" {
			equivalent++
			for seed := range uint64(300) {
				if err := simulate(mutant, seed, 4); err != nil {
					t.Errorf("%s: %s: thought to be right, since %s, but %v", name, what, reason, err)
				}
			}
			return
		}
		count(byName, name, err != nil)
		count(byKind, kind, err != nil)
		if err == nil {
			t.Errorf("%s on %v, %d chunks: survived: %s: %s", original.Operator+" "+original.Algorithm, original.World.PPN, original.Chunks, name, what)
			return
		}
		var f *Fault
		if !errors.As(err, &f) || f.Rule == "" || f.Detail == "" {
			t.Errorf("%s: not a fault with a rule and a reason: %v", name, err)
			return
		}
		byRule[f.Rule]++
		if near == nil || f.Rule == RuleTraffic {
			return
		}
		for _, rank := range near {
			if f.Rank == rank || strings.Contains(err.Error(), fmt.Sprintf("rank %d", rank)) {
				return
			}
		}
		t.Errorf("%s: %s: the place is not named: %v", name, what, err)
	}
	plans := []*Plan{gatedProduct(), oneAfterTheOther(), landingUsedTwice()}
	for _, c := range cases {
		i := slices.IndexFunc(planMakers, func(m planMaker) bool { return m.name == c.make })
		plans = append(plans, planMakers[i].must(t, World{PPN: c.ppn}, c.chunks))
	}
	for _, p := range plans {
		if err := Verify(p); err != nil {
			t.Fatal(err)
		}
		for _, m := range planMutations {
			if made := p.Algorithm != "direct"; !made {
				break // they know the buffers of plans that are made
			}
			if q := clone(p); m.mutate(q) {
				check(m.name, "tables", p, q, "", nil)
			}
		}
		for rank := range p.Ranks {
			for role := range NumRoles {
				for i, task := range p.Ranks[rank].Queues[role] {
					near := []int{rank, task.Peer}
					if task.Kind == Reduce { // and who fills its slots
						edit(p, func(from int, t *Task) {
							if t.Peer == rank && from != rank && t.Kind != Notify {
								near = append(near, from)
							}
						})
					}
					for _, s := range task.Signals {
						near = append(near, s.Rank)
					}
					for _, m := range mutations {
						for v := range m.variants(site{p, rank, role, i}) {
							q := clone(p)
							if !m.mutate(site{q, rank, role, i}, v) {
								continue
							}
							what := fmt.Sprintf("variant %d of rank %d %v task %d: %s", v, rank, role, i, p.Schedule(task))
							check(m.name, task.Kind.String(), p, q, what, near)
						}
					}
				}
			}
		}
	}
	var total score
	for _, name := range slices.Sorted(mapKeys(byName)) {
		total.made += byName[name].made
		total.killed += byName[name].killed
		t.Logf("%5d of %5d killed: %s", byName[name].killed, byName[name].made, name)
	}
	for _, kind := range slices.Sorted(mapKeys(byKind)) {
		t.Logf("%5d of %5d killed: in %s", byKind[kind].killed, byKind[kind].made, kind)
	}
	t.Logf("by rule: %v", byRule)
	t.Logf("mutants killed: %d of %d (%.2f %%); %d more are right plans, too", total.killed, total.made, 100*float64(total.killed)/float64(total.made), equivalent)
	for _, rule := range []Rule{RuleStructure, RuleLink, RuleContract, RuleFlag, RuleProgress, RuleOrder, RuleUnwritten, RuleUnread, RuleOutput, RuleMeaning, RuleTraffic} {
		if byRule[rule] == 0 {
			t.Errorf("no mutant broke the rule %q: it is not tested", rule)
		}
	}
}

func mapKeys[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
