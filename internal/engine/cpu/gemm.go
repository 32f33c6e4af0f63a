package cpu

import (
	"sync"
	"sync/atomic"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/mkrun/mkrun/internal/engine"
)

const (
	// depth is the number of columns of A and B multiplied before their product is added to the
	// tile. It is fixed, so that every element is summed in one order whatever the tile, the number of
	// workers or the order of arrival. 64 x 256 floats of A and of B stay in the second-level cache.
	depth = 256
	// block is the largest square handed to gonum at once; from four blocks of 64 on it would start
	// goroutines of its own, and the engine's workers are to be the only parallelism.
	block = 64
	// hotRows is the rows of B that stay in the first-level cache while the rows of A pass by; a multiple of 4.
	hotRows = 24
)

// rect is a rectangle of a row-major matrix, as 16-bit words: one per element, or two if these are fp32.
type rect struct {
	bits       []uint16 // from the first element on
	rows, cols int64    // columns and stride in words
	stride     int64
	fp32       bool
}

func (r rect) row(i int64) []uint16 { return r.bits[i*r.stride : i*r.stride+r.cols] }

// size is the number of bytes of the rectangle.
func (r rect) size() int64 { return 2 * r.rows * r.cols }

// bytesFrom is the longest contiguous part of the rectangle, as bytes, that starts at byte off of its
// rows laid end to end.
func (r rect) bytesFrom(off int64) []byte {
	width := 2 * r.cols
	if r.stride == r.cols {
		return bytesOf(r.bits[:r.rows*r.cols])[off:]
	}
	return bytesOf(r.row(off / width))[off%width:]
}

func copyRect(dst, src rect) {
	if dst.stride == dst.cols && src.stride == src.cols {
		copy(dst.bits[:dst.rows*dst.cols], src.bits)
		return
	}
	for i := range src.rows {
		copy(dst.row(i), src.row(i))
	}
}

// panel is some rows of an operand in fp32, column block by column block: block q holds columns
// [q*depth, (q+1)*depth) of all rows. Both operands of a tile are read this way, rows against rows.
type panel struct {
	once   sync.Once // of having memory
	data   []float32
	blocks []sync.Once // of being converted
}

func newBlocks(cols int64) []sync.Once { return make([]sync.Once, ceilDiv(cols, depth)) }

// reset makes the next epoch convert the panel anew.
func (p *panel) reset() {
	p.once = sync.Once{}
	for i := range p.blocks {
		p.blocks[i] = sync.Once{}
	}
}

// fill converts the columns from q on, one block of them, of rows [from, from+n) of src, once; concurrent callers wait
// until it is done. A panel without memory of its own takes it from the pool.
func (p *panel) fill(d engine.DType, src rect, from, n, q int64, pool *panelPool) {
	p.once.Do(func() {
		if p.data == nil {
			p.data = pool.get()
		}
	})
	p.blocks[q/depth].Do(func() {
		width := min(depth, src.cols-q)
		padded := pad(width)
		for i := range n {
			at := q*n + i*padded
			widen(d, p.data[at:at+width], src.row(from + i)[q:q+width])
			clear(p.data[at+width : at+padded])
		}
	})
}

// pad rounds columns up to what products are made of: parts of a depth have any number.
func pad(cols int64) int64 { return (cols + 7) &^ 7 }

// widen converts elements; dst has as many.
func widen(d engine.DType, dst []float32, src []uint16) {
	if n := len(src) &^ 7; n > 0 && haveAVX2 && d == engine.BF16 {
		widenBF16(&dst[0], &src[0], n)
		dst, src = dst[n:], src[n:]
	}
	d.Widen(dst, src)
}

// part is row i of the panel's column block at q, and all that follows of that block.
func (p *panel) part(rows, i, q, width int64) []float32 {
	return p.data[q*rows+i*width : q*rows+rows*width]
}

// operand is a second operand (N x K) that is converted once per epoch, a panel at a time, and used
// by every segment that multiplies with it.
type operand struct {
	src    rect
	panels []panel
}

func newOperand(src rect, tile int64) *operand {
	o := &operand{src: src, panels: make([]panel, ceilDiv(src.rows, tile))}
	cols := pad(src.cols)
	data := make([]float32, src.rows*cols)
	for j := range o.panels {
		from := int64(j) * tile
		n := min(tile, src.rows-from)
		o.panels[j].data = data[from*cols : (from+n)*cols]
		o.panels[j].blocks = newBlocks(src.cols)
	}
	return o
}

// reset makes the next epoch convert the operand anew.
func (o *operand) reset() {
	for j := range o.panels {
		o.panels[j].reset()
	}
}

// segment is a compute task split into tiles, which the compute workers claim one by one, row strip
// by row strip. Whoever finishes the last tile raises the task's signals.
type segment struct {
	task   *task
	b      *operand
	ownB   bool // nobody else uses the operand
	tile   int64
	strips []strip
	tiles  int64 // at least 1: an empty product still waits and signals
	open   atomic.Int64
}

// strip is the tiles of one row panel of A.
type strip struct {
	a    panel
	open atomic.Int64 // tiles that still need the panel
}

func newSegment(t *task, b *operand, tile int64) *segment {
	s := &segment{task: t, b: b, tile: tile, strips: make([]strip, ceilDiv(t.src.rows, tile))}
	for i := range s.strips {
		s.strips[i].a.blocks = newBlocks(t.src.cols)
	}
	s.tiles = max(1, int64(len(s.strips))*int64(len(b.panels)))
	return s
}

// reset prepares the segment for the next epoch.
func (s *segment) reset() {
	s.open.Store(s.tiles)
	if s.ownB {
		s.b.reset()
	}
	for i := range s.strips {
		s.strips[i].a.reset()
		s.strips[i].open.Store(int64(len(s.b.panels)))
	}
}

// multiply computes tile number n of the segment. sum is the worker's own block x block scratch. Before columns of the
// operands are read, pass is called with the end of these.
func (s *segment) multiply(d engine.DType, n int64, sum []float32, spare *panelPool, pass func(end int64) error) error {
	if len(s.strips) == 0 || len(s.b.panels) == 0 {
		return nil
	}
	across := int64(len(s.b.panels))
	strip, b := &s.strips[n/across], &s.b.panels[n%across]
	row0, col0 := n/across*s.tile, n%across*s.tile
	src, dst := s.task.src, s.task.dst
	rows, cols := min(s.tile, src.rows-row0), min(s.tile, s.b.src.rows-col0)

	for i := int64(0); i < rows; i += block {
		for j := int64(0); j < cols; j += block {
			m, n := min(block, rows-i), min(block, cols-j)
			clear(sum)
			for q := int64(0); q < src.cols; q += depth {
				if err := pass(min(q+depth, src.cols)); err != nil {
					return err
				}
				strip.a.fill(d, src, row0, rows, q, spare)
				b.fill(d, s.b.src, col0, cols, q, nil)
				width := pad(min(depth, src.cols-q))
				accumulate(sum, strip.a.part(rows, i, q, width), b.part(cols, j, q, width), int(m), int(n), int(width))
			}
			for r := range m {
				dst.store(d, row0+i+r, col0+j, sum[r*block:r*block+n])
			}
		}
	}
	if strip.open.Add(-1) == 0 {
		spare.put(&strip.a)
	}
	return nil
}

// accumulate adds to sum, m x n in rows of block, the scalar products of m rows of a with n rows of b.
// The rows have k columns, a multiple of 8, and lie end to end.
func accumulate(sum, a, b []float32, m, n, k int) {
	if !haveAVX2 {
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, m, n, k, 1, a, k, b, k, 1, sum, block)
		return
	}
	// At an edge the last row stands in for those that are not there, and its products are dropped.
	var out [12]float32
	at := func(x []float32, i, rows int) *float32 { return &x[min(i, rows-1)*k : min(i, rows-1)*k+k][0] }
	for from := 0; from < n; from += hotRows {
		to := min(from+hotRows, n)
		for i := 0; i < m; i += 3 {
			a0, a1, a2 := at(a, i, m), at(a, i+1, m), at(a, i+2, m)
			for j := from; j < to; j += 4 {
				dot3x4(a0, a1, a2, at(b, j, n), at(b, j+1, n), at(b, j+2, n), at(b, j+3, n), k, &out)
				for r := range min(3, m-i) {
					row := sum[(i+r)*block+j:]
					for c := range min(4, n-j) {
						row[c] += out[4*r+c]
					}
				}
			}
		}
	}
}

// panelPool keeps the panels of finished strips for the next ones. Tiles are claimed in order, so
// about as many panels are in use as there are workers.
type panelPool struct {
	mu   sync.Mutex
	free [][]float32
	size int64 // floats per panel
}

func (p *panelPool) get() []float32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		data := p.free[n-1]
		p.free = p.free[:n-1]
		return data
	}
	return make([]float32, p.size)
}

func (p *panelPool) put(a *panel) {
	if a.data == nil {
		return // of a product over no columns
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, a.data)
	a.data = nil
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
