package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func mustAG(t testing.TB, w World, chunks int) *Plan {
	t.Helper()
	p, err := AGGemm(w, chunks)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// BenchmarkMade is what a launch does before it starts: make the plan and prove it.
func BenchmarkMade(b *testing.B) {
	for _, m := range planMakers {
		for _, c := range []struct{ nodes, ppn, chunks int }{{2, 8, 4}, {64, 8, 4}} {
			b.Run(fmt.Sprintf("%s/%dx%d chunks %d", m.name, c.nodes, c.ppn, c.chunks), func(b *testing.B) {
				for b.Loop() {
					if err := Verify(m.must(b, Uniform(c.nodes, c.ppn), c.chunks)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkAGGemm(b *testing.B) {
	for _, c := range []struct{ nodes, ppn, chunks int }{{2, 2, 4}, {2, 8, 4}, {8, 8, 4}, {64, 8, 1}, {64, 8, 4}} {
		b.Run(fmt.Sprintf("%dx%d chunks %d", c.nodes, c.ppn, c.chunks), func(b *testing.B) {
			for b.Loop() {
				mustAG(b, Uniform(c.nodes, c.ppn), c.chunks)
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, c := range []struct{ nodes, ppn, chunks int }{{2, 2, 4}, {2, 8, 4}, {8, 8, 4}, {64, 8, 1}, {64, 8, 4}} {
		p := mustAG(b, Uniform(c.nodes, c.ppn), c.chunks)
		b.Run(fmt.Sprintf("%dx%d chunks %d", c.nodes, c.ppn, c.chunks), func(b *testing.B) {
			for b.Loop() {
				if err := Verify(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Worlds of up to 64 nodes with 1 to 8 ranks each, all different.
func BenchmarkVerifyUneven(b *testing.B) {
	for _, m := range planMakers {
		b.Run(m.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(7, 7))
			for b.Loop() {
				w := World{PPN: make([]int, 1+rng.IntN(64))}
				for i := range w.PPN {
					w.PPN[i] = 1 + rng.IntN(8)
				}
				if err := Verify(m.must(b, w, 1+rng.IntN(2))); err != nil {
					b.Fatalf("%v: %v", w, err)
				}
			}
		})
	}
}
