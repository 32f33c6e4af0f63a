package plan

// maxTasks bounds the size of a plan that is made at all: far above a world of 64 x 8, and far below what
// would take the memory of the machine that makes it.
const maxTasks = 1 << 24

// The buffers of ag_gemm, in the order of its Plan.Buffers.
const (
	agA BufferID = iota
	agB
	agC
	agGathered
)

// The smallest blocks in which a chunk of A is announced: a tile's rows and a step of its product's depth in the CUDA
// kernels (kTileM and kStepK in cuda/kernels/gemm_tile.h).
const (
	agBlockRows = 128
	agBlockCols = 64
)

// AGGemm is AllGather followed by a matrix product: rank r holds the r-th part of the rows of A (M x K, M being
// the rows of all ranks together) and its own whole B (N x K), and ends with C = A * Bᵀ (M x N) for all of A.
//
// Each shard of A crosses between nodes once per destination node: its owner sends it to its rail partner
// there, who computes with it and forwards it to the other ranks of that node. A rank's own shard is read
// from "a" and never copied. Shards travel in the given number of chunks, which are also the segments of the
// product and the units of flow control.
//
// These flags guard chunk c of shard s in "gathered":
//   - "landed" (stamp, at a rank that received the chunk from another node) by the sender's NIC: it may be read;
//   - "arrived" (field of stamps, at its node mates, or those of the owner) by the copies: block by block it may be read;
//   - "free" (counter, at a rank that copies the chunk to its node mates) by the mates' segments: the next
//     epoch's copies may overwrite it there;
//   - "read" (counter, at a rank that received the chunk from another node) by its own segment and its own
//     forwarding copies; when all have read, a Notify stamps "credit" at the sender, because a NIC cannot add.
//
// Orders: a rank sends to the node farthest ahead of it first (node+nodes-1, ..., node+1), so at each step
// every node receives from one other; it copies to its mates starting with the next local rank; and it
// computes first its own shard, then its mates' and then the other nodes' in the order in which they are
// thus expected. Credits are sent last, so that no send ever stands behind a wait of this epoch.
func AGGemm(w World, chunks int) (*Plan, error) {
	// Each rank has a segment per shard, and there are at most as many copies, sends and notices.
	if err := checkSize("ag_gemm", w, chunks, func(size int64) int64 { return size * size }); err != nil {
		return nil, err
	}
	size := w.Size()
	m := newAGGemm(w, chunks)
	for rank := range size {
		m.rank(rank)
	}
	p := m.plan
	// Every rank needs all of A. Each part of it crosses to every other node once, and fans out there.
	p.Declared = Traffic{
		{Path: PathGatherMates, Rows: All(DimM), Cols: All(DimK)},
		{Path: PathGatherRails, Rows: All(DimM), Cols: All(DimK)},
	}
	return p.fits(func(chunks int) (*Plan, error) { return AGGemm(w, chunks) })
}

// agGemm holds what the making of an ag_gemm plan needs at hand.
type agGemm struct {
	maker
	arrived, landed, free, read, credit FlagID // first of each family
}

func newAGGemm(w World, chunks int) *agGemm {
	size, nodes := w.Size(), w.Nodes()
	m := &agGemm{}
	m.places, m.chunks = newPlaces(w), chunks
	m.plan = &Plan{
		Operator: "ag_gemm", Algorithm: "hierarchical", World: w, Chunks: chunks,
		Buffers: []Buffer{
			agA:        {Name: "a", Kind: BufInput, Rows: DimM, Cols: DimK, Sharded: true},
			agB:        {Name: "b", Kind: BufInput, Rows: DimN, Cols: DimK},
			agC:        {Name: "c", Kind: BufOutput, Rows: DimM, Cols: DimN},
			agGathered: {Name: "gathered", Kind: BufLanding, Rows: DimM, Cols: DimK},
		},
		Flags:   []Flag{},
		Ranks:   make([]RankPlan, size),
		Results: AGGemmContract(w).Results,
	}
	m.arrived = m.plan.flagFamily(size > nodes, Stamp, "arrived shard %d chunk %d", size, chunks)
	for i := range m.plan.Flags {
		m.plan.Flags[i].Field = &Field{
			Region:    Region{Buffer: agGathered, Rows: m.shardRows(i/chunks, i%chunks, chunks), Cols: All(DimK)},
			BlockRows: agBlockRows, BlockCols: agBlockCols,
		}
	}
	m.landed = m.plan.flagFamily(nodes > 1, Stamp, "landed shard %d chunk %d", size, chunks)
	m.free = m.plan.flagFamily(size > nodes, Counter, "free shard %d chunk %d", size, chunks)
	m.read = m.plan.flagFamily(nodes > 1, Counter, "read shard %d chunk %d", size, chunks)
	m.credit = m.plan.flagFamily(nodes > 1, Stamp, "credit node %d chunk %d", nodes, chunks)
	return m
}

// rank fills the queues of one rank.
func (m *agGemm) rank(rank int) {
	node, local := m.node[rank], m.local[rank]
	nodes, ppn := m.Nodes(), m.PPN[node]
	var passed int // shards of other nodes that this rank receives from their owners
	for shard := range m.node {
		if m.node[shard] != node && m.gateway(shard, node) == rank {
			passed++
		}
	}
	q := &m.plan.Ranks[rank].Queues
	q[RoleCompute] = make([]Task, 0, len(m.node)*m.chunks)
	q[RoleIntra] = make([]Task, 0, (1+passed)*(ppn-1)*m.chunks)
	q[RoleSend] = make([]Task, 0, (nodes-1+passed)*m.chunks)
	add := func(role Role, t Task) { q[role] = append(q[role], t) }

	for c := range m.chunks {
		add(RoleCompute, m.segment(rank, rank, c))
	}
	for c := range m.chunks {
		for d := 1; d < ppn; d++ {
			add(RoleCompute, m.segment(rank, m.first[node]+(local+ppn-d)%ppn, c))
			add(RoleIntra, m.copyTo(rank, rank, m.first[node]+(local+d)%ppn, c))
		}
	}
	for ahead := nodes - 1; ahead > 0; ahead-- {
		dst := (node + ahead) % nodes
		src := (node + nodes - ahead) % nodes // whose shards arrive in this step
		for c := range m.chunks {
			add(RoleSend, m.sendTo(rank, dst, c))
			// First the shards that come straight to this rank, then those that a mate passes on.
			for d := range m.PPN[src] {
				shard := m.first[src] + (local+d)%m.PPN[src]
				add(RoleCompute, m.segment(rank, shard, c))
				if m.gateway(shard, node) != rank {
					continue
				}
				for d := 1; d < ppn; d++ {
					add(RoleIntra, m.copyTo(rank, shard, m.first[node]+(local+d)%ppn, c))
				}
			}
		}
	}
	for ahead := nodes - 1; ahead > 0; ahead-- {
		src := (node + nodes - ahead) % nodes
		for c := range m.chunks {
			for d := range m.PPN[src] {
				if shard := m.first[src] + (local+d)%m.PPN[src]; m.gateway(shard, node) == rank {
					add(RoleSend, m.creditTo(rank, shard, c))
				}
			}
		}
	}
}

// segment computes the rows of C that follow from one chunk of A.
func (m *agGemm) segment(rank, shard, c int) Task {
	rows := m.shardRows(shard, c, m.chunks)
	t := Task{
		Kind: Compute, Peer: rank,
		Src: Region{Buffer: agA, Rows: rows, Cols: All(DimK)},
		B:   Region{Buffer: agB, Rows: All(DimN), Cols: All(DimK)},
		Dst: Region{Buffer: agC, Rows: rows, Cols: All(DimN)},
	}
	if shard == rank {
		return t
	}
	t.Src.Buffer = agGathered
	writer, there, free := shard, m.arrived, m.free
	if m.node[shard] != m.node[rank] {
		writer = m.gateway(shard, m.node[rank])
		if writer == rank {
			there, free = m.landed, m.read
		}
	}
	t.Waits = m.waits.of(Wait{Flag: m.flag(there, shard, c), Count: 1})
	t.Signals = m.signals.of(Signal{Rank: writer, Flag: m.flag(free, shard, c)})
	return t
}

// copyTo copies one chunk to a rank of the same node: of the rank's own shard, or of one that it received.
func (m *agGemm) copyTo(rank, shard, peer, c int) Task {
	rows := m.shardRows(shard, c, m.chunks)
	t := Task{
		Kind: Copy, Peer: peer,
		Src: Region{Buffer: agA, Rows: rows, Cols: All(DimK)},
		Dst: Region{Buffer: agGathered, Rows: rows, Cols: All(DimK)},
	}
	// In total the mates' segments free the chunk once each.
	freed := Wait{Flag: m.flag(m.free, shard, c), Count: uint32(m.PPN[m.node[rank]] - 1), Lag: 1}
	arrived := m.flag(m.arrived, shard, c)
	if shard == rank {
		t.Waits = m.waits.of(freed)
		t.Signals = m.signals.of(Signal{Rank: peer, Flag: arrived})
		return t
	}
	t.Src.Buffer = agGathered
	t.Waits = m.waits.of(Wait{Flag: m.flag(m.landed, shard, c), Count: 1}, freed)
	t.Signals = m.signals.of(Signal{Rank: peer, Flag: arrived}, Signal{Rank: rank, Flag: m.flag(m.read, shard, c)})
	return t
}

// sendTo sends one chunk of the rank's own shard to another node.
func (m *agGemm) sendTo(rank, node, c int) Task {
	rows, peer := m.shardRows(rank, c, m.chunks), m.gateway(rank, node)
	return Task{
		Kind: Send, Peer: peer,
		Src:     Region{Buffer: agA, Rows: rows, Cols: All(DimK)},
		Dst:     Region{Buffer: agGathered, Rows: rows, Cols: All(DimK)},
		Waits:   m.waits.of(Wait{Flag: m.flag(m.credit, node, c), Count: 1, Lag: 1}),
		Signals: m.signals.of(Signal{Rank: peer, Flag: m.flag(m.landed, rank, c)}),
	}
}

// creditTo tells the owner of a shard of another node that a chunk was read by all who read it from here.
func (m *agGemm) creditTo(rank, shard, c int) Task {
	node := m.node[rank]
	return Task{
		Kind: Notify, Peer: rank,
		Waits:   m.waits.of(Wait{Flag: m.flag(m.read, shard, c), Count: uint32(m.PPN[node])}),
		Signals: m.signals.of(Signal{Rank: shard, Flag: m.flag(m.credit, node, c)}),
	}
}

// slab hands out short slices from long ones: a plan for hundreds of ranks has millions of them.
type slab[T any] struct{ free []T }

func (s *slab[T]) of(items ...T) []T {
	if len(s.free) < len(items) {
		s.free = make([]T, 1024)
	}
	out := s.free[:len(items):len(items)]
	s.free = s.free[len(items):]
	copy(out, items)
	return out
}
