package plan

import (
	"errors"
	"strings"
	"testing"
)

func TestFieldBlocksAreEnoughForAllSmallerShapes(t *testing.T) {
	f := &Field{Region: Region{Rows: Part(DimM, 1, 3), Cols: All(DimK)}, BlockRows: 4, BlockCols: 5}
	for m := int64(0); m < 40; m++ {
		rows, cols := f.blocks(Shape{M: m, K: m})
		for smaller := range m + 1 {
			s := Shape{M: smaller, K: smaller}
			if n := (f.Region.Rows.Len(s) + 3) / 4; n > rows {
				t.Errorf("%d rows of %d are %d blocks, of %d there are words for %d", smaller, m, n, m, rows)
			}
			if n := (f.Region.Cols.Len(s) + 4) / 5; n > cols {
				t.Errorf("%d columns are %d blocks, of %d there are words for %d", smaller, n, m, cols)
			}
		}
	}
}

// Faults in what is said of fields; each must be refused, with the words given.
func TestFieldFaults(t *testing.T) {
	for name, c := range map[string]struct {
		mutate func(p *Plan)
		says   string
	}{
		"of a counter":      {func(p *Plan) { p.Flags[0].Kind = Counter }, "only stamps make fields"},
		"of no buffer":      {func(p *Plan) { p.Flags[0].Field.Region.Buffer = 9 }, "which is not there"},
		"of another dim":    {func(p *Plan) { p.Flags[0].Field.Region.Cols = All(DimN) }, "over no part of"},
		"of empty blocks":   {func(p *Plan) { p.Flags[0].Field.BlockCols = 0 }, "blocks of 128 x 0"},
		"of fewer rows":     {func(p *Plan) { p.Flags[0].Field.Region.Rows = Part(DimM, 0, 4) }, "not what the task"},
		"of another buffer": {func(p *Plan) { p.Flags[0].Field.Region.Buffer = agA }, "not what the task"},
		"of one too late":   {func(p *Plan) { p.Ranks[1].Queues[RoleCompute][1].Waits[0].Lag = 1 }, "in its own epoch"},
		"raised by a notice": {func(p *Plan) {
			copies := &p.Ranks[0].Queues[RoleIntra][0]
			p.Ranks[0].Queues[RoleSend] = []Task{{Kind: Notify, Signals: copies.Signals}}
			copies.Signals = nil
		}, "not what the task writes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustAG(t, Uniform(1, 2), 1)
			c.mutate(p)
			var f *Fault
			if err := Verify(p); !errors.As(err, &f) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it is refused as %v, want %q", err, c.says)
			}
		})
	}
}

// A product that follows a field may have gates, too: the steps cut its depth, the field says which blocks of it are
// there. So the number of steps changes nothing, and verifier and explorer say the same of each: right if all is waited
// for, wrong without the credit, and wrong where a gate stands behind what it guards.
func TestFieldsAndStepsTogether(t *testing.T) {
	for _, ppn := range [][]int{{2}, {1, 1}} {
		for steps := range uint32(4) {
			for _, c := range []struct {
				name   string
				field  bool
				mutate func(p *Plan, t *Task)
				right  bool
			}{
				{"a field", true, func(*Plan, *Task) {}, true},
				{"a stamp", false, func(*Plan, *Task) {}, true},
				{"a field that is read without a credit for its writer", true, func(p *Plan, t *Task) {
					for _, s := range t.Signals { // what it returns
						retire(p, s)
					}
					t.Signals = nil
				}, false},
				{"a stamp behind the first part", false, func(_ *Plan, t *Task) {
					t.Waits[len(t.Waits)-1].Step = t.Steps - 1
				}, steps < 2},
			} {
				if steps == 0 && c.name == "a stamp behind the first part" {
					continue
				}
				p := mustAG(t, World{PPN: ppn}, 1)
				if !c.field {
					for i := range p.Flags {
						p.Flags[i].Field = nil
					}
				}
				queue := p.Ranks[1].Queues[RoleCompute]
				changed := 0
				for i := range queue {
					if len(queue[i].Waits) > 0 {
						queue[i].Steps = steps
						c.mutate(p, &queue[i])
						changed++
					}
				}
				if changed == 0 {
					t.Fatalf("%v: no product of rank 1 waits for anything", ppn)
				}
				err := Verify(p)
				if (err == nil) != c.right {
					t.Errorf("%v, %d steps, %s: Verify: %v", ppn, steps, c.name, err)
				}
				if _, err := explore(p, 2, 200_000); errors.Is(err, errTooLarge) || (err == nil) != c.right {
					t.Errorf("%v, %d steps, %s: explored: %v", ppn, steps, c.name, err)
				}
			}
		}
	}
}

// A task that waits for a field begins to write while the field's writer still reads: what it writes must not be what
// that one reads. With a plain stamp the same plan is right.
func TestWhoFollowsAFieldMayNotOverwriteItsSource(t *testing.T) {
	make := func(field bool) *Plan {
		const a, there, back = 0, 1, 2
		p := &Plan{
			Operator: "there and back", Algorithm: "direct", World: Uniform(1, 2), Chunks: 1,
			Buffers: []Buffer{
				a:     {Name: "a", Kind: BufInput, Rows: DimM, Cols: DimK},
				there: {Name: "there", Kind: BufLanding, Rows: DimM, Cols: DimK},
				back:  {Name: "back", Kind: BufLanding, Rows: DimM, Cols: DimK},
			},
			Ranks:    []RankPlan{{}, {}},
			Declared: Traffic{onLink(0, 1, All(DimM), All(DimK)), onLink(0, 1, All(DimM), All(DimK)), onLink(1, 0, All(DimM), All(DimK))},
		}
		region := func(b BufferID) Region { return Region{Buffer: b, Rows: All(DimM), Cols: All(DimK)} }
		brought, passed, returned, done := p.addFlag(Stamp, "brought"), p.addFlag(Stamp, "passed"), p.addFlag(Stamp, "returned"), p.addFlag(Stamp, "done")
		if field {
			p.Flags[passed].Field = &Field{Region: region(there), BlockRows: 1, BlockCols: 1}
		}
		// Rank 0 brings "back" to rank 1, which passes it on to "there" of rank 0, which overwrites rank 1's "back" with it.
		p.addTask(0, RoleIntra, Task{Kind: Copy, Peer: 1, Src: region(a), Dst: region(back), Waits: []Wait{{Flag: done, Count: 1, Lag: 1}}, Signals: []Signal{{1, brought}}})
		p.addTask(1, RoleIntra, Task{Kind: Copy, Peer: 0, Src: region(back), Dst: region(there), Waits: []Wait{{Flag: brought, Count: 1}}, Signals: []Signal{{0, passed}}})
		p.addTask(0, RoleIntra, Task{Kind: Copy, Peer: 1, Src: region(there), Dst: region(back), Waits: []Wait{{Flag: passed, Count: 1}}, Signals: []Signal{{1, returned}}})
		p.addTask(1, RoleSend, Task{Kind: Notify, Peer: 1, Waits: []Wait{{Flag: returned, Count: 1}}, Signals: []Signal{{0, done}}})
		return p
	}
	if err := Verify(make(false)); err != nil {
		t.Errorf("with a plain stamp: %v", err)
	}
	var f *Fault
	if err := Verify(make(true)); !errors.As(err, &f) || f.Rule != RuleOrder {
		t.Errorf("with a field: %v, want a fault of order", err)
	}
	if _, err := explore(make(false), 2, 20_000); err != nil {
		t.Errorf("with a plain stamp, explored: %v", err)
	}
	if _, err := explore(make(true), 2, 20_000); err == nil || errors.Is(err, errTooLarge) {
		t.Errorf("with a field, explored: %v", err)
	}
}
