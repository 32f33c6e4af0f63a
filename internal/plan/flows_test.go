package plan

import (
	"slices"
	"testing"
)

// Totals are what the links carry together, at shapes with tails, on uneven worlds.
func TestTotalsAreTheSumsOfLinks(t *testing.T) {
	for _, ppn := range [][]int{{1}, {4}, {1, 1, 1}, {2, 2}, {2, 3, 1}, {1, 3}} {
		w := World{PPN: ppn}
		places := newPlaces(w)
		for path := range pathNames {
			flow := Flow{Path: Path(path), Rows: All(DimM), Cols: All(DimK)}
			if Path(path) == PathPair {
				flow.To = w.Size() - 1
				if flow.To == 0 {
					continue
				}
			}
			declared := Traffic{flow}
			for _, s := range []Shape{{M: 97, K: 3}, {M: 1, K: 1}, {M: 1000, K: 8}} {
				var intra, inter int64
				for rank := range places.node {
					declared.from(&places, rank, func(to int, v Volume) {
						if w.SameNode(rank, to) {
							intra += Elements([]Volume{v}, s)
						} else {
							inter += Elements([]Volume{v}, s)
						}
					})
				}
				within, between := declared.Totals(w)
				if Elements(within, s) != intra || Elements(between, s) != inter {
					t.Errorf("%v on %v: totals are %d and %d, links carry %d and %d", flow.Path, ppn, Elements(within, s), Elements(between, s), intra, inter)
				}
			}
		}
	}
}

// Between nodes as many bytes as declared, but over other links: two ranks send their rows to each other's partner.
func TestBytesOfEachLink(t *testing.T) {
	p := mustAG(t, Uniform(2, 1), 1)
	p.Declared = Traffic{onLink(0, 1, All(DimM), All(DimK))} // as many as cross from 0 to 1 and back
	refused(t, "all bytes on one link", Verify(p), RuleTraffic, "from rank 0 to rank 1")
	p.Declared = Traffic{onLink(1, 0, Part(DimM, 1, 2), All(DimK)), onLink(0, 1, Part(DimM, 0, 2), All(DimK))}
	if err := Verify(p); err != nil {
		t.Errorf("link by link: %v", err)
	}
	// In parts and out of order, and of columns.
	p.Declared = Traffic{
		onLink(1, 0, Part(DimM, 3, 4), All(DimK)), onLink(0, 1, Part(DimM, 0, 2), Part(DimK, 1, 2)),
		onLink(1, 0, Part(DimM, 2, 4), All(DimK)), onLink(0, 1, Part(DimM, 0, 2), Part(DimK, 0, 2)),
	}
	if err := Verify(p); err != nil {
		t.Errorf("in parts: %v", err)
	}
	p.Declared[0].Rows = Part(DimM, 2, 4)
	refused(t, "a part twice", Verify(p), RuleTraffic, "from rank 1 to rank 0")
}

// The minimum follows from the contract, and no plan moves less.
func TestInterMinimum(t *testing.T) {
	s := Shape{M: 1001, N: 33, K: 70}
	for _, ppn := range [][]int{{1}, {3}, {1, 1}, {2, 2}, {2, 3, 1}, {1, 3}, {4, 4, 4}} {
		w := World{PPN: ppn}
		n := int64(len(ppn))
		two, one := planMakers[3], planMakers[4]
		for _, c := range []struct {
			m    planMaker
			want int64
		}{
			{planMakers[0], (n - 1) * s.M * s.K}, {planMakers[1], (n - 1) * s.M * s.N}, {planMakers[2], (n - 1) * s.M * s.N},
			{two, 2 * (n - 1) * s.M * s.N}, {one, 2 * (n - 1) * s.M * s.N},
			// What is gathered, then what is summed up: hidden is M x N, the result M x K.
			{planMaker{"mlp", mlp}, (n-1)*s.M*s.K + (n-1)*s.M*s.K},
		} {
			b, err := c.m.must(t, w, 2).Bytes(s, 1)
			if err != nil || b.InterMinimum != c.want || b.Inter < b.InterMinimum {
				t.Errorf("%s on %v: %+v (%v), want a minimum of %d", c.m.name, ppn, b, err, c.want)
			}
		}
	}
	// With a second operand that is the same everywhere, products can come instead of operands.
	p := gatherOfProducts()
	for _, s := range []Shape{{M: 90, N: 7, K: 50}, {M: 90, N: 50, K: 7}} {
		b, err := p.Bytes(s, 1)
		if err != nil || b.InterMinimum != s.M*min(s.N, s.K) {
			t.Errorf("gather of products at %+v: %+v (%v)", s, b, err)
		}
	}
	// An operand of another node's rank comes once per node, however many ranks take it.
	c := Contract{
		World: World{PPN: []int{1, 3}}, Inputs: AGGemmContract(World{}).Inputs,
		Results: []Result{productResult("c", []int{0, 0, 0, 0})},
	}
	c.Inputs[0].Sharded = false
	if got := c.interMinimum(); len(got) != 1 || Elements(got[0][0], s) != s.M*s.K {
		t.Errorf("one operand for all: %v", got)
	}
	// A reduce-scatter whose result is gathered by the next operator.
	rs, ag := planMakers[1].must(t, Uniform(3, 2), 1), mustAG(t, Uniform(3, 2), 1)
	both, err := Then(rs, ag, "a")
	if err == nil {
		err = Verify(both)
	}
	if err != nil {
		t.Fatal(err)
	}
	if b, err := both.Bytes(s, 1); err != nil || b.InterMinimum != 2*2*s.M*s.N || b.Inter != b.InterMinimum {
		t.Errorf("gemm_rs, then ag_gemm: %+v, %v", b, err)
	}
	bad := mustAG(t, Uniform(2, 1), 1)
	bad.Results = slices.Clone(bad.Results)
	bad.Results[0].A.Name = "nothing"
	if b, err := bad.Bytes(s, 2); err == nil {
		t.Errorf("a result of nothing needs %+v", b)
	}
}
