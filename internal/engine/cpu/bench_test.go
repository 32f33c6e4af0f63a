package cpu

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// BenchmarkAGGemmVsGonum times ag_gemm on 2 nodes x 2 ranks against one plain gonum Gemm of the same
// total work, in turns. GOMAXPROCS bounds both. The better of gonum's two layouts is what counts.
func BenchmarkAGGemmVsGonum(b *testing.B) {
	for _, c := range []struct {
		name   string
		mapped bool
		shape  plan.Shape
	}{
		{"local", false, plan.Shape{M: 2048, N: 1024, K: 1024}},
		{"mapped", true, plan.Shape{M: 2048, N: 1024, K: 1024}},
		{"mapped-llama3-8b-tp4", true, plan.Shape{M: 128, N: 3584, K: 4096}},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkAGGemm(b, c.shape, options{mapped: c.mapped}) })
	}
}

func benchmarkAGGemm(b *testing.B, s plan.Shape, o options) {
	p := agGemm(b, 2, 2, 2)
	ops := randomOperands(1, s, 4, engine.BF16)
	j := openJob(b, p, s, o)
	j.gather(b, s, ops)

	// The baseline has fp32 operands at hand: A, and the B of all ranks as one matrix.
	m, n, k := int(s.M), 4*int(s.N), int(s.K)
	fa, fb, fc := make([]float32, m*k), make([]float32, n*k), make([]float32, m*n)
	engine.BF16.Widen(fa, ops.a)
	for r, bits := range ops.b {
		engine.BF16.Widen(fb[r*len(bits):], bits)
	}
	fbT := make([]float32, n*k)
	for i := range n {
		for q := range k {
			fbT[q*n+i] = fb[i*k+q]
		}
	}

	var ours, dot, axpy []time.Duration
	timed := func(into *[]time.Duration, f func()) {
		start := time.Now()
		f()
		*into = append(*into, time.Since(start))
	}
	for b.Loop() {
		timed(&ours, func() {
			if err := j.each(func(rank int) error { _, err := j.ranks[rank].Run(b.Context()); return err }); err != nil {
				b.Fatal(err)
			}
		})
		timed(&dot, func() {
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, m, n, k, 1, fa, k, fb, k, 0, fc, n)
		})
		timed(&axpy, func() {
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, m, n, k, 1, fa, k, fbT, n, 0, fc, n)
		})
	}
	t, base := median(ours), min(median(dot), median(axpy))
	work := 2 * float64(m) * float64(n) * float64(k)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(t.Seconds()*1e3, "ag_gemm-ms")
	b.ReportMetric(base.Seconds()*1e3, "gonum-ms")
	b.ReportMetric(work/t.Seconds()/1e9, "GFLOP/s")
	b.ReportMetric(t.Seconds()/base.Seconds(), "ratio")
	b.Logf("M=%d N=%d K=%d on 2x2: ag_gemm %v, gonum A*B' %v, gonum A*B %v (medians of %d)",
		s.M, s.N, s.K, t, median(dot), median(axpy), len(ours))
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// BenchmarkSmallCall times a call with almost no work: what waking, copying and messages cost.
func BenchmarkSmallCall(b *testing.B) {
	s := plan.Shape{M: 16, N: 16, K: 64}
	for _, ppn := range [][]int{{2}, {1, 1}, {2, 2}} {
		b.Run(fmt.Sprint(ppn), func(b *testing.B) {
			j := openJob(b, agGemm(b, 1, ppn...), s, options{mapped: true})
			j.gather(b, s, randomOperands(1, s, len(j.ranks), engine.BF16))
			var calls []time.Duration
			for b.Loop() {
				err := j.each(func(rank int) error {
					if err := j.ranks[rank].Sync(b.Context()); err != nil {
						return err
					}
					start := time.Now()
					_, err := j.ranks[rank].Run(b.Context())
					if rank == 0 {
						calls = append(calls, time.Since(start))
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(calls)
			b.ReportMetric(float64(calls[len(calls)/2].Microseconds()), "median-us")
			b.ReportMetric(float64(calls[len(calls)*99/100].Microseconds()), "p99-us")
		})
	}
}
