package plan

import (
	"errors"
	"fmt"
	"testing"
)

// Small plans that do what ag_gemm does not: they show what else the language carries and the verifier accepts.
func handMade() map[string]*Plan {
	return map[string]*Plan{"gather of products": gatherOfProducts(), "landing used twice": landingUsedTwice(), "gated": gatedProduct(), "one after the other": oneAfterTheOther()}
}

func (p *Plan) addFlag(kind FlagKind, format string, args ...any) FlagID {
	p.Flags = append(p.Flags, Flag{Name: fmt.Sprintf(format, args...), Kind: kind})
	return FlagID(len(p.Flags) - 1)
}

func (p *Plan) addTask(rank int, role Role, t Task) {
	q := &p.Ranks[rank].Queues[role]
	*q = append(*q, t)
}

// onLink is what one link carries.
func onLink(from, to int, rows, cols Span) Flow {
	return Flow{From: from, To: to, Rows: rows, Cols: cols}
}

// productResult is a result that is a product of a (of the ranks named, or each one's own) with the rank's own b.
func productResult(name string, from []int) Result {
	return Result{Matrix: Matrix{Name: name, Rows: DimM, Cols: DimN}, A: Operand{Name: "a", From: from}, B: Operand{Name: "b"}}
}

// gatherOfProducts: three ranks on two nodes each compute their rows of a product and write them straight into
// the results of the others. Each rank says first that its epoch started, and last waits for what it gets.
func gatherOfProducts() *Plan {
	const a, b, c = 0, 1, 2
	p := &Plan{
		Operator: "gather", Algorithm: "direct", World: World{PPN: []int{2, 1}}, Chunks: 1,
		Buffers: []Buffer{
			a: {Name: "a", Kind: BufInput, Rows: DimM, Cols: DimK, Sharded: true},
			b: {Name: "b", Kind: BufInput, Rows: DimN, Cols: DimK, Same: true},
			c: {Name: "c", Kind: BufOutput, Rows: DimM, Cols: DimN, Shared: true},
		},
		Ranks:   make([]RankPlan, 3),
		Results: []Result{productResult("c", nil)},
	}
	computed := p.addFlag(Stamp, "own rows computed")
	var started, written [3]FlagID
	for rank := range 3 {
		started[rank] = p.addFlag(Stamp, "rank %d started", rank)
		written[rank] = p.addFlag(Stamp, "rows of rank %d written", rank)
	}
	for rank := range 3 {
		rows := Part(DimM, rank, 3)
		mine := Region{Buffer: c, Rows: rows, Cols: All(DimN)}
		p.addTask(rank, RoleCompute, Task{
			Kind: Compute, Peer: rank, Dst: mine,
			Src:     Region{Buffer: a, Rows: rows, Cols: All(DimK)},
			B:       Region{Buffer: b, Rows: All(DimN), Cols: All(DimK)},
			Signals: []Signal{{rank, computed}},
		})
		start, end := Task{Kind: Notify, Peer: rank}, Task{Kind: Notify, Peer: rank}
		var sends []Task
		for other := range 3 {
			if other == rank {
				continue
			}
			start.Signals = append(start.Signals, Signal{other, started[rank]})
			end.Waits = append(end.Waits, Wait{Flag: written[other], Count: 1})
			t := Task{
				Kind: Copy, Peer: other, Src: mine, Dst: mine,
				Waits:   []Wait{{Flag: computed, Count: 1}, {Flag: started[other], Count: 1}},
				Signals: []Signal{{other, written[rank]}},
			}
			p.Declared = append(p.Declared, onLink(rank, other, rows, All(DimN)))
			if p.World.SameNode(rank, other) {
				p.addTask(rank, RoleIntra, t)
			} else {
				t.Kind = Send
				sends = append(sends, t)
			}
		}
		p.addTask(rank, RoleSend, start)
		for _, t := range sends {
			p.addTask(rank, RoleSend, t)
		}
		p.addTask(rank, RoleSend, end)
	}
	return p
}

// landingUsedTwice: rank 0 brings its rows to rank 1 twice in an epoch, to the same place, the second time when
// the first product was computed from them.
func landingUsedTwice() *Plan {
	const a, b, landing, c = 0, 1, 2, 3
	p := &Plan{
		Operator: "twice", Algorithm: "direct", World: Uniform(1, 2), Chunks: 1,
		Buffers: []Buffer{
			a:       {Name: "a", Kind: BufInput, Rows: DimM, Cols: DimK},
			b:       {Name: "b", Kind: BufInput, Rows: DimN, Cols: DimK},
			landing: {Name: "landing", Kind: BufLanding, Rows: DimM, Cols: DimK},
			c:       {Name: "c", Kind: BufOutput, Rows: DimM, Cols: DimN},
		},
		Ranks:   make([]RankPlan, 2),
		Results: []Result{productResult("c", []int{0, 0})},
	}
	whole := func(id BufferID) Region {
		return Region{Buffer: id, Rows: All(p.Buffers[id].Rows), Cols: All(p.Buffers[id].Cols)}
	}
	p.addTask(0, RoleCompute, Task{Kind: Compute, Src: whole(a), B: whole(b), Dst: whole(c)})
	arrived := [2]FlagID{p.addFlag(Stamp, "arrived the first time"), p.addFlag(Stamp, "arrived the second time")}
	free := [2]FlagID{p.addFlag(Stamp, "free for the first time"), p.addFlag(Stamp, "free for the second time")}
	for i := range 2 {
		p.addTask(0, RoleIntra, Task{
			Kind: Copy, Peer: 1, Src: whole(a), Dst: whole(landing),
			Waits:   []Wait{{Flag: free[i], Count: 1, Lag: uint32(1 - i)}},
			Signals: []Signal{{1, arrived[i]}},
		})
		half, result := whole(b), whole(c)
		half.Rows, result.Cols = Part(DimN, i, 2), Part(DimN, i, 2)
		p.addTask(1, RoleCompute, Task{
			Kind: Compute, Peer: 1, Src: whole(landing), B: half, Dst: result,
			Waits:   []Wait{{Flag: arrived[i], Count: 1}},
			Signals: []Signal{{0, free[1-i]}},
		})
		p.Declared = append(p.Declared, onLink(0, 1, All(DimM), All(DimK)))
	}
	return p
}

// gatedProduct: rank 0 brings its rows to rank 1 in three parts of their depth; the product there begins with the
// first and passes a gate before each of the others.
func gatedProduct() *Plan {
	p := landingUsedTwice()
	const a, b, landing, c = 0, 1, 2, 3
	p.Operator, p.Flags, p.Declared = "gated", nil, nil
	p.Ranks[0].Queues[RoleIntra], p.Ranks[1].Queues[RoleCompute] = nil, nil
	const steps = 3
	free := p.addFlag(Stamp, "free")
	product := Task{
		Kind: Compute, Peer: 1, Steps: steps, Signals: []Signal{{0, free}},
		Src: Region{landing, All(DimM), All(DimK)}, B: Region{b, All(DimN), All(DimK)}, Dst: Region{c, All(DimM), All(DimN)},
	}
	for step := range steps {
		arrived := p.addFlag(Stamp, "arrived step %d", step)
		cols := Part(DimK, step, steps)
		p.addTask(0, RoleIntra, Task{
			Kind: Copy, Peer: 1, Src: Region{a, All(DimM), cols}, Dst: Region{landing, All(DimM), cols},
			Waits: []Wait{{Flag: free, Count: 1, Lag: 1}}, Signals: []Signal{{1, arrived}},
		})
		product.Waits = append(product.Waits, Wait{Flag: arrived, Count: 1, Step: uint32(step)})
		p.Declared = append(p.Declared, onLink(0, 1, All(DimM), cols))
	}
	p.addTask(1, RoleCompute, product)
	return p
}

// oneAfterTheOther: an MLP block on two ranks of a node, ag_gemm and gemm_rs in one plan. The first product of a rank,
// of all rows of x (M x K) with its w1 (N x K), is the first operand of the second, with its w2 (K x N). There are no
// credits: no rank gets through an epoch without what the other did in it, so whoever begins the next one knows that
// all buffers were read.
func oneAfterTheOther() *Plan {
	const x, w1, w2, y, gathered, hidden, slots = 0, 1, 2, 3, 4, 5, 6
	p := &Plan{
		Operator: "mlp", Algorithm: "direct", World: Uniform(1, 2), Chunks: 1,
		Buffers: []Buffer{
			x:         {Name: "x", Kind: BufInput, Rows: DimM, Cols: DimK, Sharded: true},
			w1:        {Name: "w1", Kind: BufInput, Rows: DimN, Cols: DimK},
			w2:        {Name: "w2", Kind: BufInput, Rows: DimK, Cols: DimN},
			y:         {Name: "y", Kind: BufOutput, Rows: DimM, Cols: DimK, Sharded: true, Sum: true},
			gathered:  {Name: "gathered", Kind: BufLanding, Rows: DimM, Cols: DimK},
			hidden:    {Name: "hidden", Kind: BufLanding, Rows: DimM, Cols: DimN},
			slots:     {Name: "slot 0", Kind: BufLanding, Rows: DimM, Cols: DimK, Sharded: true},
			slots + 1: {Name: "slot 1", Kind: BufLanding, Rows: DimM, Cols: DimK, Sharded: true},
		},
		Ranks: make([]RankPlan, 2),
		Results: []Result{
			{Matrix: Matrix{Name: "hidden", Rows: DimM, Cols: DimN}, Inner: true, A: Operand{Name: "x"}, B: Operand{Name: "w1"}},
			{Matrix: Matrix{Name: "y", Rows: DimM, Cols: DimK, Sharded: true}, A: Operand{Name: "hidden"}, B: Operand{Name: "w2"}, Sum: SumAtOwner},
		},
	}
	arrived := p.addFlag(Stamp, "arrived")
	computed := [2]FlagID{p.addFlag(Stamp, "hidden rows of rank 0"), p.addFlag(Stamp, "hidden rows of rank 1")}
	partials := p.addFlag(Counter, "partials")
	for rank := range 2 {
		other := 1 - rank
		mine, theirs := Part(DimM, rank, 2), Part(DimM, other, 2)
		p.addTask(rank, RoleIntra, Task{
			Kind: Copy, Peer: other, Src: Region{x, mine, All(DimK)}, Dst: Region{gathered, mine, All(DimK)},
			Signals: []Signal{{other, arrived}},
		})
		first := func(src BufferID, rows Span) Task {
			return Task{Kind: Compute, Peer: rank, Src: Region{src, rows, All(DimK)}, B: Region{w1, All(DimN), All(DimK)}, Dst: Region{hidden, rows, All(DimN)}}
		}
		t := first(x, mine)
		t.Signals = []Signal{{rank, computed[rank]}}
		p.addTask(rank, RoleCompute, t)
		t = first(gathered, theirs)
		t.Waits, t.Signals = []Wait{{Flag: arrived, Count: 1}}, []Signal{{rank, computed[other]}}
		p.addTask(rank, RoleCompute, t)
		for _, owner := range []int{other, rank} { // what must leave first
			rows := Part(DimM, owner, 2)
			t := Task{
				Kind: Compute, Peer: owner, Src: Region{hidden, rows, All(DimN)}, B: Region{w2, All(DimK), All(DimN)},
				Dst:   Region{BufferID(slots + rank), rows, All(DimK)},
				Waits: []Wait{{Flag: computed[owner], Count: 1}}, Signals: []Signal{{owner, partials}},
			}
			p.addTask(rank, RoleCompute, t)
		}
		p.addTask(rank, RoleReduce, Task{
			Kind: Reduce, Peer: rank, Dst: Region{y, mine, All(DimK)}, Srcs: []Region{{slots, mine, All(DimK)}, {slots + 1, mine, All(DimK)}},
			Waits: []Wait{{Flag: partials, Count: 2}},
		})
	}
	p.Declared = Traffic{{Path: PathGatherMates, Rows: All(DimM), Cols: All(DimK)}, {Path: PathScatterMates, Rows: All(DimM), Cols: All(DimK)}}
	return p
}

func TestHandMadePlans(t *testing.T) {
	for name, p := range handMade() {
		if err := Verify(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// Larger ones are too large to explore in the time of a test.
		if _, err := explore(p, 2, 20_000); err != nil && !errors.Is(err, errTooLarge) {
			t.Errorf("%s, explored: %v", name, err)
		}
	}
}

func TestHandMadeFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		make   func() *Plan
		damage func(p *Plan)
	}{
		{"a result is written before the epoch started there", gatherOfProducts, func(p *Plan) {
			t := &p.Ranks[0].Queues[RoleIntra][0]
			t.Waits = t.Waits[:1]
			start := &p.Ranks[1].Queues[RoleSend][0]
			start.Signals = start.Signals[1:]
		}},
		{"nobody waits for a result at its rank", gatherOfProducts, func(p *Plan) {
			p.Ranks[0].Queues[RoleIntra][0].Signals = nil
			end := &p.Ranks[1].Queues[RoleSend][2]
			end.Waits = end.Waits[1:]
		}},
		{"a copy starts before its rows are computed", gatherOfProducts, func(p *Plan) {
			t := &p.Ranks[0].Queues[RoleIntra][0]
			t.Waits = t.Waits[1:]
		}},
		{"the landing buffer is written again while it is read", landingUsedTwice, func(p *Plan) {
			p.Ranks[0].Queues[RoleIntra][1].Waits = nil
			p.Ranks[1].Queues[RoleCompute][0].Signals = nil
		}},
		{"the second epoch overwrites what the first reads", landingUsedTwice, func(p *Plan) {
			p.Ranks[0].Queues[RoleIntra][0].Waits = nil
			p.Ranks[1].Queues[RoleCompute][1].Signals = nil
		}},
		{"a gate stands before the part after its own", gatedProduct, func(p *Plan) { p.Ranks[1].Queues[RoleCompute][0].Waits[1].Step = 2 }},
		{"a gate is left out", gatedProduct, func(p *Plan) {
			t := &p.Ranks[1].Queues[RoleCompute][0]
			t.Waits = t.Waits[:2]
			p.Ranks[0].Queues[RoleIntra][2].Signals = nil
		}},
		{"the second product begins before the first has ended", oneAfterTheOther, func(p *Plan) {
			p.Ranks[0].Queues[RoleCompute][2].Waits = nil
			p.Ranks[0].Queues[RoleCompute][1].Signals = nil
		}},
		{"the second use is that of the epoch before", landingUsedTwice, func(p *Plan) {
			p.Ranks[0].Queues[RoleIntra][1].Waits[0].Lag = 1
		}},
	} {
		p := c.make()
		c.damage(p)
		var f *Fault
		if err := Verify(p); !errors.As(err, &f) || f.Rule != RuleOrder {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if _, err := explore(p, 2, 200_000); err == nil || errors.Is(err, errTooLarge) {
			t.Errorf("%s: refused, but explored it goes well: %v", c.name, err)
		}
	}
}

// Two inputs of one form: a product must not mix them.
func TestMixedOperands(t *testing.T) {
	p := landingUsedTwice()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	other := BufferID(len(p.Buffers))
	p.Buffers = append(p.Buffers, Buffer{Name: "other b", Kind: BufInput, Rows: DimN, Cols: DimK})
	p.Ranks[1].Queues[RoleCompute][1].B.Buffer = other
	var f *Fault
	if err := Verify(p); !errors.As(err, &f) || f.Rule != RuleMeaning || f.Rank != 1 || f.Index != 1 || f.Buffer != "c" {
		t.Errorf("half a product with another operand: %v", err)
	}
	for name, damage := range map[string]func(task *Task){
		"columns of the result are not the rows of B": func(task *Task) { task.Dst.Cols = All(DimN) },
		"one buffer for operand and result":           func(task *Task) { task.B = task.Src },
	} {
		p := landingUsedTwice()
		damage(&p.Ranks[1].Queues[RoleCompute][1])
		if err := p.Validate(); !errors.As(err, &f) || f.Rank != 1 || f.Index != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
