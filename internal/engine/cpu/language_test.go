package cpu

import (
	"fmt"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// columnPlan is a plan that ag_gemm is not: rank 0 sends its x to rank 1 of another node in two column
// halves, rank 1 copies each to rank 2 on its node in two row halves, who counts the four pieces and
// multiplies; ranks 0 and 1 multiply their own. Credits go back by Notify.
func columnPlan() *plan.Plan {
	const x, b, c, land = 0, 1, 2, 3
	const arrived, pieces, read, credit = 0, 2, 3, 4 // arrived: one flag per half
	all := func(buffer plan.BufferID, rows, cols plan.Dim) plan.Region {
		return plan.Region{Buffer: buffer, Rows: plan.All(rows), Cols: plan.All(cols)}
	}
	part := func(buffer plan.BufferID, rows, cols plan.Span) plan.Region {
		return plan.Region{Buffer: buffer, Rows: rows, Cols: cols}
	}
	product := func(src plan.BufferID, waits []plan.Wait, signals ...plan.Signal) plan.Task {
		return plan.Task{Kind: plan.Compute, Src: all(src, plan.DimM, plan.DimK), B: all(b, plan.DimN, plan.DimK), Dst: all(c, plan.DimM, plan.DimN),
			Waits: waits, Signals: signals}
	}
	p := &plan.Plan{
		Operator: "columns", World: plan.World{PPN: []int{1, 2}},
		Buffers: []plan.Buffer{
			{Name: "x", Kind: plan.BufInput, Rows: plan.DimM, Cols: plan.DimK},
			{Name: "b", Kind: plan.BufInput, Rows: plan.DimN, Cols: plan.DimK},
			{Name: "c", Kind: plan.BufOutput, Rows: plan.DimM, Cols: plan.DimN},
			{Name: "land", Kind: plan.BufLanding, Rows: plan.DimM, Cols: plan.DimK},
		},
		Flags: []plan.Flag{{Name: "arrived left"}, {Name: "arrived right"}, {Name: "pieces", Kind: plan.Counter}, {Name: "read", Kind: plan.Counter}, {Name: "credit"}},
		Ranks: make([]plan.RankPlan, 3),
	}
	add := func(rank int, role plan.Role, t plan.Task) {
		if t.Kind == plan.Compute || t.Kind == plan.Notify {
			t.Peer = rank
		}
		p.Ranks[rank].Queues[role] = append(p.Ranks[rank].Queues[role], t)
	}
	add(0, plan.RoleCompute, product(x, nil))
	for half := range 2 {
		cols := plan.Part(plan.DimK, half, 2)
		add(0, plan.RoleSend, plan.Task{Kind: plan.Send, Peer: 1, Src: part(x, plan.All(plan.DimM), cols), Dst: part(land, plan.All(plan.DimM), cols),
			Waits: []plan.Wait{{Flag: credit, Count: 1, Lag: 1}}, Signals: []plan.Signal{{Rank: 1, Flag: arrived + plan.FlagID(half)}}})
		for i := range 2 {
			piece := part(land, plan.Part(plan.DimM, i, 2), cols)
			add(1, plan.RoleIntra, plan.Task{Kind: plan.Copy, Peer: 2, Src: piece, Dst: piece,
				Waits:   []plan.Wait{{Flag: arrived + plan.FlagID(half), Count: 1}, {Flag: credit, Count: 1, Lag: 1}},
				Signals: []plan.Signal{{Rank: 2, Flag: pieces}, {Rank: 1, Flag: read}}})
		}
	}
	add(1, plan.RoleCompute, product(land, []plan.Wait{{Flag: arrived, Count: 1}, {Flag: arrived + 1, Count: 1}}, plan.Signal{Rank: 1, Flag: read}))
	add(1, plan.RoleSend, plan.Task{Kind: plan.Notify, Waits: []plan.Wait{{Flag: read, Count: 5}}, Signals: []plan.Signal{{Rank: 0, Flag: credit}}})
	add(2, plan.RoleCompute, product(land, []plan.Wait{{Flag: pieces, Count: 4}}, plan.Signal{Rank: 1, Flag: credit}))
	return p
}

func TestExecutorKnowsTheLanguageNotTheOperator(t *testing.T) {
	for _, s := range []plan.Shape{{M: 9, N: 5, K: 24}, {M: 1, N: 3, K: 8}, {M: 0, N: 3, K: 8}, {M: 4, N: 0, K: 8}, {M: 300, N: 2, K: 512}} {
		for _, o := range []options{{}, {mapped: true}, {net: engine.Net{Reorder: true, Seed: 3, BandwidthGBs: 1}}, {workers: [plan.NumRoles]int{2, 2, 2, 2}}} {
			t.Run(fmt.Sprintf("%v/mapped=%v/reorder=%v/workers=%v", s, o.mapped, o.net.Reorder, o.workers), func(t *testing.T) {
				j := openJob(t, columnPlan(), s, o)
				for epoch := range uint64(3) {
					ops := randomOperands(epoch, s, 3, engine.BF16)
					out := make([][]uint16, 3)
					err := j.each(func(rank int) error {
						in := j.ranks[rank]
						x := ops.a
						if rank != 0 { // theirs is not used
							x = make([]uint16, len(ops.a))
						}
						if err := in.SetInput("x", x); err != nil {
							return err
						}
						if err := in.SetInput("b", ops.b[rank]); err != nil {
							return err
						}
						if err := in.Poison("c"); err != nil {
							return err
						}
						if _, err := in.Run(t.Context()); err != nil {
							return err
						}
						var err error
						out[rank], err = in.Output("c")
						return err
					})
					if err != nil {
						t.Fatal(err)
					}
					checkProducts(t, s, engine.BF16, ops, out)
				}
			})
		}
	}
}

func TestBuffersRefuseMisuse(t *testing.T) {
	j := openJob(t, agGemm(t, 1, 1), small, options{})
	in := j.ranks[0]
	for name, err := range map[string]error{
		"unknown":   in.SetInput("q", nil),
		"an output": in.SetInput("c", nil),
		"too short": in.SetInput("a", make([]uint16, 3)),
		"an input":  in.Poison("a"),
		"a landing": func() error { _, err := in.Output("gathered"); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
