package plan

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// eachRank calls a check for every rank, several at a time, each worker with a check of its own. Of several faults it
// returns that of the lowest rank, so the answer is the same every time.
func (g *graph) eachRank(worker func() func(rank int) *Fault) *Fault {
	ranks := len(g.p.Ranks)
	faults := make([]*Fault, ranks)
	var next, worst atomic.Int64
	worst.Store(int64(ranks))
	var wg sync.WaitGroup
	for range min(ranks, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			check := worker()
			for {
				rank := next.Add(1) - 1
				if rank >= worst.Load() {
					return
				}
				if faults[rank] = check(int(rank)); faults[rank] == nil {
					continue
				}
				for {
					w := worst.Load()
					if w <= rank || worst.CompareAndSwap(w, rank) {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	for _, f := range faults {
		if f != nil {
			return f
		}
	}
	return nil
}
