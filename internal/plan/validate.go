package plan

import (
	"fmt"
	"math"
)

// maxFlagWords bounds ranks times flags, of which tables are made: 40 times what ag_gemm has on 64 x 8 ranks.
const maxFlagWords = 1 << 27

// maxBuffers is what a BufferID can name.
const maxBuffers = 1 << 16

// Validate checks what can be seen of each part of a plan on its own: indices in range, ratios that mean
// something, tasks in queues and between ranks where they belong, operands that fit, regions inside their
// buffers, and one writer per stamp. Nothing else in the package may be asked about a plan that fails it,
// except Describe, Schedule, Owes, Counts and Dump. The error is a *Fault.
func (p *Plan) Validate() error {
	if f := p.validate(); f != nil {
		return f
	}
	return nil
}

func (p *Plan) validate() *Fault {
	if f := p.validateHead(); f != nil {
		return f
	}
	v := validator{p: p, size: len(p.Ranks), written: make([]bool, len(p.Ranks)*len(p.Flags))}
	for node, ppn := range p.World.PPN {
		for local := range ppn {
			v.node = append(v.node, node)
			v.local = append(v.local, local)
		}
	}
	for rank := range p.Ranks {
		for role := range NumRoles {
			for i := range p.Ranks[rank].Queues[role] {
				if f := v.task(rank, role, i); f != nil {
					return f
				}
			}
		}
	}
	return nil
}

// validateHead checks everything but the tasks.
func (p *Plan) validateHead() *Fault {
	if err := p.World.Validate(); err != nil {
		return planFault(RuleStructure, "%v", err)
	}
	if size := p.World.Size(); len(p.Ranks) != size {
		return planFault(RuleStructure, "%d ranks have queues in a world of %d", len(p.Ranks), size)
	}
	if p.Chunks < 1 {
		return planFault(RuleStructure, "shards cannot travel in %d chunks", p.Chunks)
	}
	if int64(len(p.Ranks))*int64(len(p.Flags)) > maxFlagWords {
		return planFault(RuleStructure, "%d flags on %d ranks are more than %d words", len(p.Flags), len(p.Ranks), maxFlagWords)
	}
	if len(p.Buffers) > maxBuffers || int64(len(p.Ranks))*int64(len(p.Buffers)) > maxFlagWords {
		return planFault(RuleStructure, "%d buffers are more than %d, or on %d ranks more than %d", len(p.Buffers), maxBuffers, len(p.Ranks), maxFlagWords)
	}
	names := make(map[string]bool)
	for i := range p.Buffers {
		b := &p.Buffers[i]
		switch {
		case b.Name == "" || names[b.Name]:
			return planFault(RuleStructure, "buffer %d has no name of its own: %q", i, b.Name)
		case int(b.Kind) >= len(bufferNames):
			return planFault(RuleStructure, "buffer %q is of kind %v", b.Name, b.Kind)
		case b.Rows >= numDims || b.Cols >= numDims:
			return planFault(RuleStructure, "buffer %q has dims %v x %v", b.Name, b.Rows, b.Cols)
		case int(b.Elem) >= len(elemNames) || b.Elem != ElemOperand && b.Kind != BufLanding:
			return planFault(RuleStructure, "buffer %q, an %v, has elements of type %v", b.Name, b.Kind, b.Elem)
		case b.Parts != nil && (!b.Sharded || b.Kind != BufLanding || len(b.Parts) != len(p.Ranks)):
			return planFault(RuleStructure, "buffer %q names parts of %d ranks; only a sharded landing buffer does so, of all %d", b.Name, len(b.Parts), len(p.Ranks))
		case b.Same && (b.Kind != BufInput || b.Sharded):
			return planFault(RuleStructure, "buffer %q is no input that all ranks could have the same of", b.Name)
		case (b.Sum || b.Shared) && b.Kind != BufOutput:
			return planFault(RuleStructure, "buffer %q is no output, so it is no sum and not shared", b.Name)
		}
		for rank, part := range b.Parts {
			if part < -1 || int(part) >= len(p.Ranks) {
				return planFault(RuleStructure, "rank %d holds part %d of buffer %q, which is not there", rank, part, b.Name)
			}
		}
		names[b.Name] = true
	}
	clear(names)
	for i, fl := range p.Flags {
		switch {
		case fl.Name == "" || names[fl.Name]:
			return planFault(RuleStructure, "flag %d has no name of its own: %q", i, fl.Name)
		case int(fl.Kind) >= len(flagNames):
			return planFault(RuleStructure, "flag %q is of kind %v", fl.Name, fl.Kind)
		}
		if f := p.field(&fl); f != nil {
			return f
		}
		names[fl.Name] = true
	}
	return p.checkDeclared()
}

// homes are the roles in whose queues the kinds of task stand.
var homes = [...]Role{Copy: RoleIntra, Send: RoleSend, Compute: RoleCompute, Notify: RoleSend, Reduce: RoleReduce}

type validator struct {
	p           *Plan
	size        int
	node, local []int   // of each rank
	written     []bool  // by rank and flag: it is a stamp that has its writer
	sums        int32   // sums seen so far
	taken       []int32 // by buffer: 1 + number of the sum that last had it as a source
}

func (v *validator) task(rank int, role Role, i int) *Fault {
	t := &v.p.Ranks[rank].Queues[role][i]
	fault := func(rule Rule, format string, args ...any) *Fault {
		return v.p.taskFault(rule, rank, role, i, format, args...)
	}
	if int(t.Kind) >= len(homes) {
		return fault(RuleStructure, "there is no such task")
	}
	if homes[t.Kind] != role {
		return fault(RuleStructure, "a %v belongs in the %v queue", t.Kind, homes[t.Kind])
	}
	if t.Peer < 0 || t.Peer >= v.size {
		return fault(RuleStructure, "there is no rank %d", t.Peer)
	}
	switch sameNode := v.node[rank] == v.node[t.Peer]; {
	case (t.Kind == Reduce || t.Kind == Notify) && t.Peer != rank:
		return fault(RuleLink, "it is done by the rank itself, not with rank %d", t.Peer)
	case t.Kind == Compute && !sameNode:
		return fault(RuleLink, "a product is stored on the same node, not at rank %d", t.Peer)
	case t.Kind == Copy && (!sameNode || t.Peer == rank):
		return fault(RuleLink, "a copy goes to another rank of the same node, not from rank %d to rank %d", rank, t.Peer)
	case t.Kind == Send && sameNode:
		return fault(RuleLink, "a send goes to another node; ranks %d and %d share one", rank, t.Peer)
	case t.Kind == Send && !v.onRail(rank, t.Peer):
		return fault(RuleLink, "ranks %d and %d are not on one rail; rank %d sends to rank %d of that node", rank, t.Peer,
			rank, v.p.World.Rail(rank, v.node[t.Peer]))
	}
	if f := v.regions(t, rank, fault); f != nil {
		return f
	}
	if f := v.waits(t, fault); f != nil {
		return f
	}
	return v.signals(t, rank, fault)
}

// onRail is World.OnRail from the tables.
func (v *validator) onRail(a, b int) bool {
	ppnA, ppnB := v.p.World.PPN[v.node[a]], v.p.World.PPN[v.node[b]]
	return v.local[a]%ppnB == v.local[b] || v.local[b]%ppnA == v.local[a]
}

type faultFunc func(rule Rule, format string, args ...any) *Fault

func (v *validator) regions(t *Task, rank int, fault faultFunc) *Fault {
	if t.Kind == Notify {
		if t.Src != (Region{}) || t.B != (Region{}) || t.Dst != (Region{}) || t.Srcs != nil || t.Steps != 0 {
			return fault(RuleStructure, "a notice has no operands")
		}
		return nil
	}
	if f := v.region("destination", t.Dst, t.Peer, fault); f != nil {
		return f
	}
	dst := &v.p.Buffers[t.Dst.Buffer]
	switch {
	case dst.Kind == BufInput:
		return fault(RuleStructure, "%q is an input and never written", dst.Name)
	case t.Peer != rank && !dst.InHeap():
		return fault(RuleLink, "%q of rank %d is not in the heap, so no other rank can write it", dst.Name, t.Peer)
	case t.Kind != Compute && t.B != (Region{}):
		return fault(RuleStructure, "a %v has no second operand", t.Kind)
	case t.Kind != Compute && t.Steps != 0:
		return fault(RuleStructure, "only products have steps of their depth")
	case t.Kind != Reduce && t.Srcs != nil:
		return fault(RuleStructure, "a %v has one source", t.Kind)
	}
	if t.Kind == Reduce {
		return v.sum(t, rank, fault)
	}
	if f := v.region("source", t.Src, rank, fault); f != nil {
		return f
	}
	if t.Kind == Compute {
		return v.product(t, rank, fault)
	}
	if !t.Src.Rows.same(t.Dst.Rows) || !t.Src.Cols.same(t.Dst.Cols) {
		return fault(RuleMeaning, "it puts [%v, %v] where [%v, %v] belongs", t.Src.Rows, t.Src.Cols, t.Dst.Rows, t.Dst.Cols)
	}
	if src := &v.p.Buffers[t.Src.Buffer]; src.Elem != dst.Elem {
		return fault(RuleStructure, "it puts elements of type %v of %q into %q, which has elements of type %v", src.Elem, src.Name, dst.Name, dst.Elem)
	}
	return nil
}

// product checks the operands of a Compute task. Any part of the depth may be multiplied; that the parts make a
// whole is seen where they are added.
func (v *validator) product(t *Task, rank int, fault faultFunc) *Fault {
	if f := v.region("second operand", t.B, rank, fault); f != nil {
		return f
	}
	src, b := &v.p.Buffers[t.Src.Buffer], &v.p.Buffers[t.B.Buffer]
	switch {
	case t.Steps > 0 && (t.Steps > maxSteps || !splits(t.Src.Cols, t.Steps) || !splits(t.B.Cols, t.Steps)):
		return fault(RuleStructure, "the depth [%v] is not gated in %d steps", t.Src.Cols, t.Steps)
	case t.Src.Buffer == t.B.Buffer || t.Src.Buffer == t.Dst.Buffer || t.B.Buffer == t.Dst.Buffer:
		return fault(RuleStructure, "operands and result need three buffers")
	case src.Elem != ElemOperand || b.Elem != ElemOperand:
		return fault(RuleStructure, "operands of a product have the operator's type, but %q has %v and %q %v", src.Name, src.Elem, b.Name, b.Elem)
	case !t.Src.Cols.same(t.B.Cols):
		return fault(RuleMeaning, "the product runs over [%v] of %q but [%v] of %q", t.Src.Cols, src.Name, t.B.Cols, b.Name)
	case !t.Dst.Rows.same(t.Src.Rows):
		return fault(RuleMeaning, "rows [%v] of the first operand become rows [%v] of the result", t.Src.Rows, t.Dst.Rows)
	case !t.Dst.Cols.same(t.B.Rows):
		return fault(RuleMeaning, "rows [%v] of the second operand become columns [%v] of the result", t.B.Rows, t.Dst.Cols)
	}
	return nil
}

// maxSteps bounds the parts of a depth that gates stand before.
const maxSteps = 1 << 16

// splits reports whether the parts of a span have cut points that can be written.
func splits(s Span, steps uint32) bool {
	return s.From.Den == s.To.Den && uint64(s.To.Den)*uint64(steps) <= math.MaxUint32
}

// sum checks the operands of a Reduce task: the same region of as many buffers.
func (v *validator) sum(t *Task, rank int, fault faultFunc) *Fault {
	if t.Src != (Region{}) {
		return fault(RuleStructure, "a sum has a list of sources, not one")
	}
	if len(t.Srcs) == 0 {
		return fault(RuleStructure, "a sum of nothing")
	}
	for i, src := range t.Srcs {
		if f := v.region(fmt.Sprintf("source %d", i), src, rank, fault); f != nil {
			return f
		}
		if v.taken == nil {
			v.taken = make([]int32, len(v.p.Buffers))
		}
		b := &v.p.Buffers[src.Buffer]
		switch {
		case b.Kind == BufInput:
			return fault(RuleStructure, "source %d is %q, an input and no partial sum", i, b.Name)
		case src.Buffer == t.Dst.Buffer || v.taken[src.Buffer] == v.sums+1:
			return fault(RuleStructure, "source %d is %q again; each source has a slot of its own, and so has the result", i, b.Name)
		case !src.Rows.same(t.Dst.Rows) || !src.Cols.same(t.Dst.Cols):
			return fault(RuleMeaning, "it adds [%v, %v] of %q to [%v, %v]", src.Rows, src.Cols, b.Name, t.Dst.Rows, t.Dst.Cols)
		}
		v.taken[src.Buffer] = v.sums + 1
	}
	v.sums++
	return nil
}

// region checks one operand in the memory of the rank that holds it.
func (v *validator) region(what string, r Region, holder int, fault faultFunc) *Fault {
	if int(r.Buffer) >= len(v.p.Buffers) {
		return fault(RuleStructure, "the %s is in buffer %d, which is not there", what, r.Buffer)
	}
	b := &v.p.Buffers[r.Buffer]
	if !r.Rows.valid() || !r.Cols.valid() || r.Rows.Dim != b.Rows || r.Cols.Dim != b.Cols {
		return fault(RuleStructure, "the %s names no part of a %v x %v matrix", what, b.Rows, b.Cols)
	}
	if held := b.RowSpan(holder, v.size); !r.Rows.within(held) {
		return fault(RuleStructure, "the %s has rows [%v], but rank %d holds rows [%v] of %q", what, r.Rows, holder, held, b.Name)
	}
	return nil
}

func (v *validator) waits(t *Task, fault faultFunc) *Fault {
	for i, w := range t.Waits {
		if int64(w.Flag) >= int64(len(v.p.Flags)) {
			return fault(RuleStructure, "it waits for flag %d, which is not there", w.Flag)
		}
		flag := v.p.Flags[w.Flag]
		var f *Fault
		switch {
		case w.Step > 0 && w.Step >= t.Steps:
			f = fault(RuleFlag, "a gate stands before part %d of %d of the depth", w.Step, t.Steps)
		case i > 0 && w.Step < t.Waits[i-1].Step:
			f = fault(RuleFlag, "gates stand in the order of the depth, this one behind one of part %d", t.Waits[i-1].Step)
		case w.Lag > 1:
			f = fault(RuleFlag, "a wait looks back by 0 or 1 epochs, not by %d", w.Lag)
		case w.Count < 1 || flag.Kind == Stamp && w.Count != 1:
			f = fault(RuleFlag, "a %v is not raised %d times in an epoch", flag.Kind, w.Count)
		default:
			f = v.waitsForField(t, w, fault)
		}
		for _, before := range t.Waits[:i] {
			if before.Flag == w.Flag {
				f = fault(RuleFlag, "the task waits for it twice")
			}
		}
		if f != nil {
			f.Flag = flag.Name
			return f
		}
	}
	return nil
}

func (v *validator) signals(t *Task, rank int, fault faultFunc) *Fault {
	for _, s := range t.Signals {
		if int64(s.Flag) >= int64(len(v.p.Flags)) {
			return fault(RuleStructure, "it signals flag %d, which is not there", s.Flag)
		}
		flag := v.p.Flags[s.Flag]
		if s.Rank < 0 || s.Rank >= v.size {
			f := fault(RuleStructure, "it is signalled at rank %d, which is not there", s.Rank)
			f.Flag = flag.Name
			return f
		}
		var f *Fault
		written := &v.written[s.Rank*len(v.p.Flags)+int(s.Flag)]
		switch sameNode := v.node[rank] == v.node[s.Rank]; {
		case !sameNode && flag.Kind != Stamp:
			f = fault(RuleLink, "it is signalled at rank %d of another node, where a NIC cannot add: it must be a stamp", s.Rank)
		case !sameNode && t.Kind != Notify && (t.Kind != Send || s.Rank != t.Peer):
			f = fault(RuleLink, "a %v cannot signal rank %d, which is on another node and gets none of its bytes", t.Kind, s.Rank)
		case !sameNode && t.Kind == Notify && !v.onRail(rank, s.Rank):
			f = fault(RuleLink, "ranks %d and %d are not on one rail", rank, s.Rank)
		case flag.Kind == Stamp && *written:
			f = fault(RuleFlag, "it has a second writer at rank %d; a stamp has one: %s", s.Rank, v.p.Owes(s.Rank, s.Flag))
		default:
			f = v.raisesField(t, s, fault)
		}
		if f != nil {
			f.Flag = flag.Name
			return f
		}
		*written = flag.Kind == Stamp
	}
	return nil
}
