package plan

import (
	"fmt"
	"strings"
	"testing"
)

// mlp is gemm_rs after ag_gemm.
func mlp(w World, chunks int) (*Plan, error) {
	up, err := AGGemm(w, chunks)
	if err != nil {
		return nil, err
	}
	down, err := GemmRS(w, SumOptions{Chunks: chunks})
	if err != nil {
		return nil, err
	}
	return Then(up, down, "a")
}

func TestOperatorsInSequence(t *testing.T) {
	m := planMaker{"mlp", mlp}
	for _, ppn := range [][]int{{1}, {2}, {1, 1}, {2, 2}, {1, 3}, {2, 3, 1}, {8, 8}} {
		for chunks := range 3 {
			t.Run(fmt.Sprintf("%v/%d", ppn, 1+chunks), func(t *testing.T) {
				p := m.must(t, World{PPN: ppn}, 1+chunks)
				c, err := AGGemmContract(p.World).Then(GemmRSContract(p.World, ElemOperand), "a")
				if err != nil {
					t.Fatal(err)
				}
				if err := VerifyFor(p, c); err != nil {
					t.Fatal(err)
				}
				// What the second is said to take is another rank's operand, or what the first takes.
				for what, damage := range map[string]func(r *Result){
					"another's operand": func(r *Result) { r.B.From = make([]int, len(p.Ranks)) },
					"another sum":       func(r *Result) { r.Sum = SumOfNodes },
				} {
					if len(p.Ranks) == 1 || what == "another sum" && len(p.Ranks) <= p.World.Nodes()+1 {
						continue
					}
					q := clone(p)
					damage(&q.Results[1])
					if Verify(q) == nil || VerifyFor(q, c) == nil {
						t.Errorf("%s: accepted", what)
					}
				}
				if len(p.Ranks) > 6 {
					return
				}
				for seed := range uint64(3) {
					if err := simulate(p, seed, 3); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	// Other chunks, and three in a row: a second MLP block takes the rows that the first has left on each rank.
	w := Uniform(2, 2)
	up, down := mustAG(t, w, 3), planMakers[1].must(t, w, 2)
	block, err := Then(up, down, "a")
	if err == nil {
		err = Verify(block)
	}
	if err != nil {
		t.Fatal(err)
	}
	two, err := Then(block, m.must(t, w, 1), "a")
	if err == nil {
		err = Verify(two)
	}
	if err != nil {
		t.Error(err)
	}
}

// What the second reads is waited for: without any of these waits the plan is refused.
func TestSequenceNeedsItsWaits(t *testing.T) {
	p := planMaker{"mlp", mlp}.must(t, Uniform(1, 2), 2)
	tried := 0
	edit(p, func(rank int, task *Task) {
		for i, w := range task.Waits {
			if !strings.HasPrefix(p.Flags[w.Flag].Name, "c part") {
				continue
			}
			tried++
			waits := task.Waits
			task.Waits = append(append([]Wait{}, waits[:i]...), waits[i+1:]...)
			if err := Verify(p); err == nil {
				t.Errorf("rank %d: %s: nobody misses the wait for %q", rank, p.Describe(*task), p.Flags[w.Flag].Name)
			}
			task.Waits = waits
		}
	})
	if tried == 0 {
		t.Error("the second operator waits for nothing")
	}
}

func TestSequencesThatCannotBe(t *testing.T) {
	up, down := mustAG(t, Uniform(1, 2), 1), planMakers[1].must(t, Uniform(1, 2), 1)
	for name, c := range map[string]struct {
		second  *Plan
		operand string
	}{
		"another world":   {planMakers[1].must(t, Uniform(2, 1), 1), "a"},
		"no such operand": {down, "q"},
		"a shard":         {up, "a"},
	} {
		if _, err := Then(up, c.second, c.operand); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
