// Package sim tells how long a plan takes on hardware that need not be there: a discrete-event simulation in which
// workers claim tasks, wait for flags, compute tile by tile and share links, with rates from a named description.
//
// What it is for: comparing schedules and splits, and seeing what hides behind what. What it leaves out: caches,
// clocks that follow power, bank conflicts, congestion inside switches.
package sim

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mkrun/mkrun/internal/plan"
)

// Options say what is simulated.
type Options struct {
	Hardware Hardware
	Shape    plan.Shape
	ElemSize int64              // bytes of an element of the operator's dtype
	Epochs   int                // calls, one after the other; 0 stands for 1
	Workers  [plan.NumRoles]int // per rank; 0: the hardware's own split
}

// Run simulates a plan that was verified. Equal arguments give equal results. The error says that the options mean
// nothing, or which task waits forever.
func Run(p *plan.Plan, o Options) (*Result, error) {
	o.Epochs = max(1, o.Epochs)
	if err := o.Hardware.validate(); err != nil {
		return nil, err
	}
	if o.ElemSize < 1 || o.Shape.M < 1 || o.Shape.N < 1 || o.Shape.K < 1 {
		return nil, fmt.Errorf("simulating %s: shape %+v of %d-byte elements is empty", p.Operator, o.Shape, o.ElemSize)
	}
	workers, err := o.Hardware.split(p, o.Workers)
	if err != nil {
		return nil, fmt.Errorf("simulating %s: %w", p.Operator, err)
	}
	s, err := simulate(p, o, workers)
	if err != nil {
		return nil, fmt.Errorf("simulating %s: %w", p.Operator, err)
	}
	return s.result(workers), nil
}

type simulation struct {
	p     *plan.Plan
	o     Options
	hw    *Hardware
	node  []int
	now   Time
	queue events
	seq   int
	net   network
	round int

	flags   []uint64          // by rank and flag
	waiting map[int][]pending // by rank and flag: waits of claimed tasks that lack it
	ranks   []rankState
	done    []*task // in the order in which they ended
	over    Time    // when the last rank was
}

type rankState struct {
	rank   int
	epoch  uint64
	crews  [plan.NumRoles]crew
	left   int // tasks of this epoch
	moving int // flows over the node's links that SMs of this rank or a peer drive
	over   bool
}

// crew is the workers of one role of one rank.
type crew struct {
	rank    *rankState
	role    plan.Role
	workers workers
	tasks   []plan.Task
	next    int   // index of the task being claimed
	current *task // its run, once claimed
}

// task is the run of one task in one epoch.
type task struct {
	Span
	crew *crew
	plan *plan.Task
	cost cost

	left   int64  // parts not claimed
	undone int64  // parts not done
	gates  []gate // by step; the first stands before the whole task
	after  *task  // what the first worker did before
	by     *task  // who raised the last flag that it waited for
}

// gate is where parts of a task wait for flags: before it begins, or before a step of its depth.
type gate struct {
	step   uint32
	unmet  int      // flags that are lacking
	parked []waiter // workers that wait for them
}

// pending is a wait of a task for a flag.
type pending struct {
	t    *task
	wait *plan.Wait
}

// workers is some of a rank's, numbered through all roles: those from lo up to hi.
type workers struct{ lo, hi int }

func (w workers) n() int { return w.hi - w.lo }

type waiter struct {
	workers
	since Time
}

type event struct {
	at  Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	old[len(old)-1] = event{}
	*e = old[:len(old)-1]
	return x
}

// after does something a while later.
func (s *simulation) after(d Time, do func()) {
	s.seq++
	heap.Push(&s.queue, event{s.now + d, s.seq, do})
}

func simulate(p *plan.Plan, o Options, split [plan.NumRoles]int) (*simulation, error) {
	s := &simulation{
		p: p, o: o, hw: &o.Hardware, flags: make([]uint64, len(p.Ranks)*len(p.Flags)),
		waiting: make(map[int][]pending), ranks: make([]rankState, len(p.Ranks)),
	}
	for node, ppn := range p.World.PPN {
		for range ppn {
			s.node = append(s.node, node)
		}
	}
	if len(s.node) != len(p.Ranks) {
		return nil, errors.New("the plan's world and its ranks differ")
	}
	s.net = network{s: s, links: make([]link, linksPerRank*len(p.Ranks))}
	for i := range s.net.links {
		s.net.links[i].rate = s.hw.LinkGBs * 1e9
		if i%linksPerRank >= nicOut {
			s.net.links[i].rate = s.hw.NICGBs * 1e9
		}
	}
	for rank := range s.ranks {
		r := &s.ranks[rank]
		r.rank = rank
		from := 0
		for role := range r.crews {
			r.crews[role] = crew{rank: r, role: plan.Role(role), workers: workers{from, from + split[role]}, tasks: p.Ranks[rank].Queues[role]}
			from += split[role]
		}
		s.after(s.hw.Launch, func() { s.begin(r) })
	}
	for len(s.queue) > 0 {
		if at := s.queue[0].at; at > s.now {
			if s.net.settle(); s.queue[0].at > s.now {
				s.now = s.queue[0].at
			}
			continue
		}
		heap.Pop(&s.queue).(event).do()
		if len(s.queue) == 0 {
			s.net.settle()
		}
	}
	return s, s.stuck()
}

// begin starts the next epoch of a rank.
func (s *simulation) begin(r *rankState) {
	r.epoch++
	r.left = 0
	for role := range r.crews {
		c := &r.crews[role]
		c.next, c.current = 0, nil
		r.left += len(c.tasks)
	}
	if r.left == 0 {
		s.end(r)
		return
	}
	for role := range r.crews {
		s.claim(&r.crews[role], r.crews[role].workers, nil)
	}
}

// end finishes an epoch of a rank.
func (s *simulation) end(r *rankState) {
	if r.epoch < uint64(s.o.Epochs) {
		s.after(s.hw.Launch, func() { s.begin(r) })
		return
	}
	r.over, s.over = true, s.now
}

// claim gives parts of a crew's next tasks to workers who have just done something else.
func (s *simulation) claim(c *crew, free workers, after *task) {
	for free.n() > 0 {
		if c.next == len(c.tasks) {
			if compute := &c.rank.crews[plan.RoleCompute]; s.hw.Join && c != compute {
				s.claim(compute, free, after)
			}
			return
		}
		if c.current == nil {
			c.current = s.open(c, after)
		}
		t := c.current
		some := workers{free.lo, free.lo + int(min(int64(free.n()), t.left))}
		t.left -= int64(some.n())
		free.lo = some.hi
		if t.left == 0 {
			c.next, c.current = c.next+1, nil
		}
		s.pass(t, 0, some)
	}
}

// open starts the run of a crew's next task: its first part is being claimed.
func (s *simulation) open(c *crew, after *task) *task {
	t := &task{
		Span: Span{Rank: c.rank.rank, Role: c.role, Index: c.next, Epoch: int(c.rank.epoch), Claimed: s.now, Begun: -1},
		crew: c, plan: &c.tasks[c.next], after: after,
	}
	t.cost = s.cost(t.plan, t.Rank, c.workers.n())
	t.Bytes = t.cost.bytes
	t.left, t.undone = t.cost.parts, t.cost.parts
	t.gates = []gate{{}}
	for i := range t.plan.Waits {
		w := &t.plan.Waits[i]
		g := t.gate(w.Step)
		key := t.Rank*len(s.p.Flags) + int(w.Flag)
		if s.flags[key] < w.Target(c.rank.epoch) {
			g.unmet++
			s.waiting[key] = append(s.waiting[key], pending{t, w})
		}
	}
	return t
}

// gate is the task's gate before a step, new if there was none.
func (t *task) gate(step uint32) *gate {
	at, found := slices.BinarySearchFunc(t.gates, step, func(g gate, step uint32) int { return cmp.Compare(g.step, step) })
	if !found {
		t.gates = slices.Insert(t.gates, at, gate{step: step})
	}
	return &t.gates[at]
}

// raise lifts a flag and lets those go on who waited for it.
func (s *simulation) raise(to plan.Signal, epoch uint64, by *task) {
	key := to.Rank*len(s.p.Flags) + int(to.Flag)
	if s.p.Flags[to.Flag].Kind == plan.Stamp {
		s.flags[key] = max(s.flags[key], epoch)
	} else {
		s.flags[key]++
	}
	list := s.waiting[key]
	if len(list) == 0 {
		return
	}
	var met []pending
	s.waiting[key] = slices.DeleteFunc(list, func(p pending) bool {
		if s.flags[key] < p.wait.Target(uint64(p.t.Epoch)) {
			return false
		}
		met = append(met, p)
		return true
	})
	for _, p := range met {
		t, g := p.t, p.t.gate(p.wait.Step)
		if g.unmet--; g.unmet > 0 || len(g.parked) == 0 {
			continue
		}
		parked := g.parked
		g.parked = nil
		at := slices.IndexFunc(t.gates, func(o gate) bool { return o.step == g.step })
		for _, w := range parked {
			if s.now > w.since {
				t.by, t.Waited, t.For = by, true, to.Flag
			}
			t.block(w.since, s.now, w.workers, true)
			s.pass(t, at, w.workers)
		}
	}
}

// pass takes workers through a gate of a task and on to the next, or lets them wait there.
func (s *simulation) pass(t *task, at int, w workers) {
	g := &t.gates[at]
	if g.unmet > 0 {
		g.parked = append(g.parked, waiter{w, s.now})
		return
	}
	if t.Begun < 0 {
		t.Begun = s.now
	}
	if at == len(t.gates)-1 {
		s.work(t, w, 1-t.share(g.step))
		return
	}
	begun := s.now
	part := t.share(t.gates[at+1].step) - t.share(g.step)
	s.after(Time(float64(s.slowed(t, t.cost.each))*part), func() {
		t.block(begun, s.now, w, false)
		s.pass(t, at+1, w)
	})
}

// share is the part of the depth that lies before a step.
func (t *task) share(step uint32) float64 {
	return float64(step) / float64(max(1, t.plan.Steps))
}

// block notes what workers did.
func (t *task) block(from, to Time, w workers, waited bool) {
	if to > from {
		t.Blocks = append(t.Blocks, Block{From: from, To: to, First: w.lo, Last: w.hi - 1, Waited: waited})
	}
}

// work does what is left of a part of a task for each of some workers: a share of it. All its flags are there.
func (s *simulation) work(t *task, w workers, share float64) {
	c := &t.cost
	begun := s.now
	finish := func() {
		t.block(begun, s.now, w, false)
		s.finish(t, w)
	}
	if c.links == nil {
		s.after(c.before+Time(float64(s.slowed(t, c.each))*share), finish)
		return
	}
	bytes := math.Ceil(float64(c.bytes) * float64(w.n()) / float64(c.parts))
	if bytes == 0 {
		s.after(c.before, finish)
		return
	}
	limit := math.Inf(1)
	if c.workerRate > 0 {
		limit = c.workerRate * float64(w.n())
	}
	// The parts are done when both their products and their bytes are: a tile's stores run beside the next tile.
	open := 2
	part := func() {
		if open--; open == 0 {
			finish()
		}
	}
	s.after(c.before+Time(float64(s.slowed(t, c.each))*share), part)
	s.after(c.before, func() {
		s.move(t, +1)
		s.net.start(bytes, limit, c.links, func() {
			s.move(t, -1)
			part()
		})
	})
}

// slowed is the time of products beside which SMs move bytes.
func (s *simulation) slowed(t *task, d Time) Time {
	if t.plan.Kind == plan.Compute && t.crew.rank.moving > 0 {
		return Time(float64(d) * s.hw.CopySlowdown)
	}
	return d
}

// move counts the copies that run at both ends of a transfer.
func (s *simulation) move(t *task, by int) {
	if t.plan.Kind == plan.Copy {
		s.ranks[t.Rank].moving += by
		s.ranks[t.plan.Peer].moving += by
	}
}

func (s *simulation) finish(t *task, w workers) {
	if t.undone -= int64(w.n()); t.undone == 0 {
		s.complete(t)
	}
	s.claim(t.crew, w, t)
	if r := t.crew.rank; t.undone == 0 {
		if r.left--; r.left == 0 {
			s.end(r)
		}
	}
}

// complete raises the flags of a task that is done.
func (s *simulation) complete(t *task) {
	t.Ended, t.Arrived = s.now, s.now
	s.done = append(s.done, t)
	for _, to := range t.plan.Signals {
		delay := s.hw.PeerFlag
		switch {
		case to.Rank == t.Rank:
			delay = s.hw.LocalFlag
		case s.node[to.Rank] != s.node[t.Rank]:
			delay = s.hw.NICFlag
		}
		if to.Rank == t.plan.Peer {
			t.Arrived = max(t.Arrived, s.now+delay)
		}
		s.after(delay, func() { s.raise(to, uint64(t.Epoch), t) })
	}
}

// stuck names a task that waits forever.
func (s *simulation) stuck() error {
	for rank := range s.ranks {
		r := &s.ranks[rank]
		if r.over {
			continue
		}
		for key := rank * len(s.p.Flags); key < (rank+1)*len(s.p.Flags); key++ {
			if list := s.waiting[key]; len(list) > 0 {
				t := list[0].t
				return fmt.Errorf("rank %d %v task %d waits forever for %q in call %d; %s should have raised it",
					rank, t.Role, t.Index, s.p.Flags[key%len(s.p.Flags)].Name, t.Epoch, s.p.Owes(rank, plan.FlagID(key%len(s.p.Flags))))
			}
		}
		return fmt.Errorf("rank %d does not end call %d", rank, r.epoch)
	}
	return nil
}
