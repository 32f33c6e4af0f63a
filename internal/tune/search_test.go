package tune

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/config"
)

// landscape is a machine on which settings take the time that a function says.
type landscape struct {
	ms      func(config.Settings) float64 // 0: fails
	final   func(config.Settings) float64 // in the last comparison; nil: as before
	batches [][]config.Settings
}

func (l *landscape) measure(_ context.Context, settings []config.Settings, calls int) ([]Time, error) {
	if calls > 3 && l.final != nil {
		l.ms = l.final
	}
	l.batches = append(l.batches, slices.Clone(settings))
	var times []Time
	for _, s := range settings {
		if ms := l.ms(s); ms > 0 {
			times = append(times, Time{MS: ms})
		} else {
			times = append(times, Time{Failed: "it cannot"})
		}
	}
	return times, nil
}

func (l *landscape) tried(yes func(config.Settings) bool) (n int) {
	for _, b := range l.batches {
		for _, s := range b {
			if yes(s) {
				n++
			}
		}
	}
	return n
}

func search(t *testing.T, k Kind, l *landscape, budget int) Found {
	t.Helper()
	space, err := NewSpace(k)
	if err != nil {
		t.Fatal(err)
	}
	found, err := (&Search{Space: space, Measure: l.measure, Calls: 3, Budget: budget}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	cpuKind  = Kind{Engine: "cpu", Operator: "ag_gemm", M: 512, N: 256, K: 64, Nodes: 2, Ranks: 4, Cores: 4}
	cudaKind = Kind{Engine: "cuda", Operator: "ag_gemm", M: 8192, N: 1024, K: 8192, Nodes: 1, Ranks: 2, SMs: 132}
)

// Knobs that work by themselves are each found, in few steps.
func TestSearchFindsTheBest(t *testing.T) {
	cost := func(v, best int, weight float64) float64 {
		if v == best {
			return 0
		}
		return weight
	}
	l := &landscape{ms: func(s config.Settings) float64 {
		return 10 + cost(s.Chunks, 8, 2) + cost(s.TileM, 64, 1) + cost(s.Intra, 2, .5) + cost(s.Send, 2, .5) + cost(s.Compute, 4, 3)
	}}
	found := search(t, cpuKind, l, 100)
	want := config.Settings{Chunks: 8, TileM: 64, TileN: 64, Intra: 2, Send: 2, Compute: 4}
	if found.Settings != want || found.MS != 10 || found.OwnMS != 17 {
		t.Errorf("found %+v, want %+v", found, want)
	}
	if all := 6 * 4 * 3 * 3 * 4; found.Timed > all/10 {
		t.Errorf("%d of %d settings were timed", found.Timed, all)
	}
}

// Knobs that only help together with another one are found in the second pass.
func TestSearchGoesOverTheKnobsAgain(t *testing.T) {
	l := &landscape{ms: func(s config.Settings) float64 {
		ms := 10.0
		if s.Compute == 4 {
			ms -= 2
			if s.Chunks == 16 { // of no use to fewer workers
				ms -= 3
			}
		}
		return ms
	}}
	if found := search(t, cpuKind, l, 100); found.Settings.Chunks != 16 || found.Settings.Compute != 4 {
		t.Errorf("found %+v", found)
	}
}

// A mover that is far behind is not followed; one that is near is.
func TestSearchPrunesStarts(t *testing.T) {
	far := func(ce float64) *landscape {
		return &landscape{ms: func(s config.Settings) float64 {
			if s.Mover == "ce" {
				if s.CUDA.KBlock == 2048 {
					return ce - 2
				}
				return ce
			}
			return 10
		}}
	}
	ce := func(s config.Settings) bool { return s.Mover == "ce" }
	l := far(13)
	if found := search(t, cudaKind, l, 100); found.Settings.Mover == "ce" || found.Pruned == 0 || l.tried(ce) != 1 {
		t.Errorf("a mover that is 30 %% behind: found %+v, tried %d times", found, l.tried(ce))
	}
	l = far(11)
	if found := search(t, cudaKind, l, 100); found.Settings.Mover != "ce" || found.Settings.CUDA.KBlock != 2048 {
		t.Errorf("a mover that is 10 %% behind, but can be turned: found %+v", found)
	}
}

// orders are all orders of n things.
func orders(n int) (list [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, shorter := range orders(n - 1) {
		for at := range n {
			list = append(list, slices.Insert(slices.Clone(shorter), at, n-1))
		}
	}
	return list
}

// Whichever start is the fastest, by little or by much, also the engine's own choice, and whichever fail: what is best is
// turned, every knob beside it.
func TestSearchTurnsWhicheverStartWins(t *testing.T) {
	kinds := map[string]Kind{
		"movers":     {Engine: "cuda", Operator: "ag_gemm", M: 512, N: 64, K: 64, Nodes: 1, Ranks: 2, SMs: 2},
		"algorithms": {Engine: "cpu", Operator: "gemm_ar", M: 64, N: 64, K: 64, Nodes: 1, Ranks: 2, Sums: true, Cores: 2, Algorithms: []string{"two-shot", "one-shot"}},
		"one start":  {Engine: "cpu", Operator: "ag_gemm", M: 64, N: 64, K: 64, Nodes: 1, Ranks: 2, Cores: 2},
	}
	for name, k := range kinds {
		space, err := NewSpace(k)
		if err != nil {
			t.Fatal(err)
		}
		startOf := func(s config.Settings) int {
			return slices.Index(space.Starts, config.Settings{Mover: s.Mover, Algorithm: s.Algorithm})
		}
		for _, order := range orders(len(space.Starts)) {
			for _, apart := range []float64{0, 1.001, 1.1, 1.3, 10} { // each from the next; 0: all but the first fail
				l := &landscape{ms: func(s config.Settings) float64 {
					ms := 10.0
					for range order[startOf(s)] {
						ms *= apart
					}
					if s != space.Starts[startOf(s)] {
						ms /= 2 // whatever is turned helps
					}
					return ms
				}}
				best := space.Starts[slices.Index(order, 0)]
				var steps []string
				found, err := (&Search{
					Space: space, Measure: l.measure, Calls: 3, Budget: 20,
					Say: func(p Progress) { steps = append(steps, p.Step) },
				}).Run(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				what := fmt.Sprintf("%s, %s first, others %g apart: steps %q, found %s", name, Describe(best), apart, steps, Describe(found.Settings))
				if found.Settings == best || found.MS > 5*behind {
					t.Errorf("%s: it was not turned", what)
				}
				for _, want := range []string{space.Knobs[0].Name, "cluster"} {
					if (want != "cluster" || k.Engine == "cuda") && !slices.Contains(steps, want) {
						t.Errorf("%s: %s was not tried", what, want)
					}
				}
			}
		}
	}
}

// The engine's own choice is one of the others: it is turned under that one's name, and by itself only if it cannot be one.
func TestSearchTurnsTheEnginesChoiceUnderItsName(t *testing.T) {
	for own, want := range map[float64]bool{9: false, 10: false, 8: true} {
		l := &landscape{ms: func(s config.Settings) float64 {
			if s.Mover == "" {
				return own
			}
			return 10
		}}
		search(t, cudaKind, l, 100)
		turned := l.tried(func(s config.Settings) bool { return s.Mover == "" && s != (config.Settings{}) }) > 0
		if turned != want {
			t.Errorf("at %g ms beside movers at 10 ms it is turned by itself: %v", own, turned)
		}
		for _, mover := range []string{"sm", "ce"} {
			if l.tried(func(s config.Settings) bool { return s.Mover == mover && s.Chunks != 0 }) == 0 {
				t.Errorf("with the engine's own choice at %g ms, mover %s at 10 ms is not turned", own, mover)
			}
		}
	}
}

// What is no better than noise is left to the engine.
func TestSearchKeepsTheEnginesChoice(t *testing.T) {
	l := &landscape{ms: func(s config.Settings) float64 {
		if s == (config.Settings{}) {
			return 10
		}
		return 9.95
	}}
	if found := search(t, cpuKind, l, 100); found.Settings != (config.Settings{}) || found.MS != 10 {
		t.Errorf("found %+v", found)
	}
}

// What was only luck is seen in the last comparison.
func TestSearchDoubtsItsLuck(t *testing.T) {
	l := &landscape{
		ms:    func(s config.Settings) float64 { return 10 - float64(s.Chunks)/4 },
		final: func(s config.Settings) float64 { return 10 - float64(s.Chunks)/1000 },
	}
	if found := search(t, cpuKind, l, 100); found.Settings != (config.Settings{}) || found.MS != 10 || found.OwnMS != 10 {
		t.Errorf("found %+v", found)
	}
}

// What gains less than 1 % is not set, also beside what gains more; and no value is tried twice beside the same others.
func TestSearchSetsNoMoreThanItMust(t *testing.T) {
	l := &landscape{ms: func(s config.Settings) float64 {
		ms := 10 - float64(s.Compute)
		if s.TileM == 64 {
			ms *= 0.995
		}
		return ms
	}}
	if found := search(t, cpuKind, l, 100); found.Settings != (config.Settings{Compute: 4}) {
		t.Errorf("found %+v", found)
	}
	tried := make(map[config.Settings]int)
	for _, batch := range l.batches[:len(l.batches)-1] {
		for _, s := range batch[1:] { // the first is what the others are held against
			if tried[s]++; tried[s] > 1 {
				t.Errorf("%s was tried again", Describe(s))
			}
		}
	}
}

// No more settings are timed than the budget says, starts, repetitions and the last comparison counted, whatever is fast and
// whatever fails; the engine's own choice always is.
func TestSearchKeepsItsBudget(t *testing.T) {
	kinds := map[string]Kind{
		"cpu": cpuKind, "cuda": cudaKind,
		"algorithms": {Engine: "cpu", Operator: "gemm_ar", M: 512, N: 64, K: 64, Nodes: 2, Ranks: 4, Sums: true, Cores: 8, Algorithms: []string{"two-shot", "one-shot"}},
	}
	fast := map[string]func(config.Settings) float64{
		"more is better":    func(s config.Settings) float64 { return 10 / float64(1+s.Chunks+s.Compute+s.CUDA.RowBlock) },
		"all alike":         func(config.Settings) float64 { return 10 },
		"the engine's own":  func(s config.Settings) float64 { return map[bool]float64{true: 1, false: 10}[s == config.Settings{}] },
		"turned ones fail":  func(s config.Settings) float64 { return map[bool]float64{true: 0, false: 10}[s.Chunks+s.TileN > 0] },
		"its own one fails": func(s config.Settings) float64 { return map[bool]float64{true: 0, false: 10}[s == config.Settings{}] },
	}
	for kind, k := range kinds {
		space, err := NewSpace(k)
		if err != nil {
			t.Fatal(err)
		}
		for what, ms := range fast {
			for budget := 1; budget < 60; budget++ {
				l := &landscape{ms: ms}
				found, err := (&Search{Space: space, Measure: l.measure, Calls: 3, Budget: budget}).Run(context.Background())
				if err != nil && (what != "its own one fails" || budget > 3 && kind != "cpu") {
					t.Fatalf("%s, %s, budget %d: %v", kind, what, budget, err)
				}
				if n := l.tried(func(config.Settings) bool { return true }); n > budget || found.Timed > n {
					t.Errorf("%s, %s, budget %d: %d settings timed, said to be %d: %+v", kind, what, budget, n, found.Timed, l.batches)
				}
				if l.tried(func(s config.Settings) bool { return s == config.Settings{} }) == 0 {
					t.Errorf("%s, %s, budget %d: the engine's own choice is not timed", kind, what, budget)
				}
				if budget < 8 && found.Pruned == 0 && err == nil {
					t.Errorf("%s, %s, budget %d: nothing is said to be left out", kind, what, budget)
				}
				if enough := budget >= 30; enough && what == "more is better" && found.Settings == (config.Settings{}) {
					t.Errorf("%s, %s, budget %d: nothing is found", kind, what, budget)
				}
			}
		}
	}
}

// Settings that fail are passed over; when all do, the reason is told.
func TestSearchWithFailures(t *testing.T) {
	l := &landscape{ms: func(s config.Settings) float64 {
		if s.Chunks == 8 || s == (config.Settings{Mover: "sm"}) {
			return 0
		}
		return 10 - float64(s.Chunks)/10
	}}
	if found := search(t, cpuKind, l, 100); found.Settings.Chunks != 16 {
		t.Errorf("found %+v", found)
	}
	space, err := NewSpace(cudaKind)
	if err != nil {
		t.Fatal(err)
	}
	none := &landscape{ms: func(config.Settings) float64 { return 0 }}
	if _, err := (&Search{Space: space, Measure: none.measure, Calls: 1, Budget: 9}).Run(context.Background()); err == nil || !strings.Contains(err.Error(), "it cannot") {
		t.Errorf("error %v", err)
	}
	broken := errors.New("the machine is gone")
	_, err = (&Search{Space: space, Budget: 9, Measure: func(context.Context, []config.Settings, int) ([]Time, error) { return nil, broken }}).Run(context.Background())
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

func TestUnknownEngine(t *testing.T) {
	if _, err := NewSpace(Kind{Engine: "tpu"}); err == nil {
		t.Error("no error")
	}
}

// Whatever a search tries on any kind can be written into a file that passes the check, and is read back as it was.
func TestEveryTriedSettingCanBeConfigured(t *testing.T) {
	kinds := []Kind{cpuKind, cudaKind}
	for _, m := range []int64{1, 16, 256, 2048, 32768} {
		for _, ranks := range []int{1, 2, 8} {
			kinds = append(kinds,
				Kind{Engine: "cuda", Operator: "ag_gemm", M: m, N: 4096, K: 8192, Nodes: 1, Ranks: ranks, SMs: 132},
				Kind{Engine: "cpu", Operator: "gemm_ar", M: m, N: 64, K: 64, Nodes: 1, Ranks: ranks, Sums: true, Cores: 8, Algorithms: []string{"two-shot", "one-shot"}})
		}
	}
	for _, k := range kinds {
		space, err := NewSpace(k)
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[config.Settings]bool)
		todo := slices.Clone(space.Starts)
		for len(todo) > 0 && len(seen) < 60 {
			s := todo[0]
			todo = todo[1:]
			if seen[s] {
				continue
			}
			seen[s] = true
			for _, knob := range space.Knobs {
				todo = append(todo, knob.others(s)...)
			}
			e := Entry{Kind: k, DType: "bf16", PPN: k.Ranks / k.Nodes, Found: Found{Settings: s, MS: 1, OwnMS: 2}, Date: "2026-11-30", On: "x: y"}
			text := fmt.Sprintf("schema: mkrun.config/1\noperator: %s\nentries:\n%s", k.Operator, e.text())
			if _, err := config.CheckFile("f", []byte(text)); err != nil {
				t.Fatalf("%+v: %v\n%s", k, err, text)
			}
		}
	}
}

// Nothing is tried that the kernels refuse: each part of each tile needs an SM, and narrow tiles few rows.
func TestPartsOfNarrowTilesFit(t *testing.T) {
	few := Kind{Engine: "cuda", M: 16, N: 4096, K: 8192, Ranks: 1, SMs: 132}
	for _, tt := range []struct {
		kind           Kind
		columns, parts int
		want           bool
	}{
		{few, 32, 1, true}, {few, 32, 2, false}, {few, 64, 2, true}, {few, 64, 4, false}, {few, 128, 4, true},
		{Kind{M: 16, N: 4096, Ranks: 2, SMs: 132}, 64, 2, true},  // one tile of both shards
		{Kind{M: 18, N: 4096, Ranks: 2, SMs: 132}, 64, 2, false}, // shards that are no whole atoms
		{Kind{M: 128, N: 2048, Ranks: 2, SMs: 132}, 64, 2, true}, // 64 rows of each: two tiles
	} {
		if got := tt.kind.partsFit(tt.columns, tt.parts); got != tt.want {
			t.Errorf("M %d, N %d on %d ranks, %d columns in %d parts: %v", tt.kind.M, tt.kind.N, tt.kind.Ranks, tt.columns, tt.parts, got)
		}
	}
}
