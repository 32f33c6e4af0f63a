package cpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
)

// Sync implements engine.Instance: the ranks of a node meet in the memory of its first rank, the first
// ranks of the nodes tell each other in about log2(nodes) rounds, then each lets its node go on.
func (in *instance) Sync(ctx context.Context) error {
	in.running.Lock()
	defer in.running.Unlock()
	stop := context.AfterFunc(ctx, func() { in.Abort(context.Cause(ctx)) })
	defer stop()
	err := in.aborted()
	if err == nil {
		in.barrier++
		err = in.meet(in.barrier)
	}
	if err != nil {
		in.Abort(err)
		return in.aborted()
	}
	return nil
}

func (in *instance) meet(number uint64) error {
	w := in.cfg.Plan.World
	node, local := w.Place(in.cfg.Rank)
	first, ranks := w.RankAt(node, 0), w.PPN[node]
	leader := in.heaps[first]
	leader.cell(offArrive).add()
	if local == 0 {
		arrived := number * uint64(ranks)
		if err := in.awaitBarrier(offArrive, arrived, "arrivals at the barrier", first, ranks); err != nil {
			return err
		}
		for round := range barrierRounds(w) {
			to := w.RankAt(barrierPartner(w, node, round), 0)
			if err := in.tellBarrier(to, round, number); err != nil {
				return err
			}
			from := w.RankAt((node-1<<round%w.Nodes()+w.Nodes())%w.Nodes(), 0)
			if err := in.awaitBarrier(offRounds+int64(round)*cellSize, number, fmt.Sprintf("barrier round %d", round), from, 1); err != nil {
				return err
			}
		}
		for rank := first; rank < first+ranks; rank++ {
			in.heaps[rank].cell(offRelease).raise(number)
		}
	}
	return in.awaitBarrier(offRelease, number, "barrier opened", first, 1)
}

// awaitBarrier waits for what a number of ranks, from a first on, tell a cell.
func (in *instance) awaitBarrier(off int64, target uint64, name string, first, ranks int) error {
	h := in.heap()
	seen, err := h.await(h.cell(off), target, in.cfg.WaitTimeout)
	if errors.Is(err, errTimeout) {
		owing := make([]int, ranks)
		for i := range owing {
			owing[i] = first + i
		}
		owes := fmt.Sprintf("rank %d", first)
		if ranks > 1 {
			owes = fmt.Sprintf("each of ranks %d to %d", first, first+ranks-1)
		}
		return &engine.WaitError{Rank: in.cfg.Rank, Role: "sync", Task: fmt.Sprintf("barrier %d", in.barrier), Flag: name,
			Seen: seen, Wanted: target, Signals: owes, Owing: owing, After: in.cfg.WaitTimeout.Round(time.Millisecond)}
	}
	return err
}

func (in *instance) tellBarrier(to, round int, number uint64) error {
	if in.fabric != nil {
		return in.fabric.barrier(to, round, number)
	}
	return in.net.out[to].writeFrame(frame{kind: frameBarrier, task: uint32(round), epoch: number}, nil)
}
