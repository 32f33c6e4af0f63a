package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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
	node     []int
	cells    map[cellAt]cell
	flags    [][]uint64
	ranks    []simRank
	flying   []delivery
}

type cellAt struct {
	rank, buffer, row, col int32
}

// cell is what stands in a cell, as of an epoch: the name of an input, a product, or several products, sorted;
// garbage if there is no name.
type cell struct {
	what  string
	epoch uint64
}

// wholeDepth stands for the last cut point of any dim.
const wholeDepth = 9999

// complete says what a result's cell lacks: it is an input, one product over the whole depth, or one of every rank.
func complete(b *Buffer, what string, size int) error {
	products := strings.Split(strings.TrimSuffix(what, ";"), ";")
	if !strings.HasSuffix(what, ";") && !b.Sum && what != "" {
		return nil // a matrix that came as it is
	}
	for i, p := range products {
		name, depth, _ := strings.Cut(p, "@")
		if depth != fmt.Sprintf("0-%d", wholeDepth) {
			return fmt.Errorf("%q is a product over a part of its depth", p)
		}
		if b.Sum && !strings.HasPrefix(name, fmt.Sprintf("%03d ", i)) {
			return fmt.Errorf("%q has no product of rank %d, or two of another", what, i)
		}
	}
	if b.Sum && len(products) != size || !b.Sum && len(products) != 1 {
		return fmt.Errorf("%q has %d products", what, len(products))
	}
	return nil
}

// productName writes a product over cut points k0 to k1 so that neighbours can be joined and all can be sorted.
func productName(owner int, a, b string, k0, k1 int32) string {
	inner := strings.NewReplacer(";", "|", "@", ":") // a product of products
	return fmt.Sprintf("%03d %s*%s@%d-%d;", owner, inner.Replace(a), inner.Replace(b), k0, k1)
}

// join sorts the products of a sum by name and joins those whose depths meet.
func join(products []string) string {
	slices.Sort(products)
	var out []string
	for _, p := range products {
		name, depth, _ := strings.Cut(strings.TrimSuffix(p, ";"), "@")
		if n := len(out); n > 0 {
			before, was, _ := strings.Cut(strings.TrimSuffix(out[n-1], ";"), "@")
			from, to, _ := strings.Cut(depth, "-")
			start, end, _ := strings.Cut(was, "-")
			if before == name && end == from {
				out[n-1] = name + "@" + start + "-" + to + ";"
				continue
			}
		}
		out = append(out, p)
	}
	return strings.Join(out, "")
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
	value cell
}

func simulate(p *Plan, seed uint64, epochs uint64) error {
	s := &simulation{p: p, rng: rand.New(rand.NewPCG(seed, 1)), epochs: epochs, cuts: newCuts(p), cells: make(map[cellAt]cell)}
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
			s.fill(task.Peer, task.Dst, cell{})
		}
		return true, nil
	}
	r.running[c.role] = append(r.running[c.role][:c.slot], r.running[c.role][c.slot+1:]...)
	r.done++
	var value cell
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
func (s *simulation) value(rank int, epoch uint64, t Task) cell {
	switch t.Kind {
	case Compute:
		a, b := s.holds(rank, t.Src, epoch), s.holds(rank, t.B, epoch)
		k0, k1 := s.cuts.span(t.Src.Cols)
		if int(k1) == len(s.cuts.sorted[t.Src.Cols.Dim])-1 {
			k1 = wholeDepth
		}
		return cell{what: productName(rank, a.what, b.what, k0, k1), epoch: epoch}
	case Reduce:
		var products []string
		for _, r := range t.Srcs {
			products = append(products, strings.SplitAfter(strings.TrimSuffix(s.holds(rank, r, epoch).what, ";"), ";")...)
		}
		for i := range products {
			products[i] = strings.TrimSuffix(products[i], ";") + ";"
		}
		return cell{what: join(products), epoch: epoch}
	}
	return s.holds(rank, t.Src, epoch)
}

// holds is what the first cell of a region holds.
func (s *simulation) holds(rank int, r Region, epoch uint64) cell {
	if b := &s.p.Buffers[r.Buffer]; b.Kind == BufInput {
		if b.Sharded || b.Same {
			return cell{what: b.Name, epoch: epoch}
		}
		return cell{what: fmt.Sprintf("%s.%d", b.Name, rank), epoch: epoch}
	}
	q := s.cuts.rect(r)
	return s.cells[cellAt{int32(rank), int32(r.Buffer), q.r0, q.c0}]
}

// sources checks that a task's operands are whole and of this epoch.
func (s *simulation) sources(rank int, t Task, whole bool) error {
	regions := t.reads(whole)
	epoch := s.ranks[rank].epoch
	for _, r := range regions {
		if s.p.Buffers[r.Buffer].Kind == BufInput {
			continue
		}
		want := s.holds(rank, r, epoch)
		if want.epoch != epoch {
			return fmt.Errorf("%s is of epoch %d", s.p.region(r), want.epoch)
		}
		if err := s.all(rank, r, want); err != nil {
			return err
		}
	}
	return nil
}

func (s *simulation) all(rank int, r Region, want cell) error {
	q := s.cuts.rect(r)
	for row := q.r0; row < q.r1; row++ {
		for col := q.c0; col < q.c1; col++ {
			if got := s.cells[cellAt{int32(rank), int32(r.Buffer), row, col}]; got != want {
				return fmt.Errorf("%s at rank %d holds %+v, want %+v", s.p.region(r), rank, got, want)
			}
		}
	}
	return nil
}

func (s *simulation) fill(rank int, r Region, v cell) {
	q := s.cuts.rect(r)
	for row := q.r0; row < q.r1; row++ {
		for col := q.c0; col < q.c1; col++ {
			s.cells[cellAt{int32(rank), int32(r.Buffer), row, col}] = v
		}
	}
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
				if err := complete(b, got.what, len(s.ranks)); err != nil {
					return fmt.Errorf("rank %d ends epoch %d with a wrong %s: %w", rank, r.epoch, b.Name, err)
				}
			}
		}
		s.fill(rank, whole, cell{})
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
