package cpu

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// queue is a role's list of tasks, claimed in order by tickets: one per task, or one per tile of a
// compute task.
type queue struct {
	tasks  []*task
	first  []int64 // ticket of each task's first part
	total  int64
	ticket atomic.Int64
}

func (q *queue) add(t *task) {
	q.tasks = append(q.tasks, t)
	q.first = append(q.first, q.total)
	q.total += t.parts()
}

func (q *queue) reset() {
	q.ticket.Store(0)
	for _, t := range q.tasks {
		if t.segment != nil {
			t.segment.reset()
		}
	}
}

// claim gives the next part of the queue to the calling worker; nil when all are taken.
func (q *queue) claim() (t *task, part int64) {
	n := q.ticket.Add(1) - 1
	if n >= q.total {
		return nil, 0
	}
	i, found := slices.BinarySearch(q.first, n)
	if !found {
		i--
	}
	return q.tasks[i], n - q.first[i]
}

// worker is a goroutine of a role during one epoch.
type worker struct {
	in     *instance
	role   plan.Role
	epoch  uint64
	sum    []float32 // scratch of products
	row    []float32 // scratch of sums
	next   []float32
	waited time.Duration
	intra  int64 // bytes
	inter  int64 // bytes

	blocked atomic.Pointer[blocked] // what it waits for, if it does
}

// Run implements engine.Instance.
func (in *instance) Run(ctx context.Context) (engine.Stats, error) {
	in.running.Lock()
	defer in.running.Unlock()
	stop := context.AfterFunc(ctx, func() { in.Abort(context.Cause(ctx)) })
	defer stop()
	if err := in.aborted(); err != nil {
		return engine.Stats{}, err
	}

	start := time.Now()
	in.epoch++
	for _, b := range in.operands {
		b.reset()
	}
	for i := range in.queues {
		in.queues[i].reset()
	}
	in.workers = in.workers[:0]
	for role, n := range in.cfg.Workers {
		for range n {
			in.workers = append(in.workers, &worker{in: in, role: plan.Role(role), epoch: in.epoch})
		}
	}
	var wg sync.WaitGroup
	for _, w := range in.workers {
		wg.Go(w.run)
	}
	wg.Wait()

	stats := engine.Stats{Time: time.Since(start)}
	for _, w := range in.workers {
		stats.IntraBytes += w.intra
		stats.InterBytes += w.inter
		stats.Waited[w.role] += w.waited / time.Duration(in.cfg.Workers[w.role])
	}
	return stats, in.aborted()
}

// run claims parts of the role's queue until none is left; the first failure aborts the instance.
func (w *worker) run() {
	for {
		t, part := w.in.queues[w.role].claim()
		if t == nil {
			return
		}
		if w.in.aborted() != nil {
			return
		}
		if err := w.execute(t, part); err != nil {
			w.in.Abort(err)
			return
		}
	}
}

func (w *worker) execute(t *task, part int64) error {
	in := w.in
	for _, wait := range t.plan.Waits {
		if wait.Step > 0 {
			break // a gate inside the task; they come last
		}
		if err := w.wait(t, wait); err != nil {
			return err
		}
	}
	switch t.plan.Kind {
	case plan.Copy:
		copyRect(t.dst, t.src)
		if t.intra {
			w.intra += t.src.size()
		}
	case plan.Compute:
		if w.sum == nil {
			w.sum = make([]float32, block*block)
		}
		pass := func(end int64) error { return w.pass(t, end) }
		if err := t.segment.multiply(in.cfg.DType, part, w.sum, &in.spare, pass); err != nil {
			return err
		}
		if err := pass(math.MaxInt64); err != nil { // also those of an empty product
			return err
		}
		if t.segment.open.Add(-1) > 0 {
			return nil // whoever finishes the last tile signals
		}
		if t.intra {
			w.intra += t.dst.size()
		}
	case plan.Reduce:
		w.reduce(in.cfg.DType, t.dst, t.srcs)
	}
	for _, peer := range t.far {
		n, err := peer.send(t, w.epoch)
		if err != nil {
			return err
		}
		w.inter += n
	}
	t.raise(w.epoch)
	return nil
}

// pass waits at the gates of a task before columns up to end.
func (w *worker) pass(t *task, end int64) error {
	for _, g := range t.gates {
		if g.column >= end {
			break
		}
		if err := w.wait(t, g.wait); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) wait(t *task, wait plan.Wait) error {
	in := w.in
	h := in.heap()
	cell, target := h.flag(int(wait.Flag)), wait.Target(w.epoch)
	if cell.value.Load() >= target {
		return nil
	}
	b := &blocked{task: t, flag: wait.Flag, wanted: target, since: time.Now()}
	w.blocked.Store(b)
	_, err := h.await(cell, target, in.cfg.WaitTimeout)
	w.waited += time.Since(b.since)
	if errors.Is(err, errTimeout) {
		return in.rootWait(b)
	}
	w.blocked.Store(nil)
	return err
}

// blocked is a wait in progress.
type blocked struct {
	task   *task
	flag   plan.FlagID
	wanted uint64
	since  time.Time
}

// rootWait is the error for a wait that timed out. When one worker hangs because another of this rank
// hangs, the wait to report is the one that another rank should have ended.
func (in *instance) rootWait(timedOut *blocked) error {
	root := timedOut
	if !in.owedByPeer(root.flag) {
		for _, w := range in.workers {
			if b := w.blocked.Load(); b != nil && in.owedByPeer(b.flag) && in.heap().flag(int(b.flag)).value.Load() < b.wanted {
				root = b
				break
			}
		}
	}
	p := in.cfg.Plan
	return &engine.WaitError{
		Rank: in.cfg.Rank, Role: root.task.role.String(), Task: p.Describe(*root.task.plan), Flag: p.Flags[root.flag].Name,
		Seen: in.heap().flag(int(root.flag)).value.Load(), Wanted: root.wanted, Signals: p.Owes(in.cfg.Rank, root.flag),
		Owing: p.Owing(in.cfg.Rank, root.flag), After: time.Since(root.since).Round(time.Millisecond),
	}
}

// owedByPeer reports whether a flag of this rank is raised by another rank.
func (in *instance) owedByPeer(flag plan.FlagID) bool {
	for rank, r := range in.cfg.Plan.Ranks {
		for _, queue := range r.Queues {
			for _, t := range queue {
				if rank != in.cfg.Rank && slices.Contains(t.Signals, plan.Signal{Rank: in.cfg.Rank, Flag: flag}) {
					return true
				}
			}
		}
	}
	return false
}
