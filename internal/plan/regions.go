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
	input    []bool          // by buffer
	incoming relation[int32] // by rank: the tasks of others that write there
}

func newMemory(g *graph) *memory {
	g.ends = newEnds(g)
	m := &memory{g: g, cuts: g.cuts, input: make([]bool, len(g.p.Buffers))}
	for i, b := range g.p.Buffers {
		m.input[i] = b.Kind == BufInput
	}
	m.incoming = relate(len(g.p.Ranks), func(yield func(int, int32)) {
		for id, t := range g.tasks {
			if t.Peer != int(g.rank[id]) {
				yield(t.Peer, int32(id))
			}
		}
	})
	return m
}

// collect lists the accesses to the memory of a rank, by buffer and first row.
func (c *checker) collect(rank int) []access {
	all := c.all[:0]
	write := func(id int32, t *Task) {
		all = append(all, access{c.rect(t.Dst), id, t.Dst.Buffer, true, allSteps})
	}
	first := c.g.base[rank][0]
	for id := first; int(id) < len(c.g.tasks) && int(c.g.rank[id]) == rank; id++ {
		t := c.g.tasks[id]
		if t.Kind == Notify {
			continue
		}
		read := func(r Region) {
			if c.input[r.Buffer] {
				return
			}
			for step := range t.Steps {
				all = append(all, access{c.rect(t.depthPart(r, step)), id, r.Buffer, false, step})
			}
			if t.Steps == 0 {
				all = append(all, access{c.rect(r), id, r.Buffer, false, allSteps})
			}
		}
		if t.Kind == Reduce {
			for _, src := range t.Srcs {
				read(src)
			}
		} else {
			read(t.Src)
		}
		if t.Kind == Compute {
			read(t.B)
		}
		if t.Peer == rank {
			write(id, t)
		}
	}
	for _, id := range c.memory.incoming.of(rank) {
		write(id, c.g.tasks[id])
	}
	c.spareAll = slices.Grow(c.spareAll[:0], len(all))[:len(all)]
	c.sort(c.spareAll, all, func(a *access) int32 { return a.r0 })
	c.sort(all, c.spareAll, func(a *access) int32 { return int32(a.buffer) })
	c.all = all
	return all
}

// sort puts accesses in the order of small keys, and leaves them in the order they had where these are equal.
func (c *checker) sort(to, from []access, key func(a *access) int32) {
	most := int32(0)
	for i := range from {
		most = max(most, key(&from[i]))
	}
	at := slices.Grow(c.at[:0], int(most)+2)[:int(most)+2]
	c.at = at
	clear(at)
	for i := range from {
		at[key(&from[i])+1]++
	}
	for i := range at[1:] {
		at[i+1] += at[i]
	}
	for i := range from {
		k := key(&from[i])
		to[at[k]] = from[i]
		at[k]++
	}
}

// rect is that of a region. Most have the rows of the one before.
func (c *checker) rect(r Region) rect {
	if r.Rows != c.rows {
		c.rows = r.Rows
		c.r0, c.r1 = c.cuts.span(r.Rows)
	}
	c0, c1 := c.cuts.span(r.Cols)
	return rect{c.r0, c.r1, c0, c1}
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
		c := checker{memory: m, s: newSearcher(m.g), near: newNear(m.g), readsOnly: readsOnly}
		return c.rank
	})
}

// checker is one worker of check with its scratch memory.
type checker struct {
	*memory
	s         *searcher
	near      *near
	readsOnly bool
	all       []access
	spareAll  []access
	at        []int32
	rows      Span // whose cut points r0 and r1 are
	r0, r1    int32
	active    []int32 // accesses that reach beyond the sweep's row
	pairs     []pair
	wanted    []past
	left      []rect
	spare     []rect
}

// pair says that an access overlaps another, at least one of them a write.
type pair struct{ at, other int32 }

func (c *checker) rank(rank int) *Fault {
	all := c.collect(rank)
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
		c.near.about(rank, FlagID(flag))
		for _, m := range raises {
			if c.near.told(m, len(raises)) {
				continue
			}
			if missed, some := c.s.before(m.task(), allSteps, c.wanted); some {
				f := c.g.fault(RuleOrder, m.task(), "it may signal rank %d before the signal of the epoch before, of %s, is there", rank, c.g.name(missed.task()))
				f.Flag = c.g.p.flagName(FlagID(flag))
				return f
			}
		}
	}
	return nil
}
