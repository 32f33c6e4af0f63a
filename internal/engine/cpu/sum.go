package cpu

import (
	"unsafe"

	"github.com/mkrun/mkrun/internal/engine"
)

// elements is the number of elements of a row.
func (r rect) elements() int64 {
	if r.fp32 {
		return r.cols / 2
	}
	return r.cols
}

// floats is row i of fp32 elements.
func (r rect) floats(i int64) []float32 {
	row := r.row(i)
	if len(row) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(row))), len(row)/2)
}

// store writes values into row i from element col on, rounded to the elements' type.
func (r rect) store(d engine.DType, i, col int64, values []float32) {
	if r.fp32 {
		copy(r.floats(i)[col:], values)
		return
	}
	d.Narrow(r.row(i)[col:col+int64(len(values))], values)
}

// load reads row i.
func (r rect) load(d engine.DType, i int64, values []float32) {
	if r.fp32 {
		copy(values, r.floats(i))
		return
	}
	widen(d, values, r.row(i))
}

// reduce writes the sum of srcs to dst, added in fp32 in their order. all of them have dst's rows and elements. row
// and next are scratch, made as long as a row.
func (w *worker) reduce(d engine.DType, dst rect, srcs []rect) {
	n := dst.elements()
	if dst.rows == 0 || n == 0 {
		return
	}
	if int64(len(w.row)) < n {
		w.row, w.next = make([]float32, n), make([]float32, n)
	}
	sum, next := w.row[:n], w.next[:n]
	for i := range dst.rows {
		srcs[0].load(d, i, sum)
		for _, src := range srcs[1:] {
			src.load(d, i, next)
			for j, v := range next {
				sum[j] += v
			}
		}
		dst.store(d, i, 0, sum)
	}
}
