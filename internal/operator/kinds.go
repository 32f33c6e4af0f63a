package operator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/plan"
)

// kind is what the run needs to know of an operator beyond its plan.
type kind struct {
	name   string
	plan   func(plan.World, int) (*plan.Plan, error)
	inputs []input
	output string // name of the output buffer
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
		name: "ag_gemm", plan: plan.AGGemm, output: "c",
		size: func(s RunSpec, _ int) (int64, int64) { return s.Shape.M, s.Shape.N },
		inputs: []input{
			{buffer: "a", matrix: matrixA, cols: plan.DimK, rows: func(s RunSpec, rank int) (int64, int64) {
				return plan.Part(plan.DimM, rank, s.World.Size()).At(s.Shape)
			}},
			{buffer: "b", matrix: matrixB, cols: plan.DimK, rows: func(s RunSpec, rank int) (int64, int64) {
				return int64(rank) * s.Shape.N, int64(rank+1) * s.Shape.N
			}},
		},
		reference: func(d data, rank int) reference {
			return newProduct(d, int64(rank)*d.spec.Shape.N, int64(rank+1)*d.spec.Shape.N)
		},
	},
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
