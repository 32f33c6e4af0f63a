package plan

// ends knows what the ends of epochs tell: of every task, which ranks are known to have begun the epoch before the
// task's work, and which ranks' runs of an epoch do not end before the task is done. So a moment of the epoch before
// is in a task's history if a rank that has begun the next one had to wait for it.
//
// Where a whole operator stands between two uses of the same bytes, as when a gather at the end of an epoch lets the
// next one begin without credits, the way between them is as long as the plan; so it is found for all tasks at once,
// in the order in which they may run and backwards.
type ends struct {
	words     int
	begun     []uint64 // sets of ranks, by task
	until     []uint64 // of the task being done
	delivered []uint64 // of what it did at another node being there; by place in remote
	remote    map[int32]int32
}

// maxEnds bounds the words of each table; a larger plan is searched task by task.
const maxEnds = 1 << 26

// newEnds makes the tables if the plan has tasks that write into results of other ranks, else nil.
func newEnds(g *graph) *ends {
	words := (len(g.p.Ranks) + 63) / 64
	if len(g.tasks) > maxEnds/words {
		return nil
	}
	needed := false
	for id, t := range g.tasks {
		if t.Peer != int(g.rank[id]) && g.p.Buffers[t.Dst.Buffer].Kind == BufOutput {
			needed = true
			break
		}
	}
	if !needed {
		return nil
	}
	e := &ends{words: words, begun: make([]uint64, words*len(g.tasks)), until: make([]uint64, words*len(g.tasks)), remote: make(map[int32]int32)}
	for _, id := range g.order {
		rank := int(g.rank[id])
		set := e.of(e.begun, id)
		set[rank/64] |= 1 << (rank % 64)
		for _, w := range g.tasks[id].Waits {
			if w.Lag == 0 {
				for _, m := range g.raises.of(g.key(rank, w.Flag)) {
					union(set, e.of(e.begun, m.task()))
				}
			}
		}
	}
	for i := len(g.order) - 1; i >= 0; i-- {
		id := g.order[i]
		rank := int(g.rank[id])
		set := e.of(e.until, id)
		set[rank/64] |= 1 << (rank % 64)
		var far []uint64
		for _, s := range g.tasks[id].Signals {
			away := g.node[s.Rank] != g.node[rank]
			if away && far == nil {
				far = make([]uint64, words)
			}
			for _, w := range g.waiters.of(g.key(s.Rank, s.Flag)) {
				if !w.now {
					continue
				}
				union(set, e.of(e.until, w.task))
				if away {
					union(far, e.of(e.until, w.task))
				}
			}
		}
		if far != nil {
			e.remote[id] = int32(len(e.delivered) / words)
			e.delivered = append(e.delivered, far...)
		}
	}
	return e
}

func union(set, other []uint64) {
	for i, word := range other {
		set[i] |= word
	}
}

func (e *ends) of(sets []uint64, id int32) []uint64 { return sets[int(id)*e.words:][:e.words] }

// begunAt reports whether a rank is known to have begun the epoch before a task's work.
func (e *ends) begunAt(task int32, rank int) bool {
	return e.of(e.begun, task)[rank/64]>>(rank%64)&1 != 0
}

// before reports whether a moment of the epoch before comes before a task's work because some epoch has ended.
func (e *ends) before(task int32, m moment) bool {
	set := e.of(e.until, m.task())
	if m.delivery() {
		at, ok := e.remote[m.task()]
		if !ok {
			return false
		}
		set = e.of(e.delivered, at)
	}
	for i, word := range e.of(e.begun, task) {
		if word&set[i] != 0 {
			return true
		}
	}
	return false
}
