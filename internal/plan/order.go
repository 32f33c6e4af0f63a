package plan

import "fmt"

// graph is the order that a plan imposes on its tasks.
//
// What happens before what. Workers claim a queue's tasks in order, but with two workers the second task may
// be done long before the first: the place in a queue orders nothing but the claims. So one task's work is
// known to come before another's only
//   - within an epoch, if the second waits (Lag 0) for a flag that the first raises, or through a chain of such;
//   - from one epoch to the next, if it waits so with Lag 1, or if both are tasks of one rank, whose next epoch
//     starts when all its tasks are done; or through a chain of these and the former.
//
// Of a task that reaches another node two moments count: "done" (its sources are read, and all it did inside
// its own node is visible) and "delivered" (what it did at the other node is visible there). Nothing but the
// flag it raises there says that it was delivered; the end of its rank's run does not.
//
// Progress, in contrast, needs the queues. With one worker per role a task starts only after the one before it
// in its queue. If that order together with the Lag 0 flags has no cycle, every number of workers makes
// progress: take, of the tasks not yet done, the first in a topological order. All before it in its queue are
// done, so the tickets reached it; all it waits for are done. And one worker per role is a legal number, so a
// cycle is a deadlock. Lag 1 and the ends of epochs point from older epochs to newer ones and close no cycle.
type graph struct {
	p        *Plan
	node     []int             // of each rank
	base     [][NumRoles]int32 // id of the first task of each queue
	tasks    []*Task           // by id
	rank     []int32           // of each task
	raises   relation[moment]  // (rank, flag) -> when it is raised
	waiters  relation[waiter]  // (rank, flag) -> tasks that wait for it
	order    []int32           // all tasks, topologically, as one worker per role may run them
	level    []int32           // of each task's done: more than that of everything before it in its epoch
	cuts     *cuts
	ends     *ends // nil if there is no need for it
	numFlags int
}

// waiter is a task that waits for a flag: for its value of this epoch, or of the one before.
type waiter struct {
	task int32
	now  bool
}

// moment is a task's id times 2, plus 1 if it is the delivery.
type moment int32

func doneOf(task int32) moment          { return moment(task << 1) }
func (m moment) task() int32            { return int32(m >> 1) }
func (m moment) delivery() bool         { return m&1 != 0 }
func (g *graph) levelOf(m moment) int32 { return 2*g.level[m.task()] + int32(m&1) }

// relation maps small integers to lists, in two slices.
type relation[T any] struct {
	start []int32
	items []T
}

func (r *relation[T]) of(key int) []T { return r.items[r.start[key]:r.start[key+1]] }

// relate builds a relation over keys 0..keys-1; each must yield the same pairs both times.
func relate[T any](keys int, each func(yield func(key int, item T))) relation[T] {
	r := relation[T]{start: make([]int32, keys+2)}
	each(func(key int, _ T) { r.start[key+2]++ })
	for i := 2; i < len(r.start); i++ {
		r.start[i] += r.start[i-1]
	}
	r.items = make([]T, r.start[keys+1])
	each(func(key int, item T) {
		r.items[r.start[key+1]] = item
		r.start[key+1]++
	})
	r.start = r.start[:keys+1]
	return r
}

// maxVerifiedTasks bounds what is verified, so that 32-bit ids suffice.
const maxVerifiedTasks = 1 << 26

// newGraph indexes the tasks and flags of a valid plan.
func newGraph(p *Plan) (*graph, *Fault) {
	g := &graph{p: p, cuts: newCuts(p), numFlags: len(p.Flags), base: make([][NumRoles]int32, len(p.Ranks))}
	total := 0
	for rank := range p.Ranks {
		for role, queue := range p.Ranks[rank].Queues {
			g.base[rank][role] = int32(total)
			if total += len(queue); total > maxVerifiedTasks {
				return nil, planFault(RuleStructure, "more than %d tasks are more than the verifier takes on", maxVerifiedTasks)
			}
		}
	}
	for node, ppn := range p.World.PPN {
		for range ppn {
			g.node = append(g.node, node)
		}
	}
	g.tasks, g.rank = make([]*Task, 0, total), make([]int32, 0, total)
	for rank := range p.Ranks {
		for _, queue := range p.Ranks[rank].Queues {
			for i := range queue {
				g.tasks = append(g.tasks, &queue[i])
				g.rank = append(g.rank, int32(rank))
			}
		}
	}
	keys := len(p.Ranks) * g.numFlags
	g.raises = relate(keys, func(yield func(int, moment)) {
		for id, t := range g.tasks {
			for _, s := range t.Signals {
				m := doneOf(int32(id))
				if g.node[s.Rank] != g.node[g.rank[id]] {
					m++
				}
				yield(g.key(s.Rank, s.Flag), m)
			}
		}
	})
	g.waiters = relate(keys, func(yield func(int, waiter)) {
		for id, t := range g.tasks {
			for _, w := range t.Waits {
				yield(g.key(int(g.rank[id]), w.Flag), waiter{int32(id), w.Lag == 0})
			}
		}
	})
	return g, nil
}

func (g *graph) key(rank int, flag FlagID) int { return rank*g.numFlags + int(flag) }

// place is the inverse of base.
func (g *graph) place(task int32) (rank int, role Role, index int) {
	rank = int(g.rank[task])
	for role = NumRoles - 1; role > 0 && task < g.base[rank][role]; role-- {
	}
	return rank, role, int(task - g.base[rank][role])
}

func (g *graph) fault(rule Rule, task int32, format string, args ...any) *Fault {
	rank, role, index := g.place(task)
	return g.p.taskFault(rule, rank, role, index, format, args...)
}

// name says where a task stands and what it does.
func (g *graph) name(task int32) string {
	rank, role, index := g.place(task)
	return fmt.Sprintf("rank %d %v task %d (%s)", rank, role, index, g.p.Describe(*g.tasks[task]))
}

// checkFlags holds every wait against the signals of its flag.
func (g *graph) checkFlags() *Fault {
	for id, t := range g.tasks {
		rank := int(g.rank[id])
		for _, w := range t.Waits {
			if n := len(g.raises.of(g.key(rank, w.Flag))); n != int(w.Count) {
				f := g.fault(RuleFlag, int32(id), "the task waits for %d signals per epoch; there are %d, from %s", w.Count, n, g.p.Owes(rank, w.Flag))
				f.Flag = g.p.flagName(w.Flag)
				return f
			}
		}
		for _, s := range t.Signals {
			if len(g.waiters.of(g.key(s.Rank, s.Flag))) == 0 {
				f := g.fault(RuleFlag, int32(id), "it is signalled at rank %d, where nothing waits for it", s.Rank)
				f.Flag = g.p.flagName(s.Flag)
				return f
			}
		}
	}
	return nil
}

// checkProgress sorts the tasks topologically, as one worker per role would have to run them, and sets their
// levels.
func (g *graph) checkProgress() *Fault {
	missing := make([]int32, len(g.tasks)) // how much must happen before each task starts
	var ready []int32
	for id, t := range g.tasks {
		if !g.heads(int32(id)) {
			missing[id]++
		}
		for _, w := range t.Waits {
			if w.Lag == 0 {
				missing[id] += int32(len(g.raises.of(g.key(int(g.rank[id]), w.Flag))))
			}
		}
		if missing[id] == 0 {
			ready = append(ready, int32(id))
		}
	}
	g.level, g.order = make([]int32, len(g.tasks)), make([]int32, 0, len(g.tasks))
	release := func(id int32) {
		if missing[id]--; missing[id] == 0 {
			ready = append(ready, id)
		}
	}
	for len(ready) > 0 {
		id := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		g.order = append(g.order, id)
		for _, s := range g.tasks[id].Signals {
			key := g.key(s.Rank, s.Flag)
			for _, w := range g.waiters.of(key) {
				if w.now {
					// This is above a delivery, too: 2*level+1 < 2*(level+1).
					g.level[w.task] = max(g.level[w.task], g.level[id]+1)
					release(w.task)
				}
			}
		}
		if next := id + 1; int(next) < len(g.tasks) && !g.heads(next) {
			release(next)
		}
	}
	if len(g.order) == len(g.tasks) {
		return nil
	}
	return g.cycle(missing)
}

// heads reports whether a task is the first of its queue.
func (g *graph) heads(task int32) bool {
	_, _, index := g.place(task)
	return index == 0
}

// cycle names a circle of tasks that wait for each other, given what is still missing before each.
func (g *graph) cycle(missing []int32) *Fault {
	// before is something that a stuck task waits for and that is stuck, too.
	before := func(id int32) (int32, FlagID, bool) {
		for _, w := range g.tasks[id].Waits {
			if w.Lag != 0 {
				continue
			}
			for _, m := range g.raises.of(g.key(int(g.rank[id]), w.Flag)) {
				if missing[m.task()] > 0 {
					return m.task(), w.Flag, true
				}
			}
		}
		return id - 1, 0, false
	}
	var at int32
	for missing[at] == 0 {
		at++
	}
	seen := make(map[int32]bool)
	for !seen[at] {
		seen[at] = true
		at, _, _ = before(at)
	}
	// Start the story at a wait: a circle of queue places alone cannot be.
	start := at
	for _, _, waits := before(start); !waits; _, _, waits = before(start) {
		start, _, _ = before(start)
	}
	const most = 6
	var story string
	steps := 0
	for id := start; ; {
		next, flag, waits := before(id)
		if steps < most {
			if waits {
				story += fmt.Sprintf("; it waits for %q of %s", g.p.flagName(flag), g.name(next))
			} else {
				story += fmt.Sprintf("; which stands behind %s", g.name(next))
			}
		}
		steps++
		if id = next; id == start {
			break
		}
	}
	if steps > most {
		story += fmt.Sprintf("; and so on, back to the first, %d steps in all", steps)
	}
	_, flag, _ := before(start)
	f := g.fault(RuleProgress, start, "with one worker per role it waits for itself%s", story)
	f.Flag = g.p.flagName(flag)
	return f
}
