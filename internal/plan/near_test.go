package plan

import (
	"math/rand/v2"
	"testing"
)

// What near says is true by the searcher, which looks everywhere, in plans good and bad; and it says so of nearly all
// signals of good ones.
func TestNearTellsTheTruth(t *testing.T) {
	worlds := [][]int{{3}, {2, 2}, {1, 1, 1}, {2, 3, 1}, {1, 3}}
	makers := append([]planMaker{{"mlp", mlp}}, planMakers...)
	n := 3000
	if testing.Short() || brief {
		n = 300
	}
	asked, told, wrong := 0, 0, 0
	for seed := range uint64(n) {
		rng := rand.New(rand.NewPCG(seed, 4))
		var p *Plan
		if rng.IntN(3) == 0 {
			p = randomPlan(rng)
		} else {
			p = makers[rng.IntN(len(makers))].must(t, World{PPN: worlds[rng.IntN(len(worlds))]}, 1+rng.IntN(2))
		}
		for range rng.IntN(4) {
			mutate(rng, p)
		}
		if p.validate() != nil {
			continue
		}
		g, f := newGraph(p)
		if f != nil || g.checkFlags() != nil || g.checkProgress() != nil {
			continue
		}
		newMemory(g) // makes the ends
		near, search := newNear(g), newSearcher(g)
		for rank := range p.Ranks {
			for flag := range p.Flags {
				near.about(rank, FlagID(flag))
				raises := g.raises.of(g.key(rank, FlagID(flag)))
				for _, m := range raises {
					asked++
					if !near.told(m, len(raises)) {
						continue
					}
					told++
					for _, other := range raises {
						if missed, some := search.before(m.task(), allSteps, []past{{other, true}}); some {
							wrong++
							t.Errorf("seed %d: %s is said to come after the signal of %s of the epoch before", seed, g.name(m.task()), g.name(missed.task()))
						}
					}
				}
			}
		}
	}
	t.Logf("%d of %d signals told, %d wrongly", told, asked, wrong)
	if told*10 < asked*8 {
		t.Errorf("%d of %d signals are told: that is not worth it", told, asked)
	}
}
