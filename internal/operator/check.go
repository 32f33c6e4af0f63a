package operator

import (
	"fmt"
	"math"

	"github.com/mkrun/mkrun/internal/engine"
)

const (
	checkTile  = 64  // rows and columns of the squares that are judged one by one
	checkBlock = 256 // rows of the reference made at once; a multiple of checkTile
)

// verdict is the comparison of an output with its reference.
type verdict struct {
	relError  float64 // Frobenius norm of the difference over that of the reference
	worstTile float64 // the largest such quotient of a tile
	row, col  int64   // where that tile begins
	worstRow  float64 // the largest such quotient of one row of a tile: where a loss in a row of A shows
	at        int64   // which row of the output that is
	nonFinite int64   // elements that are NaN or infinite; each counts as zero in the errors
	tolerance float64
}

// tolerance is the largest error, of all and of any tile, that right arithmetic can show.
//
// The result is a sum of k products in fp32, rounded once to the element type. Rounding adds at most
// u|c| to each element, u being the type's unit roundoff, so at most u of the norm of any set of
// elements. The fp32 sums of engine and reference differ by their own rounding. Each sum of k products of
// standard normal factors has k partial sums of size up to sqrt(k), each rounded by at most 2^-24 of
// itself with random sign, so the two differ by about 2^-24 * k, where the element is about sqrt(k): a
// quotient of 2^-24 * sqrt(k). A tile's norm is taken as at least normFloor of what is expected of it
// (see judge), which bounds that quotient for tiles of a few small elements: 2^-20 * sqrt(k). Another factor
// of 4 covers the tail of the distribution.
//
// For bf16 and k = 4096 this is 0.0042. Two rows exchanged in one tile of 64 give 0.25, one wrong
// element 0.02, a tile of zeros 1, other data 1.4. One element of an operand's row that was lost on the way gives
// 1/sqrt(k) = 0.016 in the rows of tiles that it is for, which are therefore judged by themselves.
//
// If partial sums travel in the element type, each of two more roundings (of the ranks' products, of the nodes' sums)
// adds an error of that kind. Per element it is at most u of the parts' size, not of the sum's: about 0.4 u sqrt(k)
// for each stage, whatever the sum is. Against the expected norm, which is then what a tile's norm is taken as at
// least, 4u are seven standard deviations even of a tile of one element; that is still half of what one wrong element
// in a tile gives.
func (e expected) tolerance(d engine.DType) float64 {
	u := d.UnitRoundoff()
	if e.rounded {
		u *= 4
	}
	return u + 0x1p-18*math.Sqrt(float64(e.depth))
}

// expected is what elements of the result are sums of.
type expected struct {
	depth   int64 // products of standard normal pairs, over all ranks
	rounded bool  // on the way as partial sums
}

// floor is the least part of the expected norm that a tile's norm is taken as.
func (e expected) floor() float64 {
	if e.rounded {
		return 1
	}
	return normFloor
}

const normFloor = 1.0 / 16

// judge compares an m x n output with its reference. One without elements is right.
func judge(d engine.DType, got []uint16, m, n int64, e expected, ref reference) verdict {
	v := verdict{tolerance: e.tolerance(d)}
	if m == 0 || n == 0 {
		return v
	}
	k, least := e.depth, e.floor()
	want, row := make([]float32, min(checkBlock, m)*n), make([]float32, n)
	tiles := (n + checkTile - 1) / checkTile
	diff, norm := make([]float64, tiles), make([]float64, tiles) // squares, of one row of tiles
	floorOf := func(elements int64) float64 { return least * math.Sqrt(float64(elements)*float64(k)) }
	var allDiff, allNorm float64
	for from := int64(0); from < m; from += checkBlock {
		to := min(from+checkBlock, m)
		ref.rows(from, to, want)
		for i := from; i < to; i++ {
			d.Widen(row, got[i*n:(i+1)*n])
			expected := want[(i-from)*n:]
			for t := range diff {
				left := int64(t) * checkTile
				right := min(left+checkTile, n)
				var rowDiff, rowNorm float64
				for j := left; j < right; j++ {
					g, w := float64(row[j]), float64(expected[j])
					if math.IsNaN(g) || math.IsInf(g, 0) {
						v.nonFinite++
						g = 0
					}
					rowDiff += (g - w) * (g - w)
					rowNorm += w * w
				}
				if e := math.Sqrt(rowDiff) / max(math.Sqrt(rowNorm), floorOf(right-left)); e > v.worstRow {
					v.worstRow, v.at = e, i
				}
				diff[t], norm[t] = diff[t]+rowDiff, norm[t]+rowNorm
			}
			if (i+1)%checkTile != 0 && i+1 != m {
				continue
			}
			top := i / checkTile * checkTile
			for t := range diff {
				left := int64(t) * checkTile
				elements := (i + 1 - top) * (min(left+checkTile, n) - left)
				if e := math.Sqrt(diff[t]) / max(math.Sqrt(norm[t]), floorOf(elements)); e > v.worstTile {
					v.worstTile, v.row, v.col = e, top, left
				}
				allDiff, allNorm = allDiff+diff[t], allNorm+norm[t]
				diff[t], norm[t] = 0, 0
			}
		}
	}
	v.relError = math.Sqrt(allDiff) / max(math.Sqrt(allNorm), floorOf(1)*math.Sqrt(float64(m)*float64(n)))
	return v
}

// failure says why the output is wrong; "" if it is right.
func (v verdict) failure() string {
	switch {
	case v.nonFinite > 0:
		return fmt.Sprintf("%d elements are NaN or infinite (the output is filled with NaN before the call, so they may never have been written); worst tile at row %d, column %d",
			v.nonFinite, v.row, v.col)
	case !(v.relError <= v.tolerance) || !(v.worstTile <= v.tolerance):
		return fmt.Sprintf("relative error %.2g, %.2g in the tile at row %d, column %d; the tolerance is %.2g",
			v.relError, v.worstTile, v.row, v.col, v.tolerance)
	case !(v.worstRow <= v.tolerance):
		return fmt.Sprintf("relative error %.2g in a part of row %d; the tolerance is %.2g", v.worstRow, v.at, v.tolerance)
	}
	return ""
}
