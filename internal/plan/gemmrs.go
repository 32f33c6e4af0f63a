package plan

import "fmt"

// SumOptions are what the operators that add partial results let one choose.
type SumOptions struct {
	Chunks   int  // pieces each shard travels in
	Partials Elem // type in which partial sums travel; they are added in fp32 in any case
}

// fewer is a maker of plans as a function of the chunks.
func fewer(o SumOptions, plan func(SumOptions) (*Plan, error)) func(chunks int) (*Plan, error) {
	return func(chunks int) (*Plan, error) {
		o.Chunks = chunks
		return plan(o)
	}
}

// GemmRS is a matrix product followed by a reduce-scatter: rank r holds its own whole A (M x K, K being its part of
// the depth) and B (N x K), and ends with the r-th part of the rows of the sum over all ranks of A * Bᵀ (M x N).
//
// Of every shard of the result, each node adds its ranks' partial products before they cross to the owner's node:
// at the owner's rail partner, the shard's gateway there. Each rank stores its product straight into its own slot at
// the gateway (or, on the owner's node, at the owner), so a shard crosses between nodes once per other node. The
// owner adds, in the order of ranks, the sums of the other nodes and the partial products of its own.
//
// What must leave first is computed first: shards of the node farthest ahead (node+nodes-1), then of the others, the
// node's own last. Within a node each rank begins with the gateway next to itself, so at each step every gateway is
// stored to by one rank.
//
// Flags of chunk c of shard s: "partials" (counter, at the gateway or owner) by the ranks' segments; "free" (stamp, at
// each of these ranks) by the sum that read their slot, for the next epoch; "sum" (stamp, at the gateway) before it is
// sent; "node" (stamp, at the owner) by the sends; "added" (stamp, at the owner) by the last sum; and "credit" (stamp,
// at the gateway) by a Notify of the owner, because a NIC cannot add.
func GemmRS(w World, o SumOptions) (*Plan, error) {
	m, err := newScatter("gemm_rs", "hierarchical", w, o, false)
	if err != nil {
		return nil, err
	}
	m.make()
	for rank := range m.node {
		m.credits(rank)
	}
	m.plan.Declared = m.scatterTraffic()
	return m.plan.fits(fewer(o, func(o SumOptions) (*Plan, error) { return GemmRS(w, o) }))
}

// The buffers of gemm_rs and gemm_ar that come first in their Plan.Buffers; landing buffers follow.
const (
	sumA BufferID = iota
	sumB
	sumC
	sumLanding
)

// scatter makes a reduce-scatter.
type scatter struct {
	maker
	elem   Elem
	gather bool // the result is gathered afterwards, so that no slot needs a credit

	passed [][]int // of each rank: shards of other nodes that it is the gateway of, in the order in which they leave
	pass   [][]int // of each shard and node: its place in the gateway's list
	slots  BufferID
	nodes  BufferID // sums of other nodes, of the own shard
	sums   BufferID // what leaves: by place in the gateway's list
	passes BufferID // slots of these: by place, then local rank
	most   int      // ranks of the largest node

	partials, free, sum, crossed, added, credit FlagID // first of each family
}

func newScatter(operator, algorithm string, w World, o SumOptions, gather bool) (*scatter, error) {
	// Each rank has a segment per shard, and there are fewer tasks of any other kind.
	if err := checkSize(operator, w, o.Chunks, func(size int64) int64 { return size * size }); err != nil {
		return nil, err
	}
	if int(o.Partials) >= len(elemNames) {
		return nil, fmt.Errorf("planning %s: partial sums cannot travel as %v", operator, o.Partials)
	}
	m := &scatter{elem: o.Partials, gather: gather}
	m.places, m.chunks = newPlaces(w), o.Chunks
	size, nodes := len(m.node), w.Nodes()
	p := &Plan{
		Operator: operator, Algorithm: algorithm, World: w, Chunks: o.Chunks,
		Buffers: []Buffer{
			sumA: {Name: "a", Kind: BufInput, Rows: DimM, Cols: DimK},
			sumB: {Name: "b", Kind: BufInput, Rows: DimN, Cols: DimK},
			sumC: {Name: "c", Kind: BufOutput, Rows: DimM, Cols: DimN, Sum: true, Sharded: !gather, Shared: gather && size > 1},
		},
		Flags:   []Flag{},
		Ranks:   make([]RankPlan, size),
		Results: sumContract(w, o.Partials, SumAtOwner, !gather).Results,
	}
	m.plan = p
	for _, ppn := range w.PPN {
		m.most = max(m.most, ppn)
	}
	m.route()
	if err := m.landing(); err != nil {
		return nil, err
	}
	m.partials = p.flagFamily(size > 1, Counter, "partials of shard %d chunk %d", size, m.chunks)
	m.free = p.flagFamily(size > nodes && !gather, Stamp, "free shard %d chunk %d", size, m.chunks)
	m.sum = p.flagFamily(nodes > 1 && size > nodes, Stamp, "sum of shard %d chunk %d", size, m.chunks)
	m.crossed = p.flagFamily(nodes > 1, Stamp, "sum of node %d chunk %d", nodes, m.chunks)
	m.added = p.flagFamily(nodes > 1 || gather && size > 1, Stamp, "added chunk %[2]d", 1, m.chunks)
	m.credit = p.flagFamily(nodes > 1 && !gather, Stamp, "credit of shard %d chunk %d", size, m.chunks)
	return m, nil
}

// ahead calls f for the shards of each other node, in the order in which a rank's node sends them; for the ranks of
// the node that a given rank is on, beginning behind it.
func (m *scatter) ahead(rank int, f func(shard int)) {
	nodes := m.Nodes()
	for step := nodes - 1; step > 0; step-- {
		to := (m.node[rank] + step) % nodes
		for d := range m.PPN[to] {
			f(m.first[to] + (m.local[rank]+1+d)%m.PPN[to])
		}
	}
}

// route finds out which rank passes which shards on.
func (m *scatter) route() {
	m.passed = make([][]int, len(m.node))
	m.pass = make([][]int, len(m.node))
	for shard := range m.pass {
		m.pass[shard] = make([]int, m.Nodes())
	}
	for rank, node := range m.node {
		m.ahead(rank, func(shard int) {
			if m.gateway(shard, node) == rank {
				m.pass[shard][node] = len(m.passed[rank])
				m.passed[rank] = append(m.passed[rank], shard)
			}
		})
	}
}

// landing adds the landing buffers: a slot per source, everywhere where sums are made.
func (m *scatter) landing() error {
	size, nodes := len(m.node), m.Nodes()
	if size == 1 {
		return nil
	}
	add := func(part func(rank int) int, format string, args ...any) {
		b := Buffer{Name: fmt.Sprintf(format, args...), Kind: BufLanding, Elem: m.elem, Rows: DimM, Cols: DimN, Sharded: true, Parts: make([]int32, size)}
		for rank := range size {
			b.Parts[rank] = int32(part(rank))
		}
		m.plan.Buffers = append(m.plan.Buffers, b)
	}
	m.slots = BufferID(len(m.plan.Buffers))
	for i := range m.most {
		add(func(rank int) int {
			if i < m.PPN[m.node[rank]] {
				return rank
			}
			return -1
		}, "slot %d", i)
	}
	if nodes == 1 {
		return nil
	}
	most := 0
	for _, shards := range m.passed {
		most = max(most, len(shards))
	}
	if n := int64(size) * int64(nodes+most*(m.most+1)); n > maxFlagWords || nodes+most*(m.most+1)+m.most+int(sumLanding) > maxBuffers {
		return fmt.Errorf("planning %s: %d nodes of up to %d ranks need more slots than a plan can name", m.plan.Operator, nodes, m.most)
	}
	m.nodes = BufferID(len(m.plan.Buffers))
	for j := range nodes {
		add(func(rank int) int {
			if m.node[rank] != j {
				return rank
			}
			return -1
		}, "node %d", j)
	}
	m.sums = BufferID(len(m.plan.Buffers))
	for k := range most {
		add(func(rank int) int {
			if k < len(m.passed[rank]) {
				return m.passed[rank][k]
			}
			return -1
		}, "sum %d", k)
	}
	if m.most == 1 {
		return nil
	}
	m.passes = BufferID(len(m.plan.Buffers))
	for k := range most {
		for i := range m.most {
			add(func(rank int) int {
				if ppn := m.PPN[m.node[rank]]; ppn > 1 && i < ppn && k < len(m.passed[rank]) {
					return m.passed[rank][k]
				}
				return -1
			}, "pass %d slot %d", k, i)
		}
	}
	return nil
}

// make fills the queues up to the sum of the own shard.
func (m *scatter) make() {
	for rank, node := range m.node {
		ppn := m.PPN[node]
		m.plan.Ranks[rank].Queues[RoleCompute] = make([]Task, 0, len(m.node)*m.chunks)
		// By node and chunk, so that every gateway's first chunk is complete before anybody's second is begun.
		nodes := m.Nodes()
		for step := nodes - 1; step > 0; step-- {
			to := (node + step) % nodes
			for c := range m.chunks {
				for d := range m.PPN[to] {
					shard := m.first[to] + (m.local[rank]+1+d)%m.PPN[to]
					m.add(rank, RoleCompute, m.segment(rank, shard, c))
				}
				for d := range m.PPN[to] {
					shard := m.first[to] + (m.local[rank]+1+d)%m.PPN[to]
					if m.gateway(shard, node) != rank {
						continue
					}
					if ppn > 1 {
						m.add(rank, RoleReduce, m.sumUp(rank, shard, c))
					}
					m.add(rank, RoleSend, m.sendSum(rank, shard, c))
				}
			}
		}
		for c := range m.chunks {
			for d := range ppn {
				m.add(rank, RoleCompute, m.segment(rank, m.first[node]+(m.local[rank]+1+d)%ppn, c))
			}
			if len(m.node) > 1 {
				m.add(rank, RoleReduce, m.finish(rank, c))
			}
		}
	}
}

// credits tells the gateways that the owner has read their sums.
func (m *scatter) credits(rank int) {
	if m.Nodes() == 1 {
		return
	}
	for c := range m.chunks {
		t := Task{Kind: Notify, Peer: rank, Waits: m.waits.of(Wait{Flag: m.flag(m.added, 0, c), Count: 1})}
		for node := range m.Nodes() {
			if node != m.node[rank] {
				t.Signals = append(t.Signals, Signal{Rank: m.gateway(rank, node), Flag: m.flag(m.credit, rank, c)})
			}
		}
		m.add(rank, RoleSend, t)
	}
}

func (m *scatter) region(b BufferID, shard, c int) Region {
	return Region{Buffer: b, Rows: m.shardRows(shard, c, m.chunks), Cols: All(DimN)}
}

// adder is the rank that adds a node's partial products of a shard.
func (m *scatter) adder(shard, node int) int {
	if m.node[shard] == node {
		return shard
	}
	return m.gateway(shard, node)
}

// slot is the buffer at the adder of a shard that a rank of its node stores its product into.
func (m *scatter) slot(rank, shard int) BufferID {
	node := m.node[rank]
	switch {
	case len(m.node) == 1:
		return sumC
	case m.node[shard] == node:
		return m.slots + BufferID(m.local[rank])
	case m.PPN[node] == 1:
		return m.sums + BufferID(m.pass[shard][node])
	}
	return m.passes + BufferID(m.pass[shard][node]*m.most+m.local[rank])
}

// segment computes a rank's part of one chunk of a shard, straight into its slot.
func (m *scatter) segment(rank, shard, c int) Task {
	to := m.adder(shard, m.node[rank])
	t := Task{
		Kind: Compute, Peer: to,
		Src: Region{Buffer: sumA, Rows: m.shardRows(shard, c, m.chunks), Cols: All(DimK)},
		B:   Region{Buffer: sumB, Rows: All(DimN), Cols: All(DimK)},
		Dst: m.region(m.slot(rank, shard), shard, c),
	}
	if len(m.node) == 1 {
		return t
	}
	if to != rank && !m.gather {
		t.Waits = m.waits.of(Wait{Flag: m.flag(m.free, shard, c), Count: 1, Lag: 1})
	}
	t.Signals = m.signals.of(Signal{Rank: to, Flag: m.flag(m.partials, shard, c)})
	return t
}

// freed tells the other ranks of the node that their slots were read.
func (m *scatter) freed(rank, shard, c int) []Signal {
	if m.gather {
		return nil
	}
	node := m.node[rank]
	signals := make([]Signal, 0, m.PPN[node]+1)
	for d := 1; d < m.PPN[node]; d++ {
		signals = append(signals, Signal{Rank: m.first[node] + (m.local[rank]+d)%m.PPN[node], Flag: m.flag(m.free, shard, c)})
	}
	return signals
}

// sumUp adds the node's products of a shard of another node.
func (m *scatter) sumUp(rank, shard, c int) Task {
	node := m.node[rank]
	k := m.pass[shard][node]
	t := Task{
		Kind: Reduce, Peer: rank, Dst: m.region(m.sums+BufferID(k), shard, c),
		Waits:   m.waits.of(Wait{Flag: m.flag(m.partials, shard, c), Count: uint32(m.PPN[node])}),
		Signals: append(m.freed(rank, shard, c), Signal{Rank: rank, Flag: m.flag(m.sum, shard, c)}),
	}
	for i := range m.PPN[node] {
		t.Srcs = append(t.Srcs, m.region(m.passes+BufferID(k*m.most+i), shard, c))
	}
	return t
}

// sendSum sends the node's sum, or its only rank's product, to the owner of the shard.
func (m *scatter) sendSum(rank, shard, c int) Task {
	node := m.node[rank]
	ready := m.flag(m.sum, shard, c)
	if m.PPN[node] == 1 {
		ready = m.flag(m.partials, shard, c)
	}
	t := Task{
		Kind: Send, Peer: shard,
		Src:     m.region(m.sums+BufferID(m.pass[shard][node]), shard, c),
		Dst:     m.region(m.nodes+BufferID(node), shard, c),
		Waits:   m.waits.of(Wait{Flag: ready, Count: 1}),
		Signals: m.signals.of(Signal{Rank: shard, Flag: m.flag(m.crossed, node, c)}),
	}
	if !m.gather {
		t.Waits = m.waits.of(t.Waits[0], Wait{Flag: m.flag(m.credit, shard, c), Count: 1, Lag: 1})
	}
	return t
}

// finish adds up a chunk of the rank's own shard.
func (m *scatter) finish(rank, c int) Task {
	t := Task{
		Kind: Reduce, Peer: rank, Dst: m.region(sumC, rank, c),
		Waits:   []Wait{{Flag: m.flag(m.partials, rank, c), Count: uint32(m.PPN[m.node[rank]])}},
		Signals: m.freed(rank, rank, c),
	}
	for node := range m.Nodes() {
		if node != m.node[rank] {
			t.Srcs = append(t.Srcs, m.region(m.nodes+BufferID(node), rank, c))
			t.Waits = append(t.Waits, Wait{Flag: m.flag(m.crossed, node, c), Count: 1})
			continue
		}
		for i := range m.PPN[node] {
			t.Srcs = append(t.Srcs, m.region(m.slots+BufferID(i), rank, c))
		}
	}
	if m.Nodes() > 1 || m.gather {
		t.Signals = append(t.Signals, Signal{Rank: rank, Flag: m.flag(m.added, 0, c)})
	}
	return t
}

// scatterTraffic is what the reduce-scatter moves: every node's products of each shard go to one of its ranks, and
// its sum to the owner.
func (m *scatter) scatterTraffic() Traffic {
	return Traffic{
		{Path: PathScatterMates, Elem: m.elem, Rows: All(DimM), Cols: All(DimN)},
		{Path: PathScatterRails, Elem: m.elem, Rows: All(DimM), Cols: All(DimN)},
	}
}
