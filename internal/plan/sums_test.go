package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// maker of a plan, by name, for tests of all operators alike.
type planMaker struct {
	name string
	make func(w World, chunks int) (*Plan, error)
}

var planMakers = []planMaker{
	{"ag_gemm", AGGemm},
	{"gemm_rs", func(w World, chunks int) (*Plan, error) { return GemmRS(w, SumOptions{Chunks: chunks}) }},
	{"gemm_rs fp32", func(w World, chunks int) (*Plan, error) {
		return GemmRS(w, SumOptions{Chunks: chunks, Partials: ElemFP32})
	}},
	{"gemm_ar two-shot", func(w World, chunks int) (*Plan, error) { return GemmAR(w, TwoShot, SumOptions{Chunks: chunks}) }},
	{"gemm_ar one-shot", func(w World, chunks int) (*Plan, error) {
		return GemmAR(w, OneShot, SumOptions{Chunks: chunks, Partials: ElemFP32})
	}},
}

func (m planMaker) must(t testing.TB, w World, chunks int) *Plan {
	t.Helper()
	p, err := m.make(w, chunks)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAllOperatorsOnManyWorlds(t *testing.T) {
	worlds := [][]int{{1}, {2}, {3}, {8}, {1, 1}, {1, 1, 1, 1, 1}, {2, 2}, {4, 4}, {8, 8}, {1, 3}, {3, 1}, {2, 3, 1}, {7, 3, 5}, {1, 2, 3, 4, 5}}
	rng := rand.New(rand.NewPCG(3, 3))
	n := 8
	if testing.Short() {
		n = 2
	}
	for range n {
		w := make([]int, 1+rng.IntN(9))
		for i := range w {
			w[i] = 1 + rng.IntN(8)
		}
		worlds = append(worlds, w)
	}
	for _, m := range planMakers {
		for _, ppn := range worlds {
			chunks := 1 + rng.IntN(3)
			t.Run(fmt.Sprintf("%s/%v/%d", m.name, ppn, chunks), func(t *testing.T) {
				if err := Verify(m.must(t, World{PPN: ppn}, chunks)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
