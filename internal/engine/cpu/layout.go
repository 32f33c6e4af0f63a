package cpu

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

const (
	pageSize   = 4096
	headerSize = 4096 // see the header offsets in heap.go
)

// layout says where everything lies in a heap. It follows from plan and shape alone, so it is the
// same on all ranks and an offset means the same everywhere. All offsets and sizes are in bytes.
type layout struct {
	flags   int64   // cells from here on
	cells   int64   // where they end
	landing []int64 // per plan buffer; -1 for buffers that are not in the heap
	size    int64
}

// newLayout fails when a size does not fit 62 bits.
func newLayout(p *plan.Plan, s plan.Shape, d engine.DType) (layout, error) {
	l := layout{flags: headerSize, cells: headerSize + int64(len(p.Flags))*cellSize, landing: make([]int64, len(p.Buffers))}
	end, err := alignUp(l.cells)
	if err != nil {
		return l, err
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		l.landing[i] = -1
		if !b.InHeap() {
			continue
		}
		// A sharded buffer gets room for the largest shard, so that offsets stay equal.
		n, err := matrixBytes(b.MaxRows(s, p.World.Size()), s.Of(b.Cols), b.Elem.Size(d.Size()))
		if err != nil {
			return l, fmt.Errorf("buffer %s: %w", b.Name, err)
		}
		l.landing[i] = end
		if n > math.MaxInt64/2-end {
			return l, fmt.Errorf("the heap overflows 64-bit offsets at buffer %s", b.Name)
		}
		if end, err = alignUp(end + n); err != nil {
			return l, err
		}
	}
	l.size = end
	return l, nil
}

// matrixBytes is rows*cols*elem, or an error when that overflows.
func matrixBytes(rows, cols, elem int64) (int64, error) {
	if rows < 0 || cols < 0 {
		return 0, fmt.Errorf("negative size %d x %d", rows, cols)
	}
	hi, lo := bits.Mul64(uint64(rows), uint64(cols))
	if hi != 0 || lo > uint64(math.MaxInt64/4/elem) {
		return 0, fmt.Errorf("%d x %d elements of %d bytes overflow 64-bit sizes", rows, cols, elem)
	}
	return int64(lo) * elem, nil
}

func alignUp(n int64) (int64, error) {
	if n < 0 || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%d bytes overflow 64-bit offsets", n)
	}
	return (n + pageSize - 1) &^ (pageSize - 1), nil
}
