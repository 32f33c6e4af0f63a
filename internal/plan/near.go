package plan

// near answers, for most signals of a flag in a few steps, whether they come after all signals of the flag of the epoch
// before. Those are told to who waits for the flag: in the epoch before, or as a credit in this one. Flags stand between
// neighbours, so from one of these it is not far to the task that signals: back from it along the first of each wait's
// signals, or forward along the waits for what is signalled, whichever is narrow. If that finds nothing, nothing is
// said: the searcher has the last word.
type near struct {
	g       *graph
	round   int32   // of the flag asked about
	before  []int32 // by task: the last round in which it was told in the epoch before
	now     []int32 // and in this one
	queue   []past
	spread  bool // forward from all that were told
	waiting []waiter
	rank    int32 // where the flag is
	witness int32 // a task there that was told in the epoch before, or -1
}

func newNear(g *graph) *near {
	return &near{g: g, before: make([]int32, len(g.tasks)), now: make([]int32, len(g.tasks))}
}

// How far to look: bounds of what is worth it.
const (
	nearBack    = 3  // steps back
	nearWaits   = 3  // waits of a task
	nearForward = 48 // tasks told
)

// about turns to a flag.
func (n *near) about(rank int, flag FlagID) {
	n.round++
	n.spread = false
	n.waiting = n.g.waiters.of(n.g.key(rank, flag))
	n.rank, n.witness = int32(rank), -1
	for _, w := range n.waiting {
		if n.tell(w.task, w.now); w.now {
			n.witness = w.task
		}
	}
}

// tell notes that a task knows; it returns whether that is new.
func (n *near) tell(task int32, previous bool) bool {
	list := n.now
	if previous {
		list = n.before
	}
	known := list[task] == n.round
	list[task] = n.round
	return !known
}

// told reports whether the work of the task that raises the flag, one of several, is known to come after it was told.
func (n *near) told(m moment, signals int) bool {
	if signals == 1 && !m.delivery() {
		return true // by itself, in the epoch before
	}
	if n.witness >= 0 && n.g.ends != nil && n.g.ends.before(m.task(), doneOf(n.witness)) || n.back(m.task(), false, nearBack) {
		return true
	}
	if !n.spread {
		n.spread = true
		n.forward()
	}
	return n.now[m.task()] == n.round
}

func (n *near) back(task int32, previous bool, steps int) bool {
	if previous && n.before[task] == n.round || !previous && n.now[task] == n.round {
		return true
	}
	if !previous && n.witness >= 0 && n.g.rank[task] == n.rank {
		return true // the rank's epoch before has ended, and one of its tasks was told in it
	}
	if steps == 0 {
		return false
	}
	waits := n.g.tasks[task].Waits
	for _, w := range waits[:min(nearWaits, len(waits))] {
		if previous && w.Lag == 1 {
			continue
		}
		raises := n.g.raises.of(n.g.key(int(n.g.rank[task]), w.Flag))
		if len(raises) > 0 && n.back(raises[0].task(), previous || w.Lag == 1, steps-1) {
			return true
		}
	}
	return false
}

func (n *near) forward() {
	n.queue = n.queue[:0]
	for _, w := range n.waiting {
		n.queue = append(n.queue, past{doneOf(w.task), w.now})
	}
	for i := 0; i < len(n.queue) && len(n.queue) < nearForward; i++ {
		p := n.queue[i]
		for _, s := range n.g.tasks[p.task()].Signals {
			for _, w := range n.g.waiters.of(n.g.key(s.Rank, s.Flag)) {
				previous := p.previous && w.now
				if (p.previous || w.now) && n.tell(w.task, previous) {
					n.queue = append(n.queue, past{doneOf(w.task), previous})
				}
			}
		}
	}
}
