package cpu

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

func whole(buffer plan.BufferID, rows, cols plan.Dim) plan.Region {
	return plan.Region{Buffer: buffer, Rows: plan.All(rows), Cols: plan.All(cols)}
}

// gatedPlan: rank 0 brings its x to rank 1 in parts of their depth; the product there passes a gate before each.
func gatedPlan(steps int) *plan.Plan {
	const x, b, c, land = 0, 1, 2, 3
	p := &plan.Plan{
		Operator: "gated", Algorithm: "direct", World: plan.Uniform(1, 2), Chunks: 1,
		Buffers: []plan.Buffer{
			x: {Name: "x", Kind: plan.BufInput, Rows: plan.DimM, Cols: plan.DimK}, b: {Name: "b", Kind: plan.BufInput, Rows: plan.DimN, Cols: plan.DimK},
			c: {Name: "c", Kind: plan.BufOutput, Rows: plan.DimM, Cols: plan.DimN}, land: {Name: "land", Kind: plan.BufLanding, Rows: plan.DimM, Cols: plan.DimK},
		},
		Flags:   []plan.Flag{{Name: "free"}},
		Ranks:   make([]plan.RankPlan, 2),
		Results: []plan.Result{{Matrix: plan.Matrix{Name: "c", Rows: plan.DimM, Cols: plan.DimN}, A: plan.Operand{Name: "x", From: []int{0, 0}}, B: plan.Operand{Name: "b"}}},
	}
	product := plan.Task{Kind: plan.Compute, B: whole(b, plan.DimN, plan.DimK), Dst: whole(c, plan.DimM, plan.DimN), Src: whole(x, plan.DimM, plan.DimK)}
	p.Ranks[0].Queues[plan.RoleCompute] = []plan.Task{product}
	product.Peer, product.Src.Buffer, product.Steps, product.Signals = 1, land, uint32(steps), []plan.Signal{{Rank: 0, Flag: 0}}
	for step := range steps {
		id := plan.FlagID(len(p.Flags))
		p.Flags = append(p.Flags, plan.Flag{Name: fmt.Sprintf("arrived %d", step)})
		src, dst := whole(x, plan.DimM, plan.DimK), whole(land, plan.DimM, plan.DimK)
		src.Cols = plan.Part(plan.DimK, step, steps)
		dst.Cols = src.Cols
		p.Ranks[0].Queues[plan.RoleIntra] = append(p.Ranks[0].Queues[plan.RoleIntra], plan.Task{
			Kind: plan.Copy, Peer: 1, Src: src, Dst: dst, Waits: []plan.Wait{{Flag: 0, Count: 1, Lag: 1}}, Signals: []plan.Signal{{Rank: 1, Flag: id}},
		})
		product.Waits = append(product.Waits, plan.Wait{Flag: id, Count: 1, Step: uint32(step)})
		p.Declared = append(p.Declared, plan.Flow{From: 0, To: 1, Rows: plan.All(plan.DimM), Cols: src.Cols})
	}
	p.Ranks[1].Queues[plan.RoleCompute] = []plan.Task{product}
	return p
}

// A product behind gates gives the bits of one that is not, for depths that no part is a multiple of 8 of.
func TestGatedProducts(t *testing.T) {
	for _, s := range []plan.Shape{{M: 9, N: 5, K: 8}, {M: 70, N: 130, K: 1000}, {M: 3, N: 2, K: 264}, {M: 0, N: 3, K: 16}} {
		for _, steps := range []int{2, 3, 7} {
			p := gatedPlan(steps)
			if err := plan.Verify(p); err != nil {
				t.Fatal(err)
			}
			for _, o := range []options{{}, {mapped: true, workers: [plan.NumRoles]int{3, 2, 1, 1}}} {
				j := openJob(t, p, s, o)
				for epoch := range uint64(3) {
					ops := randomOperands(epoch, s, 2, engine.BF16)
					out := make([][]uint16, 2)
					err := j.each(func(rank int) error {
						in := j.ranks[rank]
						x := ops.a
						if rank == 1 { // its own is not used
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
			}
		}
	}
}

// splitDepth: one rank multiplies each of n parts of its depth into a slot of its own, and adds the slots.
func splitDepth(n int, elem plan.Elem) *plan.Plan {
	p := &plan.Plan{
		Operator: "split", Algorithm: "direct", World: plan.Uniform(1, 1), Chunks: 1,
		Buffers: []plan.Buffer{
			{Name: "a", Kind: plan.BufInput, Rows: plan.DimM, Cols: plan.DimK}, {Name: "b", Kind: plan.BufInput, Rows: plan.DimN, Cols: plan.DimK},
			{Name: "c", Kind: plan.BufOutput, Rows: plan.DimM, Cols: plan.DimN},
		},
		Flags:   []plan.Flag{{Name: "partials", Kind: plan.Counter}},
		Ranks:   make([]plan.RankPlan, 1),
		Results: []plan.Result{{Matrix: plan.Matrix{Name: "c", Rows: plan.DimM, Cols: plan.DimN}, A: plan.Operand{Name: "a"}, B: plan.Operand{Name: "b"}, Depth: n, Partials: elem}},
	}
	sum := plan.Task{Kind: plan.Reduce, Dst: whole(2, plan.DimM, plan.DimN), Waits: []plan.Wait{{Flag: 0, Count: uint32(n)}}}
	for i := range n {
		p.Buffers = append(p.Buffers, plan.Buffer{Name: fmt.Sprintf("slot %d", i), Kind: plan.BufLanding, Elem: elem, Rows: plan.DimM, Cols: plan.DimN})
		slot := whole(plan.BufferID(3+i), plan.DimM, plan.DimN)
		t := plan.Task{Kind: plan.Compute, Src: whole(0, plan.DimM, plan.DimK), B: whole(1, plan.DimN, plan.DimK), Dst: slot, Signals: []plan.Signal{{Rank: 0, Flag: 0}}}
		t.Src.Cols = plan.Part(plan.DimK, i, n)
		t.B.Cols = t.Src.Cols
		p.Ranks[0].Queues[plan.RoleCompute] = append(p.Ranks[0].Queues[plan.RoleCompute], t)
		sum.Srcs = append(sum.Srcs, slot)
	}
	p.Ranks[0].Queues[plan.RoleReduce] = []plan.Task{sum}
	return p
}

// Partial products over parts of the depth that end anywhere, also ones without columns.
func TestPartsOfTheDepthAddUp(t *testing.T) {
	for _, s := range []plan.Shape{{M: 9, N: 5, K: 8}, {M: 70, N: 33, K: 1000}} {
		for _, n := range []int{2, 3, 11} {
			p := splitDepth(n, plan.ElemFP32)
			if err := plan.Verify(p); err != nil {
				t.Fatal(err)
			}
			j := openJob(t, p, s, options{workers: [plan.NumRoles]int{2, 1, 1, 2}})
			ops := randomOperands(3, s, 1, engine.BF16)
			in := j.ranks[0]
			var out [2][]uint16
			for i := range out {
				for name, bits := range map[string][]uint16{"a": ops.a, "b": ops.b[0]} {
					if err := in.SetInput(name, bits); err != nil {
						t.Fatal(err)
					}
				}
				if err := in.Poison("c"); err != nil {
					t.Fatal(err)
				}
				if _, err := in.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				var err error
				if out[i], err = in.Output("c"); err != nil {
					t.Fatal(err)
				}
			}
			checkProducts(t, s, engine.BF16, ops, [][]uint16{out[0]})
			if !slices.Equal(out[0], out[1]) {
				t.Errorf("%v in %d parts: other bits the second time", s, n)
			}
		}
	}
}

// The same plan, other bits only if something else is added: gemm_ar gives all ranks the same bits under every
// setting.
func TestSumsHaveTheSameBitsWhateverTheSettings(t *testing.T) {
	s := plan.Shape{M: 53, N: 40, K: 136}
	for _, algorithm := range []string{plan.TwoShot, plan.OneShot} {
		p, err := plan.GemmAR(plan.World{PPN: []int{2, 1, 2}}, algorithm, plan.SumOptions{Chunks: 3})
		if err != nil {
			t.Fatal(err)
		}
		var first []uint16
		for i, o := range []options{
			{}, {mapped: true, workers: [plan.NumRoles]int{3, 2, 2, 2}, tile: 24},
			{net: engine.Net{Reorder: true, Seed: 4, BandwidthGBs: 0.5}, workers: [plan.NumRoles]int{1, 1, 3, 1}},
		} {
			j := openJob(t, p, s, o)
			size := p.World.Size()
			ops := make([]operands, size)
			for rank := range ops {
				ops[rank] = randomOperands(uint64(rank), s, 1, engine.BF16)
			}
			for range 2 {
				out := make([][]uint16, size)
				err := j.each(func(rank int) error {
					in := j.ranks[rank]
					if err := in.SetInput("a", ops[rank].a); err != nil {
						return err
					}
					if err := in.SetInput("b", ops[rank].b[0]); err != nil {
						return err
					}
					if err := in.Poison("c"); err != nil {
						return err
					}
					if err := in.Sync(t.Context()); err != nil {
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
				if first == nil {
					first = out[0]
				}
				for rank := range out {
					if diff := cmp.Diff(first, out[rank]); diff != "" {
						t.Fatalf("%s, setting %d, rank %d has other bits", algorithm, i, rank)
					}
				}
			}
		}
	}
}
