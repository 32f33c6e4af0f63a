package plan

import (
	"cmp"
	"math"
	"slices"
)

// access is one task's reading or writing of a part of a buffer in the memory of one rank.
type access struct {
	rect
	task   int32
	buffer BufferID
	write  bool
	step   uint32 // of a read: the waits of which steps come before it; of others allSteps
}

// allSteps stands for the step of an access that comes after all waits of its task.
const allSteps = math.MaxUint32

// moment is when the access is over.
func (a access) moment(g *graph) moment {
	m := doneOf(a.task)
	if a.write && g.tasks[a.task].Kind == Send {
		m++
	}
	return m
}

// memory is what tasks do to the buffers of all ranks, inputs left out: nobody writes these.
type memory struct {
	g        *graph
	cuts     *cuts
	accesses relation[access] // by rank
}

func newMemory(g *graph) *memory {
	g.ends = newEnds(g)
	m := &memory{g: g, cuts: g.cuts}
	input := make([]bool, len(g.p.Buffers))
	for i, b := range g.p.Buffers {
		input[i] = b.Kind == BufInput
	}
	m.accesses = relate(len(g.p.Ranks), func(yield func(int, access)) {
		for id, t := range g.tasks {
			if t.Kind == Notify {
				continue
			}
			rank, task := int(g.rank[id]), int32(id)
			read := func(r Region) {
				if input[r.Buffer] {
					return
				}
				for step := range t.Steps {
					yield(rank, access{m.cuts.rect(t.depthPart(r, step)), task, r.Buffer, false, step})
				}
				if t.Steps == 0 {
					yield(rank, access{m.cuts.rect(r), task, r.Buffer, false, allSteps})
				}
			}
			for _, src := range t.sources() {
				read(src)
			}
			if t.Kind == Compute {
				read(t.B)
			}
			yield(t.Peer, access{m.cuts.rect(t.Dst), task, t.Dst.Buffer, true, allSteps})
		}
	})
	return m
}

// check looks at each rank's memory and flags. A fault within an epoch is often the cause of others between epochs,
// at other ranks: so it is looked for first when there is one.
func (m *memory) check() *Fault {
	f := m.scan(false)
	if f == nil {
		return nil
	}
	if cause := m.scan(true); cause != nil {
		return cause
	}
	return f
}

// scan looks at all ranks. readsOnly looks only at what is read in an epoch.
func (m *memory) scan(readsOnly bool) *Fault {
	return m.g.eachRank(func() func(int) *Fault {
		c := checker{memory: m, s: newSearcher(m.g), readsOnly: readsOnly}
		return c.rank
	})
}

// checker is one worker of check with its scratch memory.
type checker struct {
	*memory
	s         *searcher
	readsOnly bool
	active    []int32 // accesses that reach beyond the sweep's row
	pairs     []pair
	wanted    []past
	left      []rect
	spare     []rect
}

// pair says that an access overlaps another, at least one of them a write.
type pair struct{ at, other int32 }

func (c *checker) rank(rank int) *Fault {
	all := c.accesses.of(rank)
	slices.SortFunc(all, func(a, b access) int {
		return cmp.Or(cmp.Compare(a.buffer, b.buffer), cmp.Compare(a.r0, b.r0), cmp.Compare(a.c0, b.c0), cmp.Compare(a.task, b.task))
	})
	at := 0
	for id := range c.g.p.Buffers {
		b, from := &c.g.p.Buffers[id], at
		for at < len(all) && all[at].buffer == BufferID(id) {
			at++
		}
		if f := c.buffer(rank, BufferID(id), b, all[from:at]); f != nil {
			f.Buffer = b.Name
			return f
		}
	}
	if c.readsOnly {
		return nil
	}
	return c.flags(rank)
}

// buffer checks all accesses to one buffer of one rank.
func (c *checker) buffer(rank int, id BufferID, b *Buffer, accesses []access) *Fault {
	if b.Kind == BufOutput && !c.readsOnly {
		if f := c.covered(rank, id, b, accesses); f != nil {
			return f
		}
	}
	c.overlaps(accesses)
	for pairs := c.pairs; len(pairs) > 0; {
		n := 1
		for n < len(pairs) && pairs[n].at == pairs[0].at {
			n++
		}
		a, others := accesses[pairs[0].at], pairs[:n]
		pairs = pairs[n:]
		check := c.read
		if a.write {
			if c.readsOnly {
				continue
			}
			check = c.write
			if f := c.unread(b, a, accesses, others); f != nil {
				return f
			}
		}
		if f := check(rank, b, a, accesses, others); f != nil {
			return f
		}
	}
	// An access that no other overlaps is in no pair.
	next := 0
	for i, a := range accesses {
		for next < len(c.pairs) && c.pairs[next].at < int32(i) {
			next++
		}
		if next < len(c.pairs) && c.pairs[next].at == int32(i) {
			continue
		}
		if a.write {
			if c.readsOnly {
				continue
			}
			if f := cmp.Or(c.write(rank, b, a, accesses, nil), c.unread(b, a, accesses, nil)); f != nil {
				return f
			}
			continue
		}
		return c.g.fault(RuleUnwritten, a.task, "it reads %s, which nobody writes", c.g.p.region(c.cuts.region(id, b, a.rect)))
	}
	return nil
}

// overlaps finds all pairs, each from both sides, sorted by the first.
func (c *checker) overlaps(accesses []access) {
	c.active, c.pairs = c.active[:0], c.pairs[:0]
	for i, a := range accesses {
		kept := c.active[:0]
		for _, j := range c.active {
			o := accesses[j]
			if o.r1 <= a.r0 {
				continue
			}
			kept = append(kept, j)
			if (a.write || o.write) && a.overlaps(o.rect) {
				c.pairs = append(c.pairs, pair{int32(i), j}, pair{j, int32(i)})
			}
		}
		c.active = append(kept, int32(i))
	}
	slices.SortFunc(c.pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.other, b.other))
	})
}

// read checks that what an access reads was written before, in this epoch, by writes that are over, and that
// no other write meddles.
func (c *checker) read(_ int, b *Buffer, a access, accesses []access, others []pair) *Fault {
	c.wanted = c.wanted[:0]
	for _, o := range others {
		c.wanted = append(c.wanted, past{moment: accesses[o.other].moment(c.g)})
	}
	missed, some := c.s.before(a.task, a.step, c.wanted)
	c.left = append(c.left[:0], a.rect)
	for _, o := range others {
		w := accesses[o.other]
		if some && !c.beforeStep(w.moment(c.g), a.task, a.step) {
			// It may come after the read, if it is known to; otherwise they race.
			if !c.before(doneOf(a.task), w.task) {
				return c.g.fault(RuleOrder, a.task, "it reads %s that %s may not have written yet: nothing it waits for says so",
					c.region(b, a), c.g.name(missed.task()))
			}
			continue
		}
		c.subtract(w.rect)
	}
	if len(c.left) > 0 {
		return c.g.fault(RuleUnwritten, a.task, "nothing writes %s in this epoch before it is read",
			c.g.p.region(c.cuts.region(a.buffer, b, c.left[0])))
	}
	return nil
}

// write checks that an access overwrites nothing of the epoch before that is still in use, and that it and
// the other writes of its epoch come one after another.
func (c *checker) write(rank int, b *Buffer, a access, accesses []access, others []pair) *Fault {
	c.wanted = append(c.wanted[:0], past{a.moment(c.g), true})
	for _, o := range others {
		c.wanted = append(c.wanted, past{accesses[o.other].moment(c.g), true})
	}
	if missed, some := c.s.before(a.task, allSteps, c.wanted); some {
		what := "be reading"
		if missed.delivery() || missed.task() == a.task {
			what = "be writing"
		}
		return c.g.fault(RuleOrder, a.task, "it overwrites %s at rank %d, where %s of the epoch before may still %s",
			c.region(b, a), rank, c.g.name(missed.task()), what)
	}
	for _, o := range others {
		if w := accesses[o.other]; w.write && !c.before(w.moment(c.g), a.task) && !c.before(a.moment(c.g), w.task) {
			return c.g.fault(RuleOrder, a.task, "it and %s write %s at rank %d in either order", c.g.name(w.task), c.region(b, a), rank)
		}
	}
	return nil
}

// unread checks that somebody reads what is written to a landing buffer.
func (c *checker) unread(b *Buffer, a access, accesses []access, others []pair) *Fault {
	if b.Kind != BufLanding || slices.ContainsFunc(others, func(o pair) bool { return !accesses[o.other].write }) {
		return nil
	}
	return c.g.fault(RuleUnread, a.task, "nobody reads %s, which it writes", c.region(b, a))
}

func (c *checker) region(b *Buffer, a access) string {
	return c.g.p.region(c.cuts.region(a.buffer, b, a.rect))
}

// before reports whether a moment is known to come before all that a task writes in the same epoch.
func (c *checker) before(m moment, task int32) bool {
	c.s.loose = true
	defer func() { c.s.loose = false }()
	return c.beforeStep(m, task, allSteps)
}

// beforeStep is before, of what a task does behind the gates of a step.
func (c *checker) beforeStep(m moment, task int32, step uint32) bool {
	_, missed := c.s.before(task, step, []past{{moment: m}})
	return !missed
}

func (c *checker) subtract(r rect) {
	c.spare = c.spare[:0]
	for _, l := range c.left {
		c.spare = l.minus(r, c.spare)
	}
	c.left, c.spare = c.spare, c.left
}

// covered checks that the tasks write each part of a result once, and those of other ranks at the right time.
func (c *checker) covered(rank int, id BufferID, b *Buffer, accesses []access) *Fault {
	whole := c.cuts.rect(Region{id, b.RowSpan(rank, len(c.g.p.Ranks)), All(b.Cols)})
	c.left = append(c.left[:0], whole)
	written := int64(0)
	for _, a := range accesses {
		if !a.write {
			continue
		}
		c.subtract(a.rect)
		written += int64(a.r1-a.r0) * int64(a.c1-a.c0)
		if f := c.foreign(rank, a); f != nil {
			return f
		}
	}
	if len(c.left) > 0 {
		return &Fault{Rule: RuleOutput, Rank: rank, Index: -1, Detail: "no task writes " + c.g.p.region(c.cuts.region(id, b, c.left[0]))}
	}
	if written == int64(whole.r1-whole.r0)*int64(whole.c1-whole.c0) {
		return nil
	}
	// More was written than there is: name two tasks that write the same.
	for i, a := range accesses {
		for _, o := range accesses[i+1:] {
			if a.write && o.write && a.overlaps(o.rect) {
				return c.g.fault(RuleOutput, o.task, "it writes %s a second time; %s does, too", c.region(b, o), c.g.name(a.task))
			}
		}
	}
	return nil
}

// foreign checks a write into another rank's result: the caller there owns it between two runs, so the write
// must come after the start of the epoch at that rank, and a task there must wait for it.
func (c *checker) foreign(rank int, a access) *Fault {
	if int(c.g.rank[a.task]) == rank {
		return nil
	}
	if !c.s.after(a.task, rank) {
		return c.g.fault(RuleOrder, a.task, "nothing tells it that rank %d has started the epoch, and its caller is done with the old result", rank)
	}
	for _, s := range c.g.tasks[a.task].Signals {
		if s.Rank != rank {
			continue
		}
		for _, w := range c.g.waiters.of(c.g.key(rank, s.Flag)) {
			if w.now {
				return nil
			}
		}
	}
	return c.g.fault(RuleOrder, a.task, "no task of rank %d waits for it, so the run there may end before its result is written", rank)
}

// flags checks, for the flags of one rank, that an epoch's signals cannot be mixed up with the next one's: no
// addition to a counter before all of the epoch before are made (else it would stand in for a missing one), and
// no stamp from another node while that of the epoch before is on its way (else the older one may land last).
func (c *checker) flags(rank int) *Fault {
	for flag := range c.g.p.Flags {
		raises := c.g.raises.of(c.g.key(rank, FlagID(flag)))
		c.wanted = c.wanted[:0]
		for _, m := range raises {
			c.wanted = append(c.wanted, past{m, true})
		}
		for _, m := range raises {
			if missed, some := c.s.before(m.task(), allSteps, c.wanted); some {
				f := c.g.fault(RuleOrder, m.task(), "it may signal rank %d before the signal of the epoch before, of %s, is there", rank, c.g.name(missed.task()))
				f.Flag = c.g.p.flagName(FlagID(flag))
				return f
			}
		}
	}
	return nil
}
