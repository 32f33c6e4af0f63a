package operator

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// product is the reference A * Bᵀ in fp32: of regenerated operands, by gonum in large pieces, without
// an engine, a plan or a tile.
type product struct {
	data data
	b    []float32 // N x K
	bits []uint16  // scratch: rows of A as elements
	a    []float32 // scratch: the same in fp32
}

// newProduct takes rows [from, to) of the run's B.
func newProduct(d data, from, to int64) *product {
	k := d.spec.Shape.K
	bits := make([]uint16, (to-from)*k)
	d.rows(bits, matrixB, from, to, k)
	p := &product{data: d, b: make([]float32, len(bits))}
	d.spec.DType.Widen(p.b, bits)
	return p
}

func (p *product) rows(from, to int64, out []float32) {
	n, k := p.data.spec.Shape.N, p.data.spec.Shape.K
	if size := (to - from) * k; int64(len(p.a)) < size {
		p.bits, p.a = make([]uint16, size), make([]float32, size)
	}
	p.data.rows(p.bits, matrixA, from, to, k)
	p.data.spec.DType.Widen(p.a, p.bits[:(to-from)*k])
	gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, int(to-from), int(n), int(k), 1, p.a, int(k), p.b, int(k), 0, out, int(n))
}
