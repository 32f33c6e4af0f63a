package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Contract says what an operator takes and gives on a world: of every rank's results what they are the product or the
// sum of, and in which order and with which roundings sums are added, so that a plan that fulfils it gives the same
// bits as every other that does. Who asks for a plan knows the contract and holds the plan to it (VerifyFor).
type Contract struct {
	World   World    `json:"world"`
	Inputs  []Matrix `json:"inputs"`
	Results []Result `json:"results"` // a later one may be made of earlier ones
}

// Matrix is an operand or a result of an operator, as Buffer describes it.
type Matrix struct {
	Name    string `json:"name"`
	Rows    Dim    `json:"rows"`
	Cols    Dim    `json:"cols"`
	Sharded bool   `json:"sharded"`        // rows are split over the ranks, part r of the world's size at rank r
	Same    bool   `json:"same,omitempty"` // an input that is the same at every rank
}

// Result is a matrix, of which each rank ends with its own: the product A * Bᵀ of the operands named, over all columns
// of these, or the sum of the products of all ranks.
type Result struct {
	Matrix
	// Inner results are not given to the caller; they are there to be operands of later ones.
	Inner bool    `json:"inner,omitempty"`
	A     Operand `json:"a"`
	B     Operand `json:"b"`
	// Depth is the number of equal parts of the depth that are multiplied apart and then added in their order; 0 is 1.
	Depth int `json:"depth,omitempty"`
	// Sum says whether the products of all ranks are added, and how.
	Sum Sum `json:"sum"`
	// Partials is the type that each product is rounded to before it is added to another, and each sum of a node before
	// it is added to those of others. All adding is in fp32, one after another in the order of the list; the result is
	// rounded to the operator's dtype at the end.
	Partials Elem `json:"partials"`
}

// Operand is an input, or an earlier result. Rank r takes its own (of a sharded one: all rows, whoever holds them), or
// that of rank From[r].
type Operand struct {
	Name string `json:"name"`
	From []int  `json:"from,omitempty"`
}

// Sum says how the products of all ranks are added.
type Sum uint8

const (
	NoSum      Sum = iota // they are not: each rank's result is its own product
	SumOfNodes            // the sums of the nodes, in their order; each that of its ranks' products, in their order
	// SumAtOwner is SumOfNodes but for one thing: in the part of the rows that a rank owns (rank r of W: part r of W),
	// the products of its own node are not added up first, but each stands in the list, in its node's place.
	SumAtOwner
)

// Contract is what the plan says of itself that it does. Verify proves that it does that, VerifyFor also that this is
// what was asked for.
func (p *Plan) Contract() Contract {
	c := Contract{World: p.World, Results: p.Results}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Kind == BufInput {
			c.Inputs = append(c.Inputs, Matrix{b.Name, b.Rows, b.Cols, b.Sharded, b.Same})
		}
	}
	return c
}

// Then is the contract of two operators in sequence, the second of which takes the result of the first as the operand
// named; see the function Then for what becomes of dims and names.
func (c Contract) Then(second Contract, operand string) (Contract, error) {
	j, err := joinContracts(c, second, operand)
	if err != nil {
		return Contract{}, err
	}
	out := Contract{World: c.World, Inputs: slices.Clone(c.Inputs), Results: slices.Clone(c.Results)}
	out.Results[j.out].Inner = true
	for _, m := range second.Inputs {
		if m.Name != operand {
			out.Inputs = append(out.Inputs, j.matrix(m))
		}
	}
	for _, r := range second.Results {
		r.Matrix = j.matrix(r.Matrix)
		r.A, r.B = j.operand(r.A), j.operand(r.B)
		out.Results = append(out.Results, r)
	}
	return out, nil
}

// contractJoiner translates the contract of the second of two operators.
type contractJoiner struct {
	out     int    // the first's result, in its list
	result  string // its name
	taken   string // the name of the second's operand
	prefix  string
	renamed [numDims]Dim
}

func joinContracts(first, second Contract, operand string) (*contractJoiner, error) {
	in := slices.IndexFunc(second.Inputs, func(m Matrix) bool { return m.Name == operand })
	out := slices.IndexFunc(first.Results, func(r Result) bool { return !r.Inner })
	if !slices.Equal(first.World.PPN, second.World.PPN) {
		return nil, fmt.Errorf("one is for %v, the other for %v", first.World, second.World)
	}
	if out < 0 || in < 0 {
		return nil, fmt.Errorf("there is no result, or no operand %q", operand)
	}
	result, taken := first.Results[out], second.Inputs[in]
	if result.Sharded != taken.Sharded || taken.Same || result.Rows == result.Cols || taken.Rows == taken.Cols {
		return nil, fmt.Errorf("%q is not held as %q is", operand, result.Name)
	}
	j := &contractJoiner{out: out, result: result.Name, taken: operand, prefix: fmt.Sprintf("%d.", 1+len(first.Results))}
	j.renamed[taken.Rows], j.renamed[taken.Cols] = result.Rows, result.Cols
	j.renamed[DimM+DimN+DimK-taken.Rows-taken.Cols] = DimM + DimN + DimK - result.Rows - result.Cols
	return j, nil
}

func (j *contractJoiner) matrix(m Matrix) Matrix {
	m.Name, m.Rows, m.Cols = j.prefix+m.Name, j.renamed[m.Rows], j.renamed[m.Cols]
	return m
}

func (j *contractJoiner) operand(o Operand) Operand {
	if o.Name == j.taken {
		return Operand{Name: j.result, From: o.From}
	}
	o.Name = j.prefix + o.Name
	return o
}

// differs says where another contract differs from c; "" if nowhere.
func (c Contract) differs(want Contract) string {
	if !slices.Equal(c.World.PPN, want.World.PPN) {
		return fmt.Sprintf("the plan is for %v, asked for was one for %v", c.World, want.World)
	}
	if len(c.Inputs) != len(want.Inputs) || len(c.Results) != len(want.Results) {
		return fmt.Sprintf("the plan has %d inputs and %d results, asked for were %d and %d", len(c.Inputs), len(c.Results), len(want.Inputs), len(want.Results))
	}
	for _, w := range want.Inputs {
		i := slices.IndexFunc(c.Inputs, func(m Matrix) bool { return m.Name == w.Name })
		if i < 0 {
			return fmt.Sprintf("the plan has no input %q", w.Name)
		}
		if c.Inputs[i] != w {
			return fmt.Sprintf("the input %v should be %v", c.Inputs[i], w)
		}
	}
	for i, w := range want.Results {
		if r := c.Results[i]; !r.same(w) {
			return fmt.Sprintf("the result is said to be %v, asked for was %v", r, w)
		}
	}
	return ""
}

func (r Result) same(o Result) bool {
	return r.Matrix == o.Matrix && r.Inner == o.Inner && r.A.same(o.A) && r.B.same(o.B) && max(1, r.Depth) == max(1, o.Depth) &&
		r.Sum == o.Sum && r.Partials == o.Partials
}

func (o Operand) same(q Operand) bool { return o.Name == q.Name && slices.Equal(o.From, q.From) }

// String says the matrix in words, e.g. `"a" (M x K, a shard per rank)`.
func (m Matrix) String() string {
	how := "each rank's own"
	switch {
	case m.Sharded:
		how = "a shard per rank"
	case m.Same:
		how = "the same everywhere"
	}
	return fmt.Sprintf("%q (%v x %v, %s)", m.Name, m.Rows, m.Cols, how)
}

// String says the result in words.
func (r Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v = ", r.Matrix)
	switch r.Sum {
	case NoSum:
	case SumAtOwner:
		b.WriteString("sum at the owner of ")
	case SumOfNodes:
		b.WriteString("sum of nodes of ")
	default:
		fmt.Fprintf(&b, "%v of ", r.Sum)
	}
	fmt.Fprintf(&b, "%v x %v", r.A, r.B)
	if r.Depth > 1 {
		fmt.Fprintf(&b, " in %d parts of the depth", r.Depth)
	}
	if r.Sum != NoSum || r.Depth > 1 {
		fmt.Fprintf(&b, ", partial sums of type %v", r.Partials)
	}
	if r.Inner {
		b.WriteString(", not given out")
	}
	return b.String()
}

// String is the operand's name, and whose it is if not the rank's own.
func (o Operand) String() string {
	if o.From == nil {
		return o.Name
	}
	return fmt.Sprintf("%s of ranks %v", o.Name, o.From)
}

// checkContract sees that what the plan says of its results means something, and is about the buffers that it has.
func (p *Plan) checkContract() *Fault {
	known := make(map[string]Matrix)
	input := make(map[string]bool)
	outputs := 0
	for i := range p.Buffers {
		switch b := &p.Buffers[i]; b.Kind {
		case BufInput:
			known[b.Name] = Matrix{b.Name, b.Rows, b.Cols, b.Sharded, b.Same}
			input[b.Name] = true
		case BufOutput:
			outputs++
		}
	}
	for _, r := range p.Results {
		fault := func(format string, args ...any) *Fault {
			f := planFault(RuleContract, format, args...)
			f.Buffer = r.Name
			return f
		}
		if _, twice := known[r.Name]; twice || r.Name == "" || r.Same || r.Depth < 0 || r.Depth > maxSteps || int(r.Sum) >= len(sumNames) || int(r.Partials) >= len(elemNames) {
			return fault("a result %v means nothing, or there are two of the name", r)
		}
		a, okA := known[r.A.Name]
		b, okB := known[r.B.Name]
		if !okA || !okB {
			return fault("a result is made of inputs and earlier results, not of %v and %v", r.A, r.B)
		}
		if a.Rows != r.Rows || b.Rows != r.Cols || a.Cols != b.Cols {
			return fault("%v is not the product of %v and %v", r.Matrix, a, b)
		}
		for _, o := range []Operand{r.A, r.B} {
			if m := known[o.Name]; o.From != nil && (!input[o.Name] || m.Sharded || m.Same || len(o.From) != len(p.Ranks) ||
				slices.ContainsFunc(o.From, func(rank int) bool { return rank < 0 || rank >= len(p.Ranks) })) {
				return fault("%v is not of %d ranks, one for each", o, len(p.Ranks))
			}
		}
		known[r.Name] = r.Matrix
		if r.Inner {
			continue
		}
		outputs--
		i := slices.IndexFunc(p.Buffers, func(b Buffer) bool { return b.Kind == BufOutput && b.Name == r.Name })
		if i < 0 {
			return fault("there is no output of this name")
		}
		if o := &p.Buffers[i]; (Matrix{o.Name, o.Rows, o.Cols, o.Sharded, false}) != r.Matrix || o.Sum != (r.Sum != NoSum) {
			return fault("the output is not held as its result %v says", r)
		}
	}
	if outputs > 0 {
		return planFault(RuleContract, "%d outputs have no result that says what they are", outputs)
	}
	return nil
}
