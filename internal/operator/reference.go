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

// productSum is the reference sum over all ranks of A * Bᵀ, from row first of the result on.
type productSum struct {
	data  data
	first int64
	bits  []uint16 // scratch: rows of an operand as elements
	a, b  []float32
}

func (p *productSum) rows(from, to int64, out []float32) {
	s := p.data.spec
	m, n, k := to-from, s.Shape.N, s.Shape.K
	clear(out[:m*n])
	for rank := range s.World.Size() {
		a, _ := ownM(s, rank)
		b, _ := ownN(s, rank)
		p.a = p.operand(p.a, matrixA, a+p.first+from, m)
		p.b = p.operand(p.b, matrixB, b, n)
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, int(m), int(n), int(k), 1, p.a, int(k), p.b, int(k), 1, out, int(n))
	}
}

// operand makes rows of an operand in fp32, in the memory given if there is enough.
func (p *productSum) operand(into []float32, which matrix, from, rows int64) []float32 {
	k := p.data.spec.Shape.K
	size := rows * k
	if int64(len(p.bits)) < size {
		p.bits = make([]uint16, size)
	}
	if int64(len(into)) < size {
		into = make([]float32, size)
	}
	p.data.rows(p.bits[:size], which, from, from+rows, k)
	p.data.spec.DType.Widen(into, p.bits[:size])
	return into
}
