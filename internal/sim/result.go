package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mkrun/mkrun/internal/plan"
)

// Span is one task in one epoch.
type Span struct {
	Rank  int
	Role  plan.Role // whose queue it stands in
	Index int       // there
	Epoch int       // from 1

	Claimed Time // by its first worker
	Begun   Time // of its first part, when all its flags were there
	Ended   Time // of its last part
	Arrived Time // Ended, or when its flag was seen by the rank it is for

	Waited bool        // for a flag: before it began, or at a gate inside
	For    plan.FlagID // the last flag that it waited for, if it did
	By     int         // index in Result.Spans of the task that raised it; -1 if it did not wait
	After  int         // index in Result.Spans of what its first worker did before; -1 if nothing

	Bytes int64 // that cross links

	Blocks []Block // what its workers did, in the order in which that ended
}

// Block is some workers of a rank, numbered through all roles, that did parts of a task side by side, or waited to.
type Block struct {
	From, To    Time
	First, Last int
	Waited      bool
}

// Result is what a simulation saw.
type Result struct {
	Options Options
	Workers [plan.NumRoles]int // that started in each role of each rank

	Total   Time    // of all epochs, to the end of the slowest rank
	Call    Time    // Total / Epochs
	Product Time    // of the slowest rank's products alone, on all SMs
	Exposed float64 // share of a call that is not hidden behind the product: (Call - Product) / Call

	Spans []Span // by rank, role, epoch and index
	Path  []int  // indices in Spans of the chain that ends last, in the order of time: each waited for the one before
	// Waited is, by rank and role, how long a worker of the role waited for flags of its tasks, on average.
	Waited [][plan.NumRoles]Time
}

// Prediction is a result in a few numbers.
type Prediction struct {
	Hardware  string     `json:"hardware"` // described, not here
	Shape     plan.Shape `json:"shape"`
	CallMS    float64    `json:"call_ms"`
	ProductMS float64    `json:"product_ms"` // the product alone, on all SMs
	Exposed   float64    `json:"exposed"`    // share of a call that is not hidden behind the product
}

// Prediction is the result in a few numbers.
func (r *Result) Prediction() *Prediction {
	return &Prediction{
		Hardware: r.Options.Hardware.Name, Shape: r.Options.Shape,
		CallMS: r.Call.Milliseconds(), ProductMS: r.Product.Milliseconds(), Exposed: r.Exposed,
	}
}

// String says it in a line.
func (p *Prediction) String() string {
	return fmt.Sprintf("predicted: %v a call on %s, the product alone %v, %.0f %% exposed",
		Time(p.CallMS*float64(Millisecond)), p.Hardware, Time(p.ProductMS*float64(Millisecond)), 100*p.Exposed)
}

func (s *simulation) result(workers [plan.NumRoles]int) *Result {
	r := &Result{Options: s.o, Workers: workers, Total: s.over}
	r.Call = r.Total / Time(s.o.Epochs)
	for rank := range s.ranks {
		r.Product = max(r.Product, s.productAlone(rank))
	}
	if r.Call > r.Product && r.Call > 0 {
		r.Exposed = float64(r.Call-r.Product) / float64(r.Call)
	}
	idle := make([][plan.NumRoles]float64, len(s.ranks)) // worker-seconds
	slices.SortFunc(s.done, func(a, b *task) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Index, b.Index))
	})
	at := make(map[*task]int, len(s.done))
	for i, t := range s.done {
		at[t] = i
	}
	index := func(t *task) int {
		if t == nil {
			return -1
		}
		return at[t]
	}
	last := -1
	for i, t := range s.done {
		t.By, t.After = -1, index(t.after)
		if t.Waited {
			t.By = index(t.by)
		}
		for _, b := range t.Blocks {
			if b.Waited {
				idle[t.Rank][t.Role] += (b.To - b.From).Seconds() * float64(b.Last-b.First+1)
			}
		}
		r.Spans = append(r.Spans, t.Span)
		if last < 0 || t.Ended > r.Spans[last].Ended {
			last = i
		}
	}
	r.Waited = make([][plan.NumRoles]Time, len(s.ranks))
	for rank := range idle {
		for role, sum := range idle[rank] {
			r.Waited[rank][role] = seconds(sum / float64(max(1, workers[role])))
		}
	}
	for last >= 0 {
		r.Path = append(r.Path, last)
		if next := r.Spans[last].By; next >= 0 {
			last = next
		} else {
			last = r.Spans[last].After
		}
	}
	slices.Reverse(r.Path)
	return r
}
