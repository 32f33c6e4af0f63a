package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// withoutAVX2 runs f on the portable product.
func withoutAVX2(f func()) {
	had := haveAVX2
	haveAVX2 = false
	defer func() { haveAVX2 = had }()
	f()
}

func TestAccumulateBothWays(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range [][3]int{{1, 1, 8}, {3, 4, 16}, {2, 3, 256}, {64, 64, 256}, {5, 63, 40}, {64, 1, 8}, {7, 25, 248}} {
		m, n, k := c[0], c[1], c[2]
		a, b := make([]float32, m*k), make([]float32, n*k)
		for i := range a {
			a[i] = float32(r.NormFloat64())
		}
		for i := range b {
			b[i] = float32(r.NormFloat64())
		}
		check := func(way string) {
			sum := make([]float32, block*block)
			for i := range sum {
				sum[i] = 1
			}
			accumulate(sum, a, b, m, n, k)
			for i := range block {
				for j := range block {
					want := 1.0
					if i < m && j < n {
						for q := range k {
							want += float64(a[i*k+q]) * float64(b[j*k+q])
						}
					}
					if got := float64(sum[i*block+j]); math.Abs(got-want) > 1e-4 {
						t.Fatalf("%s, %v: element %d,%d is %v, want %v", way, c, i, j, got, want)
					}
				}
			}
		}
		if haveAVX2 {
			check("with AVX2")
		}
		withoutAVX2(func() { check("portable") })
	}
}

func TestWidenBothWays(t *testing.T) {
	for n := 8; n <= 1<<16; n *= 2 {
		src := make([]uint16, n)
		for i := range src {
			src[i] = uint16(i)
		}
		got, want := make([]float32, n+1), make([]float32, n+1)
		got[n], want[n] = 42, 42 // must stay
		widen(engine.BF16, got[:n], src)
		withoutAVX2(func() { widen(engine.BF16, want[:n], src) })
		for i := range got {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("element %d of %d is %v, want %v", i, n, got[i], want[i])
			}
		}
	}
}

func TestAGGemmOnThePortableProduct(t *testing.T) {
	withoutAVX2(func() {
		for _, s := range []plan.Shape{{M: 37, N: 23, K: 72}, {M: 150, N: 70, K: 264}} {
			t.Run(fmt.Sprint(s), func(t *testing.T) {
				p := agGemm(t, 2, 2, 1)
				o := randomOperands(1, s, 3, engine.FP16)
				out, _ := openJob(t, p, s, options{dtype: engine.FP16}).gather(t, s, o)
				checkProducts(t, s, engine.FP16, o, out)
			})
		}
	})
}
