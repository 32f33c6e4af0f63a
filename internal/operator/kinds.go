package operator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/plan"
)

// kind is what the run needs to know of an operator beyond its plan.
type kind struct {
	name string
	plan func(RunSpec) (*plan.Plan, error)
	// contract is what the plan is held to, whoever made it.
	contract func(RunSpec) (plan.Contract, error)
	// algorithms are those one can choose from; nil if there is but one, without a name.
	algorithms []string
	sums       bool // elements of the result are sums over all ranks, of products that travelled as partial sums
	inputs     []input
	output     string // name of the output buffer
	// size is the rows and columns of a rank's output.
	size func(s RunSpec, rank int) (rows, cols int64)
	// reference gives rows [from, to) of a rank's output in fp32, from regenerated data.
	reference func(d data, rank int) reference
}

// input is an operand of one rank: rows of one of the run's matrices.
type input struct {
	buffer string
	matrix matrix
	cols   plan.Dim
	// rows of the matrix that the rank holds, [from, to)
	rows func(s RunSpec, rank int) (from, to int64)
}

// reference computes rows of the expected output, row-major, into out.
type reference interface {
	rows(from, to int64, out []float32)
}

var kinds = []kind{
	{
		name: "ag_gemm", output: "c",
		plan:     func(s RunSpec) (*plan.Plan, error) { return plan.AGGemm(s.World, s.Chunks) },
		contract: func(s RunSpec) (plan.Contract, error) { return plan.AGGemmContract(s.World), nil },
		size:     func(s RunSpec, _ int) (int64, int64) { return s.Shape.M, s.Shape.N },
		inputs: []input{
			{buffer: "a", matrix: matrixA, cols: plan.DimK, rows: shardOfM},
			{buffer: "b", matrix: matrixB, cols: plan.DimK, rows: ownN},
		},
		reference: func(d data, rank int) reference {
			return newProduct(d, int64(rank)*d.spec.Shape.N, int64(rank+1)*d.spec.Shape.N)
		},
	},
	{
		name: "gemm_rs", output: "c", sums: true, inputs: ownOperands,
		plan: func(s RunSpec) (*plan.Plan, error) { return plan.GemmRS(s.World, s.sumOptions()) },
		contract: func(s RunSpec) (plan.Contract, error) {
			return plan.GemmRSContract(s.World, s.Partials), nil
		},
		size: func(s RunSpec, rank int) (int64, int64) {
			from, to := shardOfM(s, rank)
			return to - from, s.Shape.N
		},
		reference: func(d data, rank int) reference {
			from, _ := shardOfM(d.spec, rank)
			return &productSum{data: d, first: from}
		},
	},
	{
		name: "gemm_ar", output: "c", sums: true, inputs: ownOperands, algorithms: []string{plan.TwoShot, plan.OneShot},
		plan: func(s RunSpec) (*plan.Plan, error) { return plan.GemmAR(s.World, s.Algorithm, s.sumOptions()) },
		contract: func(s RunSpec) (plan.Contract, error) {
			return plan.GemmARContract(s.World, s.Algorithm, s.Partials)
		},
		size:      func(s RunSpec, _ int) (int64, int64) { return s.Shape.M, s.Shape.N },
		reference: func(d data, _ int) reference { return &productSum{data: d} },
	},
}

func (s RunSpec) sumOptions() plan.SumOptions {
	return plan.SumOptions{Chunks: s.Chunks, Partials: s.Partials}
}

// shardOfM is a rank's part of M rows.
func shardOfM(s RunSpec, rank int) (from, to int64) {
	return plan.Part(plan.DimM, rank, s.World.Size()).At(s.Shape)
}

// ownM and ownN are M or N rows of a matrix that has as many for each rank, one rank's below the other's.
func ownM(s RunSpec, rank int) (from, to int64) {
	return int64(rank) * s.Shape.M, int64(rank+1) * s.Shape.M
}

func ownN(s RunSpec, rank int) (from, to int64) {
	return int64(rank) * s.Shape.N, int64(rank+1) * s.Shape.N
}

// ownOperands are an A and a B for each rank, over its own part of the depth.
var ownOperands = []input{
	{buffer: "a", matrix: matrixA, cols: plan.DimK, rows: ownM},
	{buffer: "b", matrix: matrixB, cols: plan.DimK, rows: ownN},
}

// expected is what an element of the operator's result is made of.
func (k kind) expected(s RunSpec) expected {
	if !k.sums {
		return expected{depth: s.Shape.K}
	}
	size := int64(s.World.Size())
	return expected{depth: s.Shape.K * size, rounded: size > 1 && s.Partials == plan.ElemOperand}
}

// Algorithms lists those an operator has, the first one first in doubt; nil if there is no choice.
func Algorithms(name string) []string {
	k, err := lookup(name)
	if err != nil {
		return nil
	}
	return k.algorithms
}

// Sums reports whether an operator adds partial results, in a type that one may choose.
func Sums(name string) bool {
	k, err := lookup(name)
	return err == nil && k.sums
}

// Names lists the operators.
func Names() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	slices.Sort(names)
	return names
}

func lookup(name string) (kind, error) {
	for _, k := range kinds {
		if k.name == name {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("unknown operator %q; known: %s", name, strings.Join(Names(), ", "))
}
