package operator

import (
	"math"
	"sync"

	"github.com/mkrun/mkrun/internal/engine"
)

// matrix numbers the operands of a run.
type matrix uint64

const (
	matrixA matrix = iota + 1
	matrixB        // all ranks' B, one below the other
)

// data makes the elements of a run's matrices: standard normal, and a function of (seed, generation,
// matrix, row, column) alone, so that any rank can make any other rank's rows.
type data struct {
	spec       RunSpec
	generation uint64 // fresh data for each
}

// rows fills dst with rows [from, to) of a matrix; its columns are a multiple of 8, as all depths are.
func (d data) rows(dst []uint16, m matrix, from, to, cols int64) {
	table := normals[d.spec.DType]()
	for row := from; row < to; row++ {
		key := mix(mix(mix(mix(d.spec.Seed)^d.generation)^uint64(m)) ^ uint64(row))
		out := dst[(row-from)*cols : (row-from+1)*cols]
		for ; len(out) >= 4; out = out[4:] { // 16 random bits choose an element
			key += 0x9e3779b97f4a7c15
			r := mix(key)
			out[0], out[1], out[2], out[3] = table[uint16(r)], table[uint16(r>>16)], table[uint16(r>>32)], table[uint16(r>>48)]
		}
	}
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// normals holds, per type, the 2^16 quantiles of the standard normal distribution.
var normals = [...]func() *[1 << 16]uint16{
	engine.BF16: sync.OnceValue(func() *[1 << 16]uint16 { return quantiles(engine.BF16) }),
	engine.FP16: sync.OnceValue(func() *[1 << 16]uint16 { return quantiles(engine.FP16) }),
}

func quantiles(d engine.DType) *[1 << 16]uint16 {
	var f [1 << 16]float32
	for i := range f {
		f[i] = float32(math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/float64(len(f))-1))
	}
	table := new([1 << 16]uint16)
	d.Narrow(table[:], f[:])
	return table
}
