// Package plan makes, verifies and describes the schedule of an operator on a world of ranks.
//
// A plan is data in a small language. Every task is
//
//	wait (flag, value) -> do (copy | send | compute | reduce | notify) -> signal (flag)
//
// and stands in the queue of one role of one rank. Workers of a role claim its tasks in order,
// one ticket each; there may be any number of workers >= 1 per role. Four readers share a plan:
// the CUDA kernels, the CPU engine, the verifier and the simulator.
package plan

// Plan is the schedule of one operator on one world, for all ranks and all shapes.
type Plan struct {
	Operator  string `json:"operator"`
	Algorithm string `json:"algorithm"` // which of an operator's schedules, e.g. "hierarchical"
	World     World  `json:"world"`
	Chunks    int    `json:"chunks"` // pieces each shard travels in

	Buffers []Buffer   `json:"buffers"` // the same on every rank; indexed by BufferID
	Flags   []Flag     `json:"flags"`   // the same on every rank; indexed by FlagID
	Ranks   []RankPlan `json:"ranks"`   // indexed by rank

	Results []Result `json:"results"` // what each output is; the verifier proves it

	Declared Traffic `json:"declared"` // what the algorithm says it moves; the verifier holds it to that
}

// RankPlan is what one rank does: a queue of tasks per role. The rank's run is over when all its tasks are
// done (of a Send: its source may be reused; the bytes may still be on their way), and its next epoch starts
// only then.
type RankPlan struct {
	Queues [NumRoles][]Task `json:"queues"`
}

// Role is a kind of worker (on a GPU: a group of CTAs).
type Role uint8

const (
	RoleCompute Role = iota // matrix products
	RoleIntra               // copies to ranks of the same node
	RoleSend                // messages to ranks of other nodes, and notices to anyone
	RoleReduce              // sums of partial results
	NumRoles
)

// BufferID indexes Plan.Buffers.
type BufferID uint16

// BufferKind says who owns a buffer's memory and who may write it.
type BufferKind uint8

const (
	BufInput   BufferKind = iota // operand of the caller; never written
	BufOutput                    // result of the caller; written once
	BufLanding                   // in the symmetric heap; written by peers or the rank itself, and again in the next epoch once credited
)

// Elem is the type of a buffer's elements.
type Elem uint8

const (
	ElemOperand Elem = iota // the operator's dtype, that of operands and results
	ElemFP32                // partial sums that are not rounded on their way
)

// Size is the number of bytes of an element, given that of the operator's dtype.
func (e Elem) Size(operand int64) int64 {
	if e == ElemFP32 {
		return 4
	}
	return operand
}

// Buffer is a row-major matrix that every rank has. Regions name rows and columns in the
// coordinates of the whole matrix; of a sharded buffer a rank holds only a part of the rows.
type Buffer struct {
	Name    string     `json:"name"`
	Kind    BufferKind `json:"kind"`
	Elem    Elem       `json:"elem"` // other than the operator's dtype only in landing buffers
	Rows    Dim        `json:"rows"`
	Cols    Dim        `json:"cols"`
	Sharded bool       `json:"sharded"` // rows are split over the ranks
	// Parts, of a sharded buffer, says which of the world's parts each rank holds, or -1 for none; nil stands for its
	// own. So a rank that sums rows of which another is the owner has slots for just these rows.
	Parts []int32 `json:"parts,omitempty"`
	// Same, of an input: the caller gives every rank the same matrix.
	Same bool `json:"same,omitempty"`
	// Sum, of an output: each element is a sum over all ranks (its Result says of what, and how it is added).
	Sum bool `json:"sum,omitempty"`
	// Shared, of an output: it lies in the symmetric heap, and other ranks write into it, too.
	Shared bool `json:"shared,omitempty"`
}

// InHeap reports whether the buffer lies in the symmetric heap, where other ranks can write.
func (b *Buffer) InHeap() bool { return b.Kind == BufLanding || b.Kind == BufOutput && b.Shared }

// RowSpan is the part of the whole matrix's rows that a rank's buffer holds. It is empty (from 0 to 0) where the
// rank holds none.
func (b *Buffer) RowSpan(rank, size int) Span {
	switch {
	case !b.Sharded:
		return All(b.Rows)
	case b.Parts == nil:
		return Part(b.Rows, rank, size)
	case b.Parts[rank] < 0:
		return Span{Dim: b.Rows, From: Ratio{0, 1}, To: Ratio{0, 1}}
	}
	return Part(b.Rows, int(b.Parts[rank]), size)
}

// MaxRows is the number of rows for which every rank has room, so that offsets in the heap are equal everywhere.
func (b *Buffer) MaxRows(s Shape, size int) int64 {
	rows := s.Of(b.Rows)
	if b.Sharded {
		return rows/int64(size) + min(rows%int64(size), 1)
	}
	return rows
}

// Region is a rectangle of a buffer.
type Region struct {
	Buffer BufferID `json:"buffer"`
	Rows   Span     `json:"rows"`
	Cols   Span     `json:"cols"`
}

// Elements is the number of elements of the region for a shape.
func (r Region) Elements(s Shape) int64 { return r.Rows.Len(s) * r.Cols.Len(s) }

// FlagID indexes Plan.Flags: one 64-bit word in the heap of every rank.
type FlagID uint32

// FlagKind tells how a flag is raised. Flags only ever grow and are never cleared.
type FlagKind uint8

const (
	Stamp   FlagKind = iota // one writer, who stores the epoch
	Counter                 // many writers, who add 1
)

// Flag describes one flag word, or a field of them.
type Flag struct {
	Name  string   `json:"name"` // for people: what its value says, e.g. "arrived shard 3 chunk 1"
	Kind  FlagKind `json:"kind"`
	Field *Field   `json:"field,omitempty"`
}

// Wait is satisfied when the flag of the waiting rank holds at least Count * (epoch - Lag).
// Epochs count calls from 1, so a wait with Lag 1 (a credit) passes at once in the first call.
// For a stamp Count is 1; for a counter it is the number of additions per epoch.
//
// A wait with Step 0 stands before the whole task. Another is a gate inside a Compute task: it stands before the
// product reads part Step of the task's Steps equal parts of its depth, in both operands, so the parts before it can be
// multiplied while the rest is on its way. The result is written, and signals are raised, after all waits.
type Wait struct {
	Flag  FlagID `json:"flag"`
	Count uint32 `json:"count"`
	Lag   uint32 `json:"lag"`
	Step  uint32 `json:"step,omitempty"`
}

// Target is the value the flag must reach in an epoch.
func (w Wait) Target(epoch uint64) uint64 {
	if epoch <= uint64(w.Lag) {
		return 0
	}
	return uint64(w.Count) * (epoch - uint64(w.Lag))
}

// Signal raises a flag in the memory of a rank: a stamp gets the epoch, a counter one more.
// It is raised after the task has read all of its sources. At the rank that the task wrote to (and, unless
// the task is a Send, at every rank of the node) it is also visible no earlier than the bytes written.
// Between nodes a flag is always a stamp, since a NIC stores but does not add.
type Signal struct {
	Rank int    `json:"rank"`
	Flag FlagID `json:"flag"`
}

// Kind is what a task does between its waits and its signals.
type Kind uint8

const (
	Copy    Kind = iota // Src of this rank -> Dst of Peer, a rank of the same node
	Send                // Src of this rank -> Dst of Peer, a rank of another node
	Compute             // Dst of Peer, a rank of the same node, = Src * Bᵀ of this rank, over the columns named
	Notify              // nothing: only waits and signals (credits between nodes)
	Reduce              // Dst = the sum of Srcs, in fp32 in the order of the list, all on this rank
)

// Task is one entry of a role's queue.
type Task struct {
	Kind    Kind     `json:"kind"`
	Peer    int      `json:"peer"` // Copy, Send, Compute: the rank written to; else this rank
	Src     Region   `json:"src,omitzero"`
	B       Region   `json:"b,omitzero"`      // Compute only: the second operand, (N, K) as in nn.Linear
	Srcs    []Region `json:"srcs,omitempty"`  // Reduce only: a slot each
	Steps   uint32   `json:"steps,omitempty"` // Compute only: parts of the depth that gates stand before; 0 if there are none
	Dst     Region   `json:"dst,omitzero"`
	Waits   []Wait   `json:"waits,omitempty"`
	Signals []Signal `json:"signals,omitempty"`
}

// sources are the regions that a task reads, a second operand left out.
func (t *Task) sources() []Region {
	switch t.Kind {
	case Notify:
		return nil
	case Reduce:
		return t.Srcs
	}
	return []Region{t.Src}
}

// depthPart is the region's part before which gates of step i of a task stand. Validate sees that it can be written.
func (t *Task) depthPart(r Region, i uint32) Region {
	from, to, den := r.Cols.From.Num, r.Cols.To.Num, r.Cols.From.Den*t.Steps
	at := func(i uint32) Ratio { return Ratio{from*(t.Steps-i) + to*i, den} }
	r.Cols.From, r.Cols.To = at(i), at(i+1)
	return r
}

// DepthStart is the column at which a gate of step i stands, for a shape.
func (t *Task) DepthStart(i uint32, s Shape) int64 {
	return t.depthPart(t.Src, i).Cols.From.At(s.Of(t.Src.Cols.Dim))
}
