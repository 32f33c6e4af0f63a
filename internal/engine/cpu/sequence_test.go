package cpu

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// runOnce gives every rank its inputs, runs the plan and returns an output of every rank.
func (j *job) runOnce(t testing.TB, output string, inputs func(rank int) map[string][]uint16) [][]uint16 {
	t.Helper()
	out := make([][]uint16, len(j.ranks))
	err := j.each(func(rank int) error {
		in := j.ranks[rank]
		for name, bits := range inputs(rank) {
			if err := in.SetInput(name, bits); err != nil {
				return err
			}
		}
		if err := in.Poison(output); err != nil {
			return err
		}
		if err := in.Sync(t.Context()); err != nil {
			return err
		}
		if _, err := in.Run(t.Context()); err != nil {
			return err
		}
		var err error
		out[rank], err = in.Output(output)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// An MLP block in one plan, ag_gemm and then gemm_rs, gives the bits of the two run apart.
func TestOperatorsInSequenceEqualThemApart(t *testing.T) {
	s := plan.Shape{M: 45, N: 40, K: 72}
	apart := plan.Shape{M: s.M, N: s.K, K: s.N} // as gemm_rs sees it
	for _, ppn := range [][]int{{1}, {2}, {2, 2}, {1, 3}} {
		w := plan.World{PPN: ppn}
		size := w.Size()
		up, err := plan.AGGemm(w, 2)
		if err != nil {
			t.Fatal(err)
		}
		down, err := plan.GemmRS(w, plan.SumOptions{Chunks: 3})
		if err != nil {
			t.Fatal(err)
		}
		both, err := plan.Then(up, down, "a")
		if err != nil {
			t.Fatal(err)
		}
		contract, err := plan.AGGemmContract(w).Then(plan.GemmRSContract(w, plan.ElemOperand), "a")
		if err == nil {
			err = plan.VerifyFor(both, contract)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range []options{{}, {mapped: true, workers: [plan.NumRoles]int{3, 2, 1, 2}, net: engine.Net{Reorder: true, Seed: 5}}} {
			t.Run(fmt.Sprintf("%v/mapped=%v", ppn, o.mapped), func(t *testing.T) {
				first, second, block := openJob(t, up, s, o), openJob(t, down, apart, o), openJob(t, both, s, o)
				for epoch := range uint64(3) {
					ops := randomOperands(epoch, s, size, engine.BF16)
					w2 := randomOperands(epoch+100, s, size, engine.BF16).b
					shard := func(rank int) []uint16 {
						from, to := plan.Part(plan.DimM, rank, size).At(s)
						return ops.a[from*s.K : to*s.K]
					}
					hidden := first.runOnce(t, "c", func(rank int) map[string][]uint16 {
						return map[string][]uint16{"a": shard(rank), "b": ops.b[rank]}
					})
					want := second.runOnce(t, "c", func(rank int) map[string][]uint16 {
						return map[string][]uint16{"a": hidden[rank], "b": w2[rank]}
					})
					got := block.runOnce(t, "2.c", func(rank int) map[string][]uint16 {
						return map[string][]uint16{"a": shard(rank), "b": ops.b[rank], "2.b": w2[rank]}
					})
					for rank := range got {
						if !slices.Equal(got[rank], want[rank]) {
							t.Fatalf("epoch %d, rank %d: other bits than apart", epoch, rank)
						}
					}
				}
			})
		}
	}
}
