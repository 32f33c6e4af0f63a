package keeper

import (
	"context"
	"testing"
	"time"
)

// BenchmarkStart is the time from Start until two ranks of /bin/true run, and until all is over.
func BenchmarkStart(b *testing.B) {
	rank := func(r int) RankSpec { return RankSpec{Rank: r, Argv: []string{"/bin/true"}} }
	var started time.Duration
	for b.Loop() {
		from := time.Now()
		g, err := Start(context.Background(), Spec{Self: self(), Ranks: []RankSpec{rank(0), rank(1)}}, newCollector())
		if err != nil {
			b.Fatal(err)
		}
		running := 0
		for e := range g.Events() {
			if _, ok := e.(Started); ok {
				if running++; running == 2 {
					started += time.Since(from)
				}
			}
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(started.Microseconds())/float64(b.N), "us-to-started")
}
