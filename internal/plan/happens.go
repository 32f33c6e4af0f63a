package plan

import "math"

// past is a moment of this epoch, or of the one before.
type past struct {
	moment
	previous bool
}

// searcher answers what happened before a task, walking from it backwards. In a plan that is right nearly
// every answer is a step or two away, since flags stand between neighbours; a wrong answer costs the whole
// history of the task, once, because it ends the verification.
type searcher struct {
	g     *graph
	marks []uint32 // per moment and epoch: 2*query if wanted, 2*query+1 if seen
	ranks []uint32 // query in which a rank was last seen to have started this epoch
	query uint32
	queue []past
	began []int32 // ranks seen to have started this epoch
	step  uint32  // of the task asked about
	loose bool    // what the task asked about does begins while the writers of fields it waits for still work
}

func newSearcher(g *graph) *searcher {
	return &searcher{g: g, marks: make([]uint32, 4*len(g.tasks)), ranks: make([]uint32, len(g.p.Ranks))}
}

func (s *searcher) mark(p past) *uint32 {
	i := 2 * int(p.moment)
	if p.previous {
		i++
	}
	return &s.marks[i]
}

// start begins a query.
func (s *searcher) start() {
	if s.query == math.MaxUint32/2 {
		clear(s.marks)
		clear(s.ranks)
		s.query = 0
	}
	s.query++
	s.queue, s.began = s.queue[:0], s.began[:0]
}

// before reports the first of the wanted moments that is not known to come before the work of a task in
// some epoch, after those of the task's waits that stand before a step; found is false if all do.
func (s *searcher) before(task int32, step uint32, wanted []past) (missed past, found bool) {
	s.start()
	s.step = step
	const none = math.MaxInt32
	lowNow, lowPrevious := int32(none), int32(none)
	left := 0
	for _, w := range wanted {
		if w.previous && !w.delivery() && s.g.rank[w.task()] == s.g.rank[task] {
			continue // the rank's epoch ended
		}
		if w.previous && s.g.ends != nil && s.g.ends.before(task, w.moment) {
			continue
		}
		if m := s.mark(w); *m != 2*s.query {
			*m = 2 * s.query
			left++
		}
		if w.previous {
			lowPrevious = min(lowPrevious, s.g.levelOf(w.moment))
		} else {
			lowNow = min(lowNow, s.g.levelOf(w.moment))
		}
	}
	if lowPrevious < none {
		lowNow = -1 // any moment of this epoch may lead back to the one before
	}
	if left == 0 {
		return past{}, false
	}
	if left -= s.walk(task, left, lowNow, lowPrevious); left == 0 {
		return past{}, false
	}
	// The end of an epoch of every rank whose next epoch is in the task's history is in it as well.
	for i := 0; i < len(s.began) && lowPrevious < none; i++ {
		rank := int(s.began[i])
		first := s.g.base[rank][0]
		for id := first; int(id) < len(s.g.tasks) && s.g.rank[id] == int32(rank); id++ {
			left -= s.reach(past{doneOf(id), true})
		}
	}
	if left -= s.drain(left, lowNow, lowPrevious); left == 0 {
		return past{}, false
	}
	for _, w := range wanted {
		if *s.mark(w) == 2*s.query {
			return w, true
		}
	}
	return past{}, false
}

// after reports whether the work of a task in some epoch is known to come after the start of that epoch at a rank.
func (s *searcher) after(task int32, rank int) bool {
	if s.g.ends != nil {
		return s.g.ends.begunAt(task, rank)
	}
	s.start()
	s.step = allSteps
	s.walk(task, 1, -1, math.MaxInt32)
	return s.ranks[rank] == s.query
}

// walk searches from a task's waits until the given number of wanted moments is found; it returns how many were.
func (s *searcher) walk(task int32, left int, lowNow, lowPrevious int32) int {
	found := s.expand(past{moment: doneOf(task)}, s.step, lowPrevious, s.loose)
	if found < left {
		found += s.drain(left-found, lowNow, lowPrevious)
	}
	return found
}

func (s *searcher) drain(left int, lowNow, lowPrevious int32) (found int) {
	for i := 0; i < len(s.queue) && found < left; i++ {
		p := s.queue[i]
		low := lowNow
		if p.previous {
			low = lowPrevious
		}
		if s.g.levelOf(p.moment) > low {
			found += s.expand(p, allSteps, lowPrevious, false)
		}
	}
	return found
}

// expand reaches what comes right before a moment, or before a step of its task. If loose, the writer of a field that
// the task waits for has only started; so what came before its start is reached, and not the writer itself.
func (s *searcher) expand(p past, step uint32, lowPrevious int32, loose bool) (found int) {
	task := p.task()
	if p.delivery() {
		return s.reach(past{doneOf(task), p.previous})
	}
	rank := s.g.rank[task]
	if !p.previous && s.ranks[rank] != s.query {
		s.ranks[rank] = s.query
		s.began = append(s.began, rank)
	}
	for _, w := range s.g.tasks[task].Waits {
		if w.Step > step || w.Lag == 1 && (p.previous || lowPrevious == math.MaxInt32) {
			continue
		}
		for _, m := range s.g.raises.of(s.g.key(int(rank), w.Flag)) {
			if loose && s.g.p.Flags[w.Flag].Field != nil {
				found += s.expand(past{moment: doneOf(m.task())}, allSteps, lowPrevious, true)
				continue
			}
			found += s.reach(past{m, p.previous || w.Lag == 1})
		}
	}
	return found
}

// reach notes that a moment is in the history; it returns 1 if it was wanted and not yet seen.
func (s *searcher) reach(p past) int {
	m := s.mark(p)
	was := *m
	if was == 2*s.query+1 {
		return 0
	}
	*m = 2*s.query + 1
	s.queue = append(s.queue, p)
	if was == 2*s.query {
		return 1
	}
	return 0
}
