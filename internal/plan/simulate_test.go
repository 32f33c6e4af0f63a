package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// simulation executes a plan one small step at a time, in an order drawn at random, and watches what happens to
// every cell of every buffer. It knows nothing of the verifier's reasoning: it is the check of its answers.
// A task begins (its destination turns to garbage), ends (its sources must have been right all along), and what
// it did at another node is delivered at any time later.
type simulation struct {
	p        *Plan
	rng      *rand.Rand
	workers  [NumRoles]int
	epochs   uint64
	slowness int // of deliveries, which may take longer than epochs
	cuts     *cuts
	words    words
	node     []int
	cells    map[cellAt]cell
	flags    [][]uint64
	ranks    []simRank
	flying   []delivery
}

type cellAt struct {
	rank, buffer, row, col int32
}

// cell is what stands in a cell, as of an epoch, in the words of names_test.go; garbage if there are none.
type cell struct {
	what  string
	epoch uint64
}

type simRank struct {
	epoch   uint64
	tickets [NumRoles]int
	running [NumRoles][]simTask
	done    int
	over    bool
}

type simTask struct {
	i     int
	begun bool
}

type delivery struct {
	rank  int // sender
	task  Task
	epoch uint64
	value []cell // of each cell written
}

func simulate(p *Plan, seed uint64, epochs uint64) error {
	s := &simulation{p: p, rng: rand.New(rand.NewPCG(seed, 1)), epochs: epochs, cuts: newCuts(p), cells: make(map[cellAt]cell)}
	s.words = words{p, s.cuts}
	s.slowness = []int{1, 4, 64}[s.rng.IntN(3)]
	for role := range s.workers {
		s.workers[role] = 1 + s.rng.IntN(3)
	}
	for node, n := range p.World.PPN {
		for range n {
			s.node = append(s.node, node)
			s.flags = append(s.flags, make([]uint64, len(p.Flags)))
			s.ranks = append(s.ranks, simRank{epoch: 1})
		}
	}
	for {
		step, err := s.step()
		if err != nil {
			return fmt.Errorf("seed %d, workers %v: %w", seed, s.workers, err)
		}
		if !step {
			break
		}
	}
	for rank := range s.ranks {
		if !s.ranks[rank].over {
			return fmt.Errorf("seed %d, workers %v: rank %d never ends epoch %d", seed, s.workers, rank, s.ranks[rank].epoch)
		}
	}
	return nil
}

// step does one of the things that can happen now; false if nothing can.
func (s *simulation) step() (bool, error) {
	type choice struct {
		rank int
		role Role
		slot int
	}
	var choices []choice
	for rank := range s.ranks {
		r := &s.ranks[rank]
		if r.over {
			continue
		}
		for role := range NumRoles {
			queue := s.p.Ranks[rank].Queues[role]
			for len(r.running[role]) < s.workers[role] && r.tickets[role] < len(queue) {
				r.running[role] = append(r.running[role], simTask{i: r.tickets[role]})
				r.tickets[role]++
			}
			for slot, t := range r.running[role] {
				if waits := queue[t.i].Waits; !t.begun && s.satisfied(rank, upTo(waits, 0)) || t.begun && s.satisfied(rank, waits) {
					choices = append(choices, choice{rank, role, slot})
				}
			}
		}
	}
	n := len(choices) + len(s.flying)
	if n == 0 {
		return false, nil
	}
	at := s.rng.IntN(n)
	if len(choices) > 0 && s.rng.IntN(s.slowness) > 0 {
		at = s.rng.IntN(len(choices))
	}
	if at >= len(choices) {
		at -= len(choices)
		d := s.flying[at]
		s.flying = append(s.flying[:at], s.flying[at+1:]...)
		s.deliver(d)
		return true, nil
	}
	c := choices[at]
	r := &s.ranks[c.rank]
	t := &r.running[c.role][c.slot]
	task := s.p.Ranks[c.rank].Queues[c.role][t.i]
	if err := s.sources(c.rank, task, t.begun); err != nil {
		return false, fmt.Errorf("rank %d %v task %d in epoch %d: %w", c.rank, c.role, t.i, r.epoch, err)
	}
	if !t.begun {
		t.begun = true
		if task.Kind != Notify && task.Steps == 0 { // behind gates it writes at its end only
			s.spoil(task.Peer, task.Dst)
		}
		return true, nil
	}
	r.running[c.role] = append(r.running[c.role][:c.slot], r.running[c.role][c.slot+1:]...)
	r.done++
	var value []cell
	if task.Kind != Notify {
		value = s.value(c.rank, r.epoch, task)
	}
	if task.Kind != Send && task.Kind != Notify {
		s.fill(task.Peer, task.Dst, value)
	}
	remote := false
	for _, sig := range task.Signals {
		if s.node[sig.Rank] == s.node[c.rank] {
			s.raise(sig, r.epoch)
		} else {
			remote = true
		}
	}
	if remote || task.Kind == Send {
		s.flying = append(s.flying, delivery{c.rank, task, r.epoch, value})
	}
	return true, s.finish(c.rank)
}

// upTo are the waits that stand before a step.
func upTo(waits []Wait, step uint32) []Wait {
	for i, w := range waits {
		if w.Step > step {
			return waits[:i]
		}
	}
	return waits
}

// reads are the regions that a task reads: all, or what it reads when it begins.
func (t *Task) reads(whole bool) []Region {
	regions := slices.Clone(t.sources())
	if t.Kind == Compute {
		regions = append(regions, t.B)
	}
	if t.Steps > 0 && !whole {
		for i := range regions {
			regions[i] = t.depthPart(regions[i], 0)
		}
	}
	return regions
}

func (s *simulation) satisfied(rank int, waits []Wait) bool {
	for _, w := range waits {
		if s.flags[rank][w.Flag] < w.Target(s.ranks[rank].epoch) {
			return false
		}
	}
	return true
}

func (s *simulation) raise(sig Signal, epoch uint64) {
	if s.p.Flags[sig.Flag].Kind == Counter {
		s.flags[sig.Rank][sig.Flag]++
	} else {
		s.flags[sig.Rank][sig.Flag] = epoch
	}
}

func (s *simulation) deliver(d delivery) {
	if d.task.Kind == Send {
		s.fill(d.task.Peer, d.task.Dst, d.value)
	}
	for _, sig := range d.task.Signals {
		if s.node[sig.Rank] != s.node[d.rank] {
			s.raise(sig, d.epoch)
		}
	}
}

// value is what a task writes when its sources are right.
func (s *simulation) value(rank int, epoch uint64, t Task) []cell {
	var sources [][]string
	for _, r := range t.reads(true) {
		sources = append(sources, s.names(rank, r))
	}
	var out []cell
	for _, what := range s.words.made(&t, sources) {
		out = append(out, cell{what, epoch})
	}
	return out
}

// at is what a cell holds; that of an input is of every epoch.
func (s *simulation) at(rank int, b BufferID, row, col int32) cell {
	if s.p.Buffers[b].Kind == BufInput {
		return cell{s.words.input(b, rank), s.ranks[rank].epoch}
	}
	return s.cells[cellAt{int32(rank), int32(b), row, col}]
}

// names are what the cells of a region hold, row by row.
func (s *simulation) names(rank int, r Region) []string {
	q := s.cuts.rect(r)
	var out []string
	for row := q.r0; row < q.r1; row++ {
		for col := q.c0; col < q.c1; col++ {
			out = append(out, s.at(rank, r.Buffer, row, col).what)
		}
	}
	return out
}

// sources checks that a task's operands are whole and of this epoch.
func (s *simulation) sources(rank int, t Task, whole bool) error {
	epoch := s.ranks[rank].epoch
	for _, r := range t.reads(whole) {
		q := s.cuts.rect(r)
		for row := q.r0; row < q.r1; row++ {
			for col := q.c0; col < q.c1; col++ {
				if got := s.at(rank, r.Buffer, row, col); got.epoch != epoch || got.what == "" {
					return fmt.Errorf("%s at rank %d holds %+v in epoch %d", s.p.region(r), rank, got, epoch)
				}
			}
		}
	}
	return nil
}

func (s *simulation) fill(rank int, r Region, v []cell) {
	q := s.cuts.rect(r)
	i := 0
	for row := q.r0; row < q.r1; row++ {
		for col := q.c0; col < q.c1; col++ {
			s.cells[cellAt{int32(rank), int32(r.Buffer), row, col}] = v[i]
			i++
		}
	}
}

// spoil makes garbage of a region.
func (s *simulation) spoil(rank int, r Region) {
	q := s.cuts.rect(r)
	s.fill(rank, r, make([]cell, int(q.r1-q.r0)*int(q.c1-q.c0)))
}

// finish ends a rank's epoch when its tasks are done: its caller looks at the results, and poisons them.
func (s *simulation) finish(rank int) error {
	r := &s.ranks[rank]
	total := 0
	for _, queue := range s.p.Ranks[rank].Queues {
		total += len(queue)
	}
	if r.done < total {
		return nil
	}
	for id := range s.p.Buffers {
		b := &s.p.Buffers[id]
		if b.Kind != BufOutput {
			continue
		}
		whole := Region{BufferID(id), b.RowSpan(rank, len(s.ranks)), All(b.Cols)}
		q := s.cuts.rect(whole)
		for row := q.r0; row < q.r1; row++ {
			for col := q.c0; col < q.c1; col++ {
				got := s.cells[cellAt{int32(rank), int32(id), row, col}]
				if got.epoch != r.epoch {
					return fmt.Errorf("rank %d ends epoch %d with %+v in %s", rank, r.epoch, got, b.Name)
				}
				if want := s.words.wanted(b.Name, rank, row); got.what != want {
					return fmt.Errorf("rank %d ends epoch %d with %s in %s, want %s", rank, r.epoch, got.what, b.Name, want)
				}
			}
		}
		s.spoil(rank, whole)
	}
	if r.epoch == s.epochs {
		r.over = true
		return nil
	}
	*r = simRank{epoch: r.epoch + 1}
	return nil
}

func TestSimulatedRunsAreRight(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	for _, m := range planMakers {
		for _, ppn := range [][]int{{1}, {3}, {1, 1, 1}, {2, 2}, {3, 1}, {2, 3, 1}} {
			p := m.must(t, World{PPN: ppn}, 2)
			for seed := range seeds {
				if err := simulate(p, seed, 4); err != nil {
					t.Errorf("%s on %v: %v", m.name, ppn, err)
				}
			}
		}
	}
	for name, p := range handMade() {
		for seed := range seeds {
			if err := simulate(p, seed, 4); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The simulation can fail: of the plans that the verifier refuses for their order, it runs into many by chance.
func TestSimulationSeesFaults(t *testing.T) {
	p := mustAG(t, Uniform(2, 2), 1)
	for name, damage := range map[string]func(q *Plan){
		"credit not waited for":     func(q *Plan) { q.Ranks[0].Queues[RoleIntra][0].Waits = nil },
		"arrival not waited for":    func(q *Plan) { q.Ranks[0].Queues[RoleCompute][1].Waits = nil },
		"notice without its wait":   func(q *Plan) { q.Ranks[2].Queues[RoleSend][1].Waits = nil },
		"arrival instead of credit": func(q *Plan) { q.Ranks[0].Queues[RoleSend][0].Waits[0].Lag = 0 },
	} {
		q := clone(p)
		damage(q)
		seen := false
		for seed := uint64(0); seed < 2000 && !seen; seed++ {
			seen = simulate(q, seed, 4) != nil
		}
		if !seen {
			t.Errorf("%s: 2000 runs saw nothing", name)
		}
	}
}
