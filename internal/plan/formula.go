package plan

import (
	"cmp"
	"math/bits"
)

// Dim names a size that is known only at launch. Plans hold formulas in these,
// never numbers, so one plan serves every shape.
type Dim uint8

const (
	DimM Dim = iota // rows of the global A and of C
	DimN            // columns of C on one rank
	DimK            // columns of A, the depth of the product
	numDims
)

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

// valid reports whether the ratio lies in 0..1.
func (r Ratio) valid() bool { return r.Den != 0 && r.Num <= r.Den }

// compare orders valid ratios by value. floor(dim * r) never decreases in r, and tells different ratios
// apart once dim is large enough: so this order is the order of the cut points for all shapes at once.
func (r Ratio) compare(o Ratio) int {
	return cmp.Compare(uint64(r.Num)*uint64(o.Den), uint64(o.Num)*uint64(r.Den))
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

// valid reports whether the span is of a known dim, in order, and not empty for every shape.
func (s Span) valid() bool {
	return s.Dim < numDims && s.From.valid() && s.To.valid() && s.From.compare(s.To) < 0
}

// same reports whether two valid spans are equal for every shape.
func (s Span) same(o Span) bool {
	return s == o || s.Dim == o.Dim && s.From.compare(o.From) == 0 && s.To.compare(o.To) == 0
}

// within reports whether a valid span lies inside another for every shape.
func (s Span) within(o Span) bool {
	return s.Dim == o.Dim && o.From.compare(s.From) <= 0 && s.To.compare(o.To) <= 0
}

// Len is the number of rows or columns of the span for a shape.
func (s Span) Len(shape Shape) int64 {
	from, to := s.At(shape)
	return to - from
}
