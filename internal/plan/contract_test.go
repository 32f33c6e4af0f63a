package plan

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// refused checks that a plan is refused for a reason.
func refused(t *testing.T, what string, err error, rule Rule, says string) {
	t.Helper()
	var f *Fault
	if !errors.As(err, &f) || f.Rule != rule || !strings.Contains(f.Error(), says) {
		t.Errorf("%s: %v, want rule %q and %q", what, err, rule, says)
	}
}

// ownContracts are those of the planMakers, in their order.
func ownContracts(w World) []Contract {
	two, _ := GemmARContract(w, TwoShot, ElemOperand)
	one, _ := GemmARContract(w, OneShot, ElemFP32)
	return []Contract{AGGemmContract(w), GemmRSContract(w, ElemOperand), GemmRSContract(w, ElemFP32), two, one}
}

// Every plan fulfils its own contract and no other operator's, under its own name and under any other.
func TestContractsAreTold(t *testing.T) {
	for _, ppn := range [][]int{{3}, {2, 2}, {1, 3, 2}} {
		w := World{PPN: ppn}
		for i, m := range planMakers {
			for j, c := range ownContracts(w) {
				p := m.must(t, w, 2)
				if err := VerifyFor(p, c); (err == nil) != (i == j) {
					t.Errorf("%v: %s for %s: %v", ppn, m.name, planMakers[j].name, err)
				}
				// A plan maker that says what it was asked for, whatever it does, and calls its plan something else.
				p.Operator, p.Results = "custom", c.Results
				err := VerifyFor(p, c)
				if alike := i == j || len(ppn) == 1 && i == 1 && j == 1; (err == nil) != alike {
					t.Errorf("%v: %s under another name for %s: %v", ppn, m.name, planMakers[j].name, err)
				}
			}
		}
	}
}

func TestNamesBindContracts(t *testing.T) {
	p := mustAG(t, Uniform(2, 2), 1)
	p.Operator = "gemm_rs"
	refused(t, "ag_gemm under the name of gemm_rs", Verify(p), RuleContract, `bears the name "gemm_rs"`)
	p = planMakers[3].must(t, Uniform(2, 2), 1)
	p.Algorithm = "three-shot"
	refused(t, "an algorithm that is not there", Verify(p), RuleContract, "three-shot")
	p = mustAG(t, Uniform(2, 2), 1)
	refused(t, "another world", VerifyFor(p, AGGemmContract(Uniform(4, 1))), RuleContract, "asked for was one for 4 nodes")
	p.Operator, p.Buffers[agB].Same = "custom", true
	refused(t, "an operand that each rank has its own of", VerifyFor(p, AGGemmContract(p.World)), RuleContract, "the same everywhere")
}

// Whose product a result is: rank 0 computes with rank 1's operand, and all else is as it should be.
func TestOtherRanksProduct(t *testing.T) {
	p := landingUsedTwice() // rank 1 computes with rank 0's a
	if err := Verify(p); err != nil {
		t.Fatal(err)
	}
	p.Results[0].A.From = nil
	refused(t, "rank 0's product at rank 1", Verify(p), RuleMeaning, `at rank 1, where the result is to be rounded "a" of rank 1 x "b" of rank 1`)
	p.Results[0].A.From = []int{0, 1}
	refused(t, "rank 0's product at rank 1, said at length", Verify(p), RuleMeaning, "at rank 1")
	p = landingUsedTwice()
	p.Results[0].B.From = []int{1, 1}
	refused(t, "rank 1's b", Verify(p), RuleMeaning, `where the result is to be rounded "a" of rank 0 x "b" of rank 1`)
}

// A plain copy of an input is no result.
func TestCopyIsNoResult(t *testing.T) {
	const a, b, c = 0, 1, 2
	p := &Plan{
		Operator: "copy", World: Uniform(1, 2), Chunks: 1, Ranks: make([]RankPlan, 2),
		Buffers: []Buffer{
			a: {Name: "a", Kind: BufInput, Rows: DimM, Cols: DimM},
			b: {Name: "b", Kind: BufInput, Rows: DimM, Cols: DimM},
			c: {Name: "c", Kind: BufOutput, Rows: DimM, Cols: DimM, Shared: true},
		},
		Results: []Result{{Matrix: Matrix{Name: "c", Rows: DimM, Cols: DimM}, A: Operand{Name: "a"}, B: Operand{Name: "b"}}},
	}
	whole := func(id BufferID) Region { return Region{id, All(DimM), All(DimM)} }
	arrived, started := p.addFlag(Stamp, "arrived"), p.addFlag(Stamp, "started")
	p.addTask(1, RoleSend, Task{Kind: Notify, Peer: 1, Signals: []Signal{{0, started}}})
	p.addTask(0, RoleIntra, Task{Kind: Copy, Peer: 1, Src: whole(a), Dst: whole(c), Waits: []Wait{{Flag: started, Count: 1}}, Signals: []Signal{{1, arrived}}})
	p.addTask(1, RoleSend, Task{Kind: Notify, Peer: 1, Waits: []Wait{{Flag: arrived, Count: 1}}})
	p.addTask(0, RoleCompute, Task{Kind: Compute, Src: whole(a), B: whole(b), Dst: whole(c)})
	p.Declared = Traffic{onLink(0, 1, All(DimM), All(DimM))}
	refused(t, "rank 1's result", Verify(p), RuleMeaning, `it puts "a" of rank 0 at rank 1, where the result is to be rounded "a" of rank 1 x "b" of rank 1`)
}

// Sums give the bits that the contract says: the same bracketing is accepted through any buffers, another is not.
func TestBrackets(t *testing.T) {
	finish := func(p *Plan) site { return site{p, 0, RoleReduce, len(p.Ranks[0].Queues[RoleReduce]) - 1} }
	rs := planMakers[1]
	p := rs.must(t, Uniform(1, 3), 1)
	if s := finish(p); !throughExtra(s, ElemFP32, 2, true) {
		t.Fatal("no sum")
	}
	if err := Verify(p); err != nil {
		t.Errorf("(0 + 1) + 2 through a slot of fp32: %v", err)
	}
	p = rs.must(t, Uniform(1, 3), 1)
	throughExtra(finish(p), ElemOperand, 2, true)
	refused(t, "rounded(0 + 1) + 2", Verify(p), RuleMeaning, "rank 0 reduce task 0")
	p = rs.must(t, Uniform(1, 3), 1)
	srcs := finish(p).task().Srcs
	srcs[1], srcs[2] = srcs[2], srcs[1]
	throughExtra(finish(p), ElemFP32, 2, true)
	refused(t, "(0 + 2) + 1", Verify(p), RuleMeaning, "rank 0 reduce task 0")
	p = rs.must(t, Uniform(1, 3), 1)
	throughExtra(finish(p), ElemFP32, 1, false)
	refused(t, "0 + (1 + 2)", Verify(p), RuleMeaning, "rank 0 reduce task 0")

	// A partial sum that is rounded inside a node, though partial sums are to be fp32.
	p = planMakers[2].must(t, Uniform(2, 2), 1)
	i := slices.IndexFunc(p.Ranks[0].Queues[RoleReduce], func(t Task) bool { return p.Buffers[t.Dst.Buffer].Kind == BufLanding })
	throughExtra(site{p, 0, RoleReduce, i}, ElemOperand, 2, true)
	refused(t, "a rounded partial sum", Verify(p), RuleMeaning, "it makes rounded")
	// And slots of the operands' type, where fp32 is declared.
	p = planMakers[1].must(t, Uniform(2, 2), 1)
	p.Results[0].Partials = ElemFP32
	refused(t, "slots of the operands' type", Verify(p), RuleMeaning, "it makes rounded")
}

// Over the depth, too.
func TestDepthInParts(t *testing.T) {
	p := &Plan{
		Operator: "split", World: Uniform(1, 1), Chunks: 1, Ranks: make([]RankPlan, 1),
		Buffers: []Buffer{
			{Name: "a", Kind: BufInput, Rows: DimM, Cols: DimK}, {Name: "b", Kind: BufInput, Rows: DimN, Cols: DimK},
			{Name: "c", Kind: BufOutput, Rows: DimM, Cols: DimN},
		},
		Results: []Result{{Matrix: Matrix{Name: "c", Rows: DimM, Cols: DimN}, A: Operand{Name: "a"}, B: Operand{Name: "b"}, Depth: 3, Partials: ElemFP32}},
	}
	partials := p.addFlag(Counter, "partials")
	sum := Task{Kind: Reduce, Dst: Region{2, All(DimM), All(DimN)}, Waits: []Wait{{Flag: partials, Count: 3}}}
	for i := range 3 {
		p.Buffers = append(p.Buffers, Buffer{Name: "slot " + string(rune('0'+i)), Kind: BufLanding, Elem: ElemFP32, Rows: DimM, Cols: DimN})
		slot, cols := Region{BufferID(3 + i), All(DimM), All(DimN)}, Part(DimK, i, 3)
		p.addTask(0, RoleCompute, Task{Kind: Compute, Src: Region{0, All(DimM), cols}, B: Region{1, All(DimN), cols}, Dst: slot, Signals: []Signal{{0, partials}}})
		sum.Srcs = append(sum.Srcs, slot)
	}
	p.addTask(0, RoleReduce, sum)
	if err := Verify(p); err != nil {
		t.Fatal(err)
	}
	if _, err := explore(p, 2, 20_000); err != nil {
		t.Error(err)
	}
	for what, damage := range map[string]func(q *Plan){
		"one product":       func(q *Plan) { q.Results[0].Depth = 0 },
		"two parts":         func(q *Plan) { q.Results[0].Depth = 2 },
		"rounded parts":     func(q *Plan) { q.Results[0].Partials = ElemOperand },
		"parts in no order": func(q *Plan) { s := q.Ranks[0].Queues[RoleReduce][0].Srcs; s[1], s[2] = s[2], s[1] },
	} {
		q := clone(p)
		damage(q)
		refused(t, what, Verify(q), RuleMeaning, "rank 0")
	}
}
