// Package plan makes, verifies and describes the schedule of an operator on a world of ranks.
//
// A plan is data in a small language. Every task is
//
//	wait (flag, value) -> do (copy | send | compute | notify) -> signal (flag)
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
	NumRoles
)

// BufferID indexes Plan.Buffers.
type BufferID uint16

// BufferKind says who owns a buffer's memory and who may write it.
type BufferKind uint8

const (
	BufInput   BufferKind = iota // operand of the caller; never written
	BufOutput                    // result of the caller; written once
	BufLanding                   // in the symmetric heap; peers write it, and again in the next epoch once credited
)

// Buffer is a row-major matrix that every rank has. Regions name rows and columns in the
// coordinates of the whole matrix; a sharded buffer holds only the rank's own part of its rows:
// Part(Rows, rank, world size).
type Buffer struct {
	Name    string     `json:"name"`
	Kind    BufferKind `json:"kind"`
	Rows    Dim        `json:"rows"`
	Cols    Dim        `json:"cols"`
	Sharded bool       `json:"sharded"` // rows are split over the ranks
}

// RowSpan is the part of the whole matrix's rows that a rank's buffer holds.
func (b Buffer) RowSpan(rank, size int) Span {
	if b.Sharded {
		return Part(b.Rows, rank, size)
	}
	return All(b.Rows)
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

// Flag describes one flag word.
type Flag struct {
	Name string   `json:"name"` // for people: what its value says, e.g. "arrived shard 3 chunk 1"
	Kind FlagKind `json:"kind"`
}

// Wait is satisfied when the flag of the waiting rank holds at least Count * (epoch - Lag).
// Epochs count calls from 1, so a wait with Lag 1 (a credit) passes at once in the first call.
// For a stamp Count is 1; for a counter it is the number of additions per epoch.
type Wait struct {
	Flag  FlagID `json:"flag"`
	Count uint32 `json:"count"`
	Lag   uint32 `json:"lag"`
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
	Compute             // Dst = Src * Bᵀ over the whole depth, all on this rank
	Notify              // nothing: only waits and signals (credits between nodes)
)

// Task is one entry of a role's queue.
type Task struct {
	Kind    Kind     `json:"kind"`
	Peer    int      `json:"peer"` // Copy, Send: the rank written to; else this rank
	Src     Region   `json:"src,omitzero"`
	B       Region   `json:"b,omitzero"` // Compute only: the second operand, (N, K) as in nn.Linear
	Dst     Region   `json:"dst,omitzero"`
	Waits   []Wait   `json:"waits,omitempty"`
	Signals []Signal `json:"signals,omitempty"`
}

// Traffic is the number of elements an algorithm moves over all links, as formulas: the sum of
// Elements of the regions, counted once per link they cross.
type Traffic struct {
	Intra        []Volume `json:"intra"`         // within nodes
	Inter        []Volume `json:"inter"`         // between nodes
	InterMinimum []Volume `json:"inter_minimum"` // the least any algorithm could move between nodes
}

// Volume is Times * Rows * Cols elements.
type Volume struct {
	Times int64 `json:"times"`
	Rows  Span  `json:"rows"`
	Cols  Span  `json:"cols"`
}

// Elements evaluates a list of volumes for a shape.
func Elements(vs []Volume, s Shape) int64 {
	var sum int64
	for _, v := range vs {
		sum += v.Times * v.Rows.Len(s) * v.Cols.Len(s)
	}
	return sum
}
