package plan

import "math/bits"

// Dim names a size that is known only at launch. Plans hold formulas in these,
// never numbers, so one plan serves every shape.
type Dim uint8

const (
	DimM Dim = iota // rows of the global A and of C
	DimN            // columns of C on one rank
	DimK            // columns of A, the depth of the product
	numDims
)

func (d Dim) String() string { return [...]string{"M", "N", "K"}[d] }

// Shape gives the dims their values for one launch.
type Shape struct {
	M int64 `json:"m"`
	N int64 `json:"n"`
	K int64 `json:"k"`
}

// Of is the value of one dim.
func (s Shape) Of(d Dim) int64 { return [...]int64{s.M, s.N, s.K}[d] }

// Ratio is a cut point of a dim: floor(dim * Num / Den). Neighbouring spans share their
// cut point, so rows are split as evenly as can be and none is lost or doubled.
type Ratio struct {
	Num uint32 `json:"num"`
	Den uint32 `json:"den"`
}

// At evaluates the cut point of a dim of the given size. Den must not be 0 and Num must not
// exceed Den (Validate of the plan sees to both), so the 128-bit intermediate never overflows.
func (r Ratio) At(size int64) int64 {
	hi, lo := bits.Mul64(uint64(size), uint64(r.Num))
	q, _ := bits.Div64(hi, lo, uint64(r.Den))
	return int64(q)
}

// Span is the half-open range [From, To) of a dim.
type Span struct {
	Dim  Dim   `json:"dim"`
	From Ratio `json:"from"`
	To   Ratio `json:"to"`
}

// All is the whole of a dim.
func All(d Dim) Span { return Span{Dim: d, From: Ratio{0, 1}, To: Ratio{1, 1}} }

// Part is the i-th of n nearly equal parts of a dim.
func Part(d Dim, i, n int) Span {
	return Span{Dim: d, From: Ratio{uint32(i), uint32(n)}, To: Ratio{uint32(i + 1), uint32(n)}}
}

// At evaluates the span for a shape.
func (s Span) At(shape Shape) (from, to int64) {
	size := shape.Of(s.Dim)
	return s.From.At(size), s.To.At(size)
}

// Len is the number of rows or columns of the span for a shape.
func (s Span) Len(shape Shape) int64 {
	from, to := s.At(shape)
	return to - from
}
