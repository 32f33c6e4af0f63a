package plan

import "fmt"

// The contracts of the operators. They are written from what the operators are, not from their plans.

// AGGemmContract is that of AGGemm: rank r gets all of A times its own B.
func AGGemmContract(w World) Contract {
	return Contract{
		World: w,
		Inputs: []Matrix{
			{Name: "a", Rows: DimM, Cols: DimK, Sharded: true},
			{Name: "b", Rows: DimN, Cols: DimK},
		},
		Results: []Result{{Matrix: Matrix{Name: "c", Rows: DimM, Cols: DimN}, A: Operand{Name: "a"}, B: Operand{Name: "b"}}},
	}
}

// GemmRSContract is that of GemmRS: rank r gets its part of the rows of the sum of every rank's own A times its own B.
func GemmRSContract(w World, partials Elem) Contract {
	return sumContract(w, partials, SumAtOwner, true)
}

// GemmARContract is that of GemmAR: every rank gets the sum of every rank's own A times its own B. The error says that
// there is no such algorithm.
func GemmARContract(w World, algorithm string, partials Elem) (Contract, error) {
	switch algorithm {
	case TwoShot:
		return sumContract(w, partials, SumAtOwner, false), nil
	case OneShot:
		return sumContract(w, partials, SumOfNodes, false), nil
	}
	return Contract{}, fmt.Errorf("planning gemm_ar: unknown algorithm %q; known: %s, %s", algorithm, TwoShot, OneShot)
}

func sumContract(w World, partials Elem, sum Sum, sharded bool) Contract {
	return Contract{
		World: w,
		Inputs: []Matrix{
			{Name: "a", Rows: DimM, Cols: DimK},
			{Name: "b", Rows: DimN, Cols: DimK},
		},
		Results: []Result{{
			Matrix: Matrix{Name: "c", Rows: DimM, Cols: DimN, Sharded: sharded},
			A:      Operand{Name: "a"}, B: Operand{Name: "b"}, Sum: sum, Partials: partials,
		}},
	}
}

// ownContract is the contract of the operator whose name the plan bears; known is false if there is none of that name.
// The type of partial sums is the caller's choice, so it is taken from the plan.
func (p *Plan) ownContract() (c Contract, known bool, err error) {
	var partials Elem
	if len(p.Results) > 0 {
		partials = p.Results[0].Partials
	}
	switch p.Operator {
	case "ag_gemm":
		return AGGemmContract(p.World), true, nil
	case "gemm_rs":
		return GemmRSContract(p.World, partials), true, nil
	case "gemm_ar":
		c, err := GemmARContract(p.World, p.Algorithm, partials)
		return c, true, err
	}
	return Contract{}, false, nil
}

// checkName holds a plan that bears the name of an operator to that operator's contract.
func (p *Plan) checkName() *Fault {
	own, known, err := p.ownContract()
	if err != nil {
		return planFault(RuleContract, "%v", err)
	}
	if why := p.Contract().differs(own); known && why != "" {
		return planFault(RuleContract, "it bears the name %q, but %s", p.Operator, why)
	}
	return nil
}
