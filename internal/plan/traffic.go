package plan

import (
	"fmt"
	"math"
	"math/bits"
)

// Bytes is what a plan moves at a shape and an element type.
type Bytes struct {
	Intra        int64 `json:"intra"`         // within nodes
	Inter        int64 `json:"inter"`         // between nodes
	InterMinimum int64 `json:"inter_minimum"` // the least that any plan for the same contract moves between nodes
}

// Bytes evaluates what the plan declares for a shape and an element size in bytes, and the least that its contract
// needs. The error says that the contract means nothing, or that a sum does not fit in 64 bits.
func (p *Plan) Bytes(s Shape, elemSize int64) (Bytes, error) {
	if f := p.checkContract(); f != nil {
		return Bytes{}, f
	}
	intra, inter := p.Declared.Totals(p.World)
	var sums [3]checked
	add := func(sum *checked, list []Volume) {
		for _, v := range list {
			sum.add(v.Times, v.Rows.Len(s), v.Cols.Len(s), v.Elem.Size(elemSize))
		}
	}
	add(&sums[0], intra)
	add(&sums[1], inter)
	for _, alternatives := range p.Contract().interMinimum() {
		var least checked
		for i, list := range alternatives {
			var sum checked
			if add(&sum, list); i == 0 || !sum.overflow && (least.overflow || sum.n < least.n) {
				least = sum
			}
		}
		sums[2].add(least.n)
		sums[2].overflow = sums[2].overflow || least.overflow
	}
	for i, sum := range sums {
		if sum.overflow {
			return Bytes{}, fmt.Errorf("the %s traffic of shape M=%d N=%d K=%d is more than 2^63 bytes", [...]string{"intra", "inter", "least inter"}[i], s.M, s.N, s.K)
		}
	}
	return Bytes{Intra: sums[0].n, Inter: sums[1].n, InterMinimum: sums[2].n}, nil
}

// Counts are totals over all ranks.
type Counts struct {
	Transfers int `json:"transfers"` // copies and sends
	Segments  int `json:"segments"`  // of the product
	Sums      int `json:"sums"`
	Notices   int `json:"notices"`
	Flags     int `json:"flags"` // words that some task raises
}

// Counts counts the tasks and flags of the plan.
func (p *Plan) Counts() Counts {
	var c Counts
	raised := make(map[Signal]struct{})
	for rank := range p.Ranks {
		for _, queue := range p.Ranks[rank].Queues {
			for i := range queue {
				switch queue[i].Kind {
				case Copy, Send:
					c.Transfers++
				case Compute:
					c.Segments++
				case Reduce:
					c.Sums++
				case Notify:
					c.Notices++
				}
				for _, s := range queue[i].Signals {
					raised[s] = struct{}{}
				}
			}
		}
	}
	c.Flags = len(raised)
	return c
}

// FlagBytes is the size of one flag in the heap.
const FlagBytes = 8

// HeapBytes is what a rank's symmetric heap holds for a shape: its flags, its landing buffers and its shared
// results (of a sharded one, the largest part), without padding. The error says that the sum does not fit in 64
// bits.
func (p *Plan) HeapBytes(s Shape, elemSize int64) (int64, error) {
	var sum checked
	for i := range p.Flags {
		rows, cols := p.Flags[i].Field.blocks(s)
		sum.add(rows, cols, FlagBytes)
	}
	size := p.World.Size()
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.InHeap() {
			sum.add(b.MaxRows(s, size), s.Of(b.Cols), b.Elem.Size(elemSize))
		}
	}
	if sum.overflow {
		return 0, fmt.Errorf("the landing buffers of shape M=%d N=%d K=%d need more than 2^63 bytes per rank", s.M, s.N, s.K)
	}
	return sum.n, nil
}

// checked is a sum of products of sizes that notices when it leaves 0..2^63-1.
type checked struct {
	n        int64
	overflow bool
}

func (c *checked) add(factors ...int64) {
	product := uint64(1)
	for _, f := range factors {
		if f < 0 {
			c.overflow = true
			return
		}
		if f == 0 {
			return
		}
	}
	for _, f := range factors {
		hi, lo := bits.Mul64(product, uint64(f))
		if hi != 0 || lo > math.MaxInt64 {
			c.overflow = true
			return
		}
		product = lo
	}
	if product > uint64(math.MaxInt64-c.n) {
		c.overflow = true
		return
	}
	c.n += int64(product)
}
