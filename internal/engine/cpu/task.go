package cpu

import (
	"errors"
	"fmt"

	"github.com/mkrun/mkrun/internal/plan"
)

// task is a task of the plan made ready for one shape: regions are memory, flags are words.
type task struct {
	role  plan.Role
	index int
	plan  *plan.Task

	src, dst rect
	srcs     []rect       // of a sum
	intra    bool         // dst is another rank's memory
	near     []nearSignal // flags of ranks of this node
	far      []sender     // to ranks of other nodes that the task writes to or signals
	segment  *segment     // compute tasks only
	gates    []gate       // inside the segment, by column
}

// sender passes a task's message on to one rank of another node. It returns, with the number of bytes, when the task's
// source may be reused.
type sender interface {
	send(t *task, epoch uint64) (int64, error)
}

// gate is a wait before a column of the first operand's region.
type gate struct {
	column int64
	wait   plan.Wait
}

// parts is the number of pieces that workers claim one by one.
func (t *task) parts() int64 {
	if t.segment != nil {
		return t.segment.tiles
	}
	return 1
}

type nearSignal struct {
	cell *cell
	kind plan.FlagKind
}

// raise lifts all flags near by for the epoch.
func (t *task) raise(epoch uint64) {
	for _, s := range t.near {
		if s.kind == plan.Stamp {
			s.cell.raise(epoch)
		} else {
			s.cell.add()
		}
	}
}

// region resolves a region in the memory that a rank of this node has for it.
func (in *instance) region(rank int, r plan.Region) (rect, error) {
	p, shape := in.cfg.Plan, in.cfg.Shape
	if int(r.Buffer) >= len(p.Buffers) {
		return rect{}, fmt.Errorf("there is no buffer %d", r.Buffer)
	}
	b := &p.Buffers[r.Buffer]
	first, last := b.RowSpan(rank, p.World.Size()).At(shape)
	stride := shape.Of(b.Cols)
	row0, row1 := r.Rows.At(shape)
	col0, col1 := r.Cols.At(shape)
	if row0 > row1 || col0 > col1 || row0 < first || row1 > last || col0 < 0 || col1 > stride {
		return rect{}, fmt.Errorf("rows [%d,%d) and columns [%d,%d) are not within rank %d's part of buffer %s, rows [%d,%d) and %d columns",
			row0, row1, col0, col1, rank, b.Name, first, last, stride)
	}
	words := b.Elem.Size(in.cfg.DType.Size()) / 2
	stride, col0, col1 = stride*words, col0*words, col1*words
	out := rect{rows: row1 - row0, cols: col1 - col0, stride: stride, fp32: b.Elem == plan.ElemFP32}
	if out.rows == 0 || out.cols == 0 {
		return out, nil
	}
	var memory []uint16
	switch {
	case b.InHeap():
		memory = in.heaps[rank].elements(in.lay.landing[r.Buffer], (last-first)*stride)
	case rank == in.cfg.Rank:
		memory = in.buffers[r.Buffer]
	default:
		return rect{}, fmt.Errorf("buffer %s of rank %d is its own and not in the heap", b.Name, rank)
	}
	from := (row0-first)*stride + col0
	out.bits = memory[from : from+(out.rows-1)*stride+out.cols]
	return out, nil
}

// compile makes the rank's queues ready.
func (in *instance) compile() error {
	for role, queue := range in.cfg.Plan.Ranks[in.cfg.Rank].Queues {
		for i := range queue {
			t := &task{role: plan.Role(role), index: i, plan: &queue[i]}
			if err := in.compileTask(t); err != nil {
				return fmt.Errorf("rank %d, %v task %d: %w", in.cfg.Rank, t.role, i, err)
			}
			in.queues[role].add(t)
		}
	}
	return nil
}

func (in *instance) compileTask(t *task) error {
	p, me, q := in.cfg.Plan, in.cfg.Rank, t.plan
	size := p.World.Size()
	if q.Peer < 0 || q.Peer >= size {
		return fmt.Errorf("there is no rank %d", q.Peer)
	}
	for _, w := range q.Waits {
		if int(w.Flag) >= len(p.Flags) {
			return fmt.Errorf("waits for flag %d, which does not exist", w.Flag)
		}
	}
	far := map[int]bool{}
	var err error
	switch q.Kind {
	case plan.Copy:
		if !p.World.SameNode(me, q.Peer) {
			return fmt.Errorf("copies to rank %d, which is on another node", q.Peer)
		}
		t.intra = q.Peer != me
		if t.src, err = in.region(me, q.Src); err == nil {
			t.dst, err = in.region(q.Peer, q.Dst)
		}
	case plan.Send:
		if p.World.SameNode(me, q.Peer) {
			return fmt.Errorf("sends to rank %d, which is on the same node", q.Peer)
		}
		far[q.Peer] = true
		t.src, err = in.region(me, q.Src)
	case plan.Compute:
		if !p.World.SameNode(me, q.Peer) {
			return fmt.Errorf("stores its product at rank %d, which is on another node", q.Peer)
		}
		t.intra = q.Peer != me
		if t.src, err = in.region(me, q.Src); err == nil {
			t.dst, err = in.region(q.Peer, q.Dst)
		}
		if err == nil {
			err = in.compileProduct(t)
		}
	case plan.Reduce:
		t.dst, err = in.region(me, q.Dst)
		for i := 0; i < len(q.Srcs) && err == nil; i++ {
			var src rect
			if src, err = in.region(me, q.Srcs[i]); err == nil && (src.rows != t.dst.rows || src.elements() != t.dst.elements()) {
				err = fmt.Errorf("adds %d x %d elements to %d x %d", src.rows, src.elements(), t.dst.rows, t.dst.elements())
			}
			t.srcs = append(t.srcs, src)
		}
		if len(q.Srcs) == 0 {
			err = errors.New("a sum of nothing")
		}
	case plan.Notify:
	default:
		err = fmt.Errorf("unknown kind of task %d", q.Kind)
	}
	if err != nil {
		return err
	}
	if q.Kind == plan.Copy && (t.src.rows != t.dst.rows || t.src.cols != t.dst.cols || t.src.fp32 != t.dst.fp32) {
		return fmt.Errorf("copies %d x %d elements onto %d x %d", t.src.rows, t.src.cols, t.dst.rows, t.dst.cols)
	}
	for _, s := range q.Signals {
		if s.Rank < 0 || s.Rank >= size || int(s.Flag) >= len(p.Flags) {
			return fmt.Errorf("signals flag %d of rank %d, which does not exist", s.Flag, s.Rank)
		}
		if h := in.heaps[s.Rank]; h != nil {
			t.near = append(t.near, nearSignal{cell: h.flag(int(s.Flag)), kind: p.Flags[s.Flag].Kind})
			continue
		}
		// The bytes and the flag of a send travel in one message; a third rank could see its flag first.
		if q.Kind == plan.Send && s.Rank != q.Peer {
			return fmt.Errorf("sends to rank %d and signals rank %d on another node, which could see the flag before the bytes are there", q.Peer, s.Rank)
		}
		far[s.Rank] = true
	}
	for rank := range size { // in rank order, whatever the order of the signals
		if !far[rank] {
			continue
		}
		to, err := in.sender(t, rank)
		if err != nil {
			return err
		}
		t.far = append(t.far, to)
	}
	return nil
}

// sender is what carries a task's message to a rank of another node.
func (in *instance) sender(t *task, rank int) (sender, error) {
	if in.fabric != nil {
		return in.fabric.message(t, rank)
	}
	return in.net.out[rank], nil
}

// compileProduct makes a compute task a segment; segments with the same second operand share its
// converted form.
func (in *instance) compileProduct(t *task) error {
	src, err := in.region(in.cfg.Rank, t.plan.B)
	if err != nil {
		return err
	}
	if t.src.fp32 || src.fp32 {
		return errors.New("multiplies fp32 elements; operands have the operator's type")
	}
	if t.src.cols != src.cols || t.dst.rows != t.src.rows || t.dst.elements() != src.rows {
		return fmt.Errorf("the product of %d x %d and (%d x %d)ᵀ does not have %d x %d elements",
			t.src.rows, t.src.cols, src.rows, src.cols, t.dst.rows, t.dst.elements())
	}
	b := in.operands[t.plan.B]
	// What arrives may be gated, or overwritten before another segment reads it.
	own := in.cfg.Plan.Buffers[t.plan.B.Buffer].Kind != plan.BufInput
	if b == nil || own {
		b = newOperand(src, in.tile)
	}
	if !own {
		in.operands[t.plan.B] = b
	}
	in.spare.size = max(in.spare.size, min(in.tile, t.src.rows)*pad(t.src.cols))
	t.segment = newSegment(t, b, in.tile)
	t.segment.ownB = own
	first, _ := t.plan.Src.Cols.At(in.cfg.Shape)
	for _, w := range t.plan.Waits {
		if w.Step > 0 {
			t.gates = append(t.gates, gate{column: t.plan.DepthStart(w.Step, in.cfg.Shape) - first, wait: w})
		}
	}
	return nil
}
