package plan

import "fmt"

// The algorithms of gemm_ar.
const (
	TwoShot = "two-shot" // reduce-scatter, then gather: the fewest bytes
	OneShot = "one-shot" // everybody sends everything to its mates and its rail partners: the fewest steps
)

// GemmAR is a matrix product followed by an all-reduce: rank r holds its own whole A (M x K, K being its part of the
// depth) and B (N x K), and every rank ends with the sum over all ranks of A * Bᵀ (M x N), with the same bits.
//
// "two-shot" is GemmRS, after which each owner copies its shard into the results of its mates and sends it to its
// rail partner on each other node, who copies it to its own mates. These stores need no credits: the sum they carry
// has products of all ranks in it, so all have begun the epoch, and their callers are done with the old result. And
// since no rank's run ends before all of the sums have come, all slots are free when the next one begins.
//
// "one-shot" is for small M: each rank copies its whole product to its mates, all of which add up the node; then each
// rank sends the node's sum to the ranks of other nodes that have it as their rail partner, and all add up the nodes.
// That is two steps instead of four, and size/2 times as many bytes between nodes.
func GemmAR(w World, algorithm string, o SumOptions) (*Plan, error) {
	switch algorithm {
	case TwoShot:
		return twoShot(w, o)
	case OneShot:
		return oneShot(w, o)
	}
	return nil, fmt.Errorf("planning gemm_ar: unknown algorithm %q; known: %s, %s", algorithm, TwoShot, OneShot)
}

func twoShot(w World, o SumOptions) (*Plan, error) {
	m, err := newScatter("gemm_ar", TwoShot, w, o, true)
	if err != nil {
		return nil, err
	}
	size := len(m.node)
	m.make()
	arrived := m.plan.flagFamily(size > 1, Stamp, "result shard %d chunk %d", size, m.chunks)
	for rank := range m.node {
		m.spread(rank, arrived)
		m.settle(rank, arrived)
	}
	m.plan.Declared = append(m.scatterTraffic(),
		Flow{Path: PathGatherMates, Rows: All(DimM), Cols: All(DimN)}, Flow{Path: PathGatherRails, Rows: All(DimM), Cols: All(DimN)})
	return m.plan.fits(fewer(o, func(o SumOptions) (*Plan, error) { return twoShot(w, o) }))
}

// spread passes the rank's shard, and those that other nodes send it, on.
func (m *scatter) spread(rank int, arrived FlagID) {
	node, local := m.node[rank], m.local[rank]
	nodes, ppn := m.Nodes(), m.PPN[node]
	pass := func(kind Kind, shard, peer, c int, ready FlagID) Task {
		return Task{
			Kind: kind, Peer: peer, Src: m.region(sumC, shard, c), Dst: m.region(sumC, shard, c),
			Waits:   m.waits.of(Wait{Flag: ready, Count: 1}),
			Signals: m.signals.of(Signal{Rank: peer, Flag: m.flag(arrived, shard, c)}),
		}
	}
	for c := range m.chunks {
		for step := nodes - 1; step > 0; step-- {
			m.add(rank, RoleSend, pass(Send, rank, m.gateway(rank, (node+step)%nodes), c, m.flag(m.added, 0, c)))
		}
		for d := 1; d < ppn; d++ {
			m.add(rank, RoleIntra, pass(Copy, rank, m.first[node]+(local+d)%ppn, c, m.flag(m.added, 0, c)))
		}
	}
	for c := range m.chunks {
		for step := nodes - 1; step > 0; step-- {
			from := (node + nodes - step) % nodes
			for d := range m.PPN[from] {
				shard := m.first[from] + (local+d)%m.PPN[from]
				if m.gateway(shard, node) != rank {
					continue
				}
				for d := 1; d < ppn; d++ {
					m.add(rank, RoleIntra, pass(Copy, shard, m.first[node]+(local+d)%ppn, c, m.flag(arrived, shard, c)))
				}
			}
		}
	}
}

// settle ends the rank's run only when its result is complete. Where the rank passes a shard on, that waits for it.
func (m *scatter) settle(rank int, arrived FlagID) {
	if len(m.node) == 1 {
		return
	}
	t := Task{Kind: Notify, Peer: rank, Waits: make([]Wait, 0, (len(m.node)-1)*m.chunks)}
	for c := range m.chunks {
		for shard := range m.node {
			passes := m.node[shard] != m.node[rank] && m.gateway(shard, m.node[rank]) == rank && m.PPN[m.node[rank]] > 1
			if shard != rank && !passes {
				t.Waits = append(t.Waits, Wait{Flag: m.flag(arrived, shard, c), Count: 1})
			}
		}
	}
	m.add(rank, RoleSend, t)
}

// exchange makes the one-shot plan.
type exchange struct {
	maker
	slots, nodes                                             BufferID
	partials, computed, free, summed, crossed, added, credit FlagID
}

func oneShot(w World, o SumOptions) (*Plan, error) {
	// A rank has a task per other rank and chunk at most, of each kind.
	if err := checkSize("gemm_ar", w, o.Chunks, func(size int64) int64 { return size * size }); err != nil {
		return nil, err
	}
	if int(o.Partials) >= len(elemNames) {
		return nil, fmt.Errorf("planning gemm_ar: partial sums cannot travel as %v", o.Partials)
	}
	m := &exchange{}
	m.places, m.chunks = newPlaces(w), o.Chunks
	size, nodes := len(m.node), w.Nodes()
	p := &Plan{
		Operator: "gemm_ar", Algorithm: OneShot, World: w, Chunks: o.Chunks,
		Buffers: []Buffer{
			sumA: {Name: "a", Kind: BufInput, Rows: DimM, Cols: DimK},
			sumB: {Name: "b", Kind: BufInput, Rows: DimN, Cols: DimK},
			sumC: {Name: "c", Kind: BufOutput, Rows: DimM, Cols: DimN, Sum: true},
		},
		Flags:   []Flag{},
		Ranks:   make([]RankPlan, size),
		Results: sumContract(w, o.Partials, SumOfNodes, false).Results,
	}
	m.plan = p
	most := 0
	for _, ppn := range w.PPN {
		most = max(most, ppn)
	}
	landing := func(n int, format string) BufferID {
		id := BufferID(len(p.Buffers))
		for i := range n {
			p.Buffers = append(p.Buffers, Buffer{Name: fmt.Sprintf(format, i), Kind: BufLanding, Elem: o.Partials, Rows: DimM, Cols: DimN})
		}
		return id
	}
	if most > 1 {
		m.slots = landing(most, "slot %d")
	}
	if nodes > 1 {
		if nodes > maxBuffers/2 {
			return nil, fmt.Errorf("planning gemm_ar: %d nodes need more slots than a plan can name", nodes)
		}
		// The node's own sum stands where it is added, too.
		m.nodes = landing(nodes, "node %d")
	}
	m.partials = p.flagFamily(size > 1, Counter, "partials chunk %[2]d", 1, m.chunks)
	m.computed = p.flagFamily(size > nodes, Stamp, "computed chunk %[2]d", 1, m.chunks)
	m.free = p.flagFamily(size > nodes, Stamp, "free at local rank %d chunk %d", most, m.chunks)
	m.summed = p.flagFamily(nodes > 1 && size > nodes, Stamp, "summed chunk %[2]d", 1, m.chunks)
	m.crossed = p.flagFamily(nodes > 1, Stamp, "sum of node %d chunk %d", nodes, m.chunks)
	m.added = p.flagFamily(nodes > 1, Stamp, "added chunk %[2]d", 1, m.chunks)
	m.credit = p.flagFamily(nodes > 1, Stamp, "credit of rank %d chunk %d", size, m.chunks)
	for rank := range m.node {
		m.rank(rank)
	}
	p.Declared = Traffic{
		{Path: PathExchangeMates, Elem: o.Partials, Rows: All(DimM), Cols: All(DimN)},
		{Path: PathExchangeRails, Elem: o.Partials, Rows: All(DimM), Cols: All(DimN)},
	}
	return p.fits(fewer(o, func(o SumOptions) (*Plan, error) { return oneShot(w, o) }))
}

func (m *exchange) region(b BufferID, c int) Region {
	return Region{Buffer: b, Rows: Part(DimM, c, m.chunks), Cols: All(DimN)}
}

// rank fills the queues of one rank.
func (m *exchange) rank(rank int) {
	node, local := m.node[rank], m.local[rank]
	nodes, ppn := m.Nodes(), m.PPN[node]
	// Where the rank's product goes, and where the node's sum.
	product, sum := m.slots+BufferID(local), sumC
	if nodes > 1 {
		sum = m.nodes + BufferID(node)
	}
	if ppn == 1 {
		product = sum
	}
	for c := range m.chunks {
		t := Task{
			Kind: Compute, Peer: rank, Dst: m.region(product, c),
			Src: Region{Buffer: sumA, Rows: Part(DimM, c, m.chunks), Cols: All(DimK)},
			B:   Region{Buffer: sumB, Rows: All(DimN), Cols: All(DimK)},
		}
		if len(m.node) > 1 {
			t.Signals = append(t.Signals, Signal{Rank: rank, Flag: m.flag(m.partials, 0, c)})
		}
		if ppn > 1 {
			t.Signals = append(t.Signals, Signal{Rank: rank, Flag: m.flag(m.computed, 0, c)})
			m.spread(rank, c, product, sum)
		}
		m.add(rank, RoleCompute, t)
		if nodes > 1 {
			m.cross(rank, c)
		}
	}
	if nodes == 1 {
		return
	}
	for c := range m.chunks {
		t := Task{Kind: Notify, Peer: rank, Waits: m.waits.of(Wait{Flag: m.flag(m.added, 0, c), Count: 1})}
		for other := range nodes {
			if other != node {
				t.Signals = append(t.Signals, Signal{Rank: m.gateway(rank, other), Flag: m.flag(m.credit, rank, c)})
			}
		}
		m.add(rank, RoleSend, t)
	}
}

// spread copies a chunk of the rank's product to its mates and adds up what they copied here.
func (m *exchange) spread(rank, c int, product, sum BufferID) {
	node, local := m.node[rank], m.local[rank]
	ppn := m.PPN[node]
	add := Task{
		Kind: Reduce, Peer: rank, Dst: m.region(sum, c),
		Waits: m.waits.of(Wait{Flag: m.flag(m.partials, 0, c), Count: uint32(ppn)}),
	}
	for i := range ppn {
		add.Srcs = append(add.Srcs, m.region(m.slots+BufferID(i), c))
	}
	for d := 1; d < ppn; d++ {
		to := (local + d) % ppn
		m.add(rank, RoleIntra, Task{
			Kind: Copy, Peer: m.first[node] + to, Src: m.region(product, c), Dst: m.region(product, c),
			Waits:   m.waits.of(Wait{Flag: m.flag(m.computed, 0, c), Count: 1}, Wait{Flag: m.flag(m.free, to, c), Count: 1, Lag: 1}),
			Signals: m.signals.of(Signal{Rank: m.first[node] + to, Flag: m.flag(m.partials, 0, c)}),
		})
		add.Signals = append(add.Signals, Signal{Rank: m.first[node] + to, Flag: m.flag(m.free, local, c)})
	}
	if m.Nodes() > 1 {
		add.Signals = append(add.Signals, Signal{Rank: rank, Flag: m.flag(m.summed, 0, c)})
	}
	m.add(rank, RoleReduce, add)
}

// cross sends the node's sum of a chunk to other nodes and adds up the nodes.
func (m *exchange) cross(rank, c int) {
	node, nodes := m.node[rank], m.Nodes()
	ready := m.flag(m.summed, 0, c)
	if m.PPN[node] == 1 {
		ready = m.flag(m.partials, 0, c)
	}
	sum := m.region(m.nodes+BufferID(node), c)
	for step := nodes - 1; step > 0; step-- {
		to := (node + step) % nodes
		for peer := m.first[to]; peer < m.first[to]+m.PPN[to]; peer++ {
			if m.gateway(peer, node) == rank {
				m.add(rank, RoleSend, Task{
					Kind: Send, Peer: peer, Src: sum, Dst: sum,
					Waits:   m.waits.of(Wait{Flag: ready, Count: 1}, Wait{Flag: m.flag(m.credit, peer, c), Count: 1, Lag: 1}),
					Signals: m.signals.of(Signal{Rank: peer, Flag: m.flag(m.crossed, node, c)}),
				})
			}
		}
	}
	t := Task{
		Kind: Reduce, Peer: rank, Dst: m.region(sumC, c),
		Waits:   []Wait{{Flag: ready, Count: 1}},
		Signals: m.signals.of(Signal{Rank: rank, Flag: m.flag(m.added, 0, c)}),
	}
	for other := range nodes {
		t.Srcs = append(t.Srcs, m.region(m.nodes+BufferID(other), c))
		if other != node {
			t.Waits = append(t.Waits, Wait{Flag: m.flag(m.crossed, other, c), Count: 1})
		}
	}
	m.add(rank, RoleReduce, t)
}
