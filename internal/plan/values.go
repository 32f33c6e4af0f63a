package plan

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// value is what the elements of a buffer are, as an expression: an input, a product, a sum of values in their order, a
// rounded value. Two values that are written alike are equal bit by bit. Rows and columns are always in their places
// (Validate sees to that), so it says nothing of these.
type value struct {
	kind   valueKind
	input  BufferID // of an input
	rank   int32    // of an input: whose it is, or -1 of one that all ranks share
	of     []int32  // of a product its two operands, of a sum what is added, of a rounded value what it was
	dim    Dim      // of a product: its depth
	k0, k1 int32    // and the part of it, in cut points
	result int32    // of a result whose rows are not all alike: its place in Plan.Results
}

type valueKind uint8

const (
	valInput   valueKind = iota
	valProduct           // in fp32
	valSum               // in fp32: ((first + second) + third) + ...
	valRounded           // to the operator's dtype
	valResult            // in each row what the result is to be there
)

// values numbers values, so that equal ones have equal ids.
type values struct {
	p    *Plan
	cuts *cuts
	list []value
	ids  map[string]int32
	// The same for what comes most often.
	products map[product]int32
	rounded  map[int32]int32
	key      []byte
}

type product struct {
	a, b, k0, k1 int32
	dim          Dim
}

func newValues(p *Plan, c *cuts) *values {
	return &values{p: p, cuts: c, ids: make(map[string]int32), products: make(map[product]int32), rounded: make(map[int32]int32)}
}

// id is that of the value written in v.key, which is x.
func (v *values) id(x value) int32 {
	id, ok := v.ids[string(v.key)]
	if !ok {
		id = int32(len(v.list))
		v.list = append(v.list, x)
		v.ids[string(v.key)] = id
	}
	return id
}

func (v *values) write(kind valueKind, numbers ...int32) {
	v.key = append(v.key[:0], byte(kind))
	for _, n := range numbers {
		v.key = binary.LittleEndian.AppendUint32(v.key, uint32(n))
	}
}

// input is the value of a rank's input, or of one that all ranks share (rank -1).
func (v *values) input(id BufferID, rank int32) int32 {
	v.write(valInput, int32(id), rank)
	return v.id(value{kind: valInput, input: id, rank: rank})
}

// product is that of two values over a part of the depth.
func (v *values) product(a, b int32, dim Dim, k0, k1 int32) int32 {
	at := product{a, b, k0, k1, dim}
	id, ok := v.products[at]
	if !ok {
		id = int32(len(v.list))
		v.list = append(v.list, value{kind: valProduct, of: []int32{a, b}, dim: dim, k0: k0, k1: k1})
		v.products[at] = id
	}
	return id
}

// sum adds values in their order. A sum that was not rounded and then goes on is one sum.
func (v *values) sum(ids []int32) int32 {
	if len(ids) == 1 {
		return ids[0]
	}
	if first := &v.list[ids[0]]; first.kind == valSum {
		ids = append(append(make([]int32, 0, len(first.of)+len(ids)), first.of...), ids[1:]...)
	}
	v.write(valSum, ids...)
	if id, ok := v.ids[string(v.key)]; ok {
		return id
	}
	return v.id(value{kind: valSum, of: append([]int32(nil), ids...)})
}

// as is a value in a buffer of elements of a type.
func (v *values) as(id int32, elem Elem) int32 {
	if kind := v.list[id].kind; elem != ElemOperand || kind != valProduct && kind != valSum {
		return id
	}
	at, ok := v.rounded[id]
	if !ok {
		at = int32(len(v.list))
		v.list = append(v.list, value{kind: valRounded, of: []int32{id}})
		v.rounded[id] = at
	}
	return at
}

// result is one that is not the same expression in all rows.
func (v *values) result(i int) int32 {
	v.write(valResult, int32(i))
	return v.id(value{kind: valResult, result: int32(i)})
}

// text names a value.
func (v *values) text(id int32) string {
	const most = 6 // of a sum
	switch x := &v.list[id]; x.kind {
	case valInput:
		if x.rank < 0 {
			return fmt.Sprintf("%q", v.p.bufferName(x.input))
		}
		return fmt.Sprintf("%q of rank %d", v.p.bufferName(x.input), x.rank)
	case valProduct:
		part := ""
		if x.k0 != 0 || x.k1 != v.cuts.last(x.dim) {
			part = fmt.Sprintf(" over a part of %v", x.dim)
		}
		return fmt.Sprintf("%s x %s%s", v.text(x.of[0]), v.text(x.of[1]), part)
	case valSum:
		parts := make([]string, 0, most+1)
		for _, id := range x.of[:min(most, len(x.of))] {
			parts = append(parts, v.text(id))
		}
		if more := len(x.of) - most; more > 0 {
			parts = append(parts, fmt.Sprintf("%d more", more))
		}
		return "(" + strings.Join(parts, " + ") + ")"
	case valRounded:
		return "rounded " + v.text(x.of[0])
	default:
		return fmt.Sprintf("%q", v.p.Results[x.result].Name)
	}
}
