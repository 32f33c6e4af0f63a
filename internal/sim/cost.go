package sim

import "github.com/mkrun/mkrun/internal/plan"

// The links of a rank.
const (
	linkOut = iota // to ranks of its node
	linkIn
	nicOut // to other nodes
	nicIn
	linksPerRank
)

// cost is what a task asks of the hardware. Its workers claim it in equal parts.
type cost struct {
	parts      int64
	before     Time    // of each part, until its bytes or products begin
	each       Time    // of each part, by its worker alone
	bytes      int64   // of all parts, over the links
	links      []int   // none: nothing leaves the rank
	workerRate float64 // bytes per second that a worker moves; 0: it only gives orders
}

// smallestPart is what a transfer or sum is not cut below, in bytes: one bulk store.
const smallestPart = 16 << 10

// cost of a task for a crew of so many workers. What is not known here (a kind that is newer) is taken to read its
// sources and write its result.
func (s *simulation) cost(t *plan.Task, rank, workers int) cost {
	c := cost{parts: 1, before: s.hw.TaskCost}
	switch t.Kind {
	case plan.Notify:
	case plan.Compute:
		s.product(&c, t, rank)
	case plan.Copy:
		if t.Peer == rank {
			s.local(&c, workers, 2*s.bytes(t.Src), s.hw.CopyWorkerGBs)
			break
		}
		c.bytes = s.bytes(t.Src)
		c.parts = partsOf(c.bytes, workers)
		c.links = []int{rank*linksPerRank + linkOut, t.Peer*linksPerRank + linkIn}
		c.workerRate = s.hw.CopyWorkerGBs * 1e9
	case plan.Send:
		c.bytes = s.bytes(t.Src)
		c.before += s.hw.SendCost
		c.links = []int{rank*linksPerRank + nicOut, t.Peer*linksPerRank + nicIn}
	default:
		n := s.bytes(t.Src) + s.bytes(t.Dst)
		for _, r := range t.Srcs {
			n += s.bytes(r)
		}
		s.local(&c, workers, n, s.hw.ReduceWorkerGBs)
	}
	return c
}

// product is the cost of a segment: its tiles, and their way to the rank that they are for.
func (s *simulation) product(c *cost, t *plan.Task, rank int) {
	rows, cols := t.Src.Rows.Len(s.o.Shape), t.B.Rows.Len(s.o.Shape)
	depth := t.Src.Cols.Len(s.o.Shape)
	if rows == 0 || cols == 0 {
		return
	}
	c.parts, c.each = s.hw.tiles(rows, cols, depth)
	c.before = 0 // part of a tile's cost
	if t.Peer != rank {
		c.bytes = s.bytes(t.Dst)
		c.links = []int{rank*linksPerRank + linkOut, t.Peer*linksPerRank + linkIn}
	}
}

// tiles is in how many tiles a product is computed, and how long each takes.
func (h *Hardware) tiles(rows, cols, depth int64) (n int64, each Time) {
	flops := 2 * float64(h.TileM) * float64(h.TileN) * float64(depth)
	return up(rows, h.TileM) * up(cols, h.TileN), seconds(flops/(h.MatrixTFLOPS*1e12/float64(h.SMs))) + h.TileCost
}

// productAlone is how long a rank's products take one after the other on all SMs, with every operand at hand. Segments
// with the same second operand are one product.
func (s *simulation) productAlone(rank int) Time {
	type product struct {
		b     plan.Region
		depth plan.Span
	}
	rows := make(map[product]int64)
	for _, t := range s.p.Ranks[rank].Queues[plan.RoleCompute] {
		rows[product{t.B, t.Src.Cols}] += t.Src.Rows.Len(s.o.Shape)
	}
	var sum Time
	for p, n := range rows {
		tiles, each := s.hw.tiles(n, p.b.Rows.Len(s.o.Shape), p.depth.Len(s.o.Shape))
		sum += Time(up(tiles, int64(s.hw.SMs))) * each
	}
	if sum == 0 {
		return 0
	}
	return sum + s.hw.Launch
}

// local is the cost of bytes that stay in the rank's memory.
func (s *simulation) local(c *cost, workers int, bytes int64, workerGBs float64) {
	c.parts = partsOf(bytes, workers)
	rate := min(workerGBs, s.hw.MemoryGBs/float64(max(1, workers)))
	c.each = seconds(float64(bytes) / float64(c.parts) / (rate * 1e9))
}

// bytes is the size of a region; the region of a task that has none is empty.
func (s *simulation) bytes(r plan.Region) int64 {
	if r == (plan.Region{}) {
		return 0
	}
	return r.Elements(s.o.Shape) * s.p.Buffers[r.Buffer].Elem.Size(s.o.ElemSize)
}

// partsOf is in how many parts so many workers take so many bytes.
func partsOf(bytes int64, workers int) int64 {
	return max(1, min(int64(workers), up(bytes, smallestPart)))
}

func up(a, b int64) int64 { return (a + b - 1) / b }
