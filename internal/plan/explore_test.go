package plan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// explorer runs a tiny plan in every possible order. It knows nothing of the verifier's reasoning: it executes tasks
// in small steps (begin, end, deliver), looks at what is in memory and raises flags, and reports the first thing that
// goes wrong on any path, or that nothing does.
//
// A step of a task begins when its waits are satisfied, and its role's tickets have come to it. From then to its end
// (of a Send: until it is delivered) its destination holds garbage and may not be touched, nor its sources be
// written. With one worker per role a task begins after the one before it has ended; with any number, whenever it can.
type explorer struct {
	p       *Plan
	cuts    *cuts
	words   words
	node    []int
	epochs  int
	single  bool // one worker per role; else as many as there are tasks
	tasks   []exTask
	byRank  [][]int // tasks of each rank
	cells   []exCell
	cellID  map[cellAt]int
	flagID  map[Signal]int
	raises  []int // per epoch, of each flag
	names   map[string]uint16
	texts   []string
	loads   [][]uint16 // what tasks write, cell by cell
	loadID  map[string]uint16
	visited map[string]struct{}
	limit   int
}

// exTask is a task with what it touches as lists of cells.
type exTask struct {
	rank, before int // before: the task before it in its queue, or -1
	task         *Task
	reads        [][]int   // per source
	parts        [][][]int // of a gated product: per step and source
	writes       []int
	follows      []int // tasks that raise the fields that this one waits for
	remote       bool  // something of it is delivered later
}

type exCell struct {
	rank  int
	row   int32
	input BufferID
	isIn  bool
	out   bool
}

// exState is all that can differ. Contents are 0 (garbage) or 1 + index into texts.
type exState struct {
	epoch  []byte // of each rank, epochs+1 when it is over
	status []byte // of each task: 0 not begun, 1 running, 2 done, 3+i running and to pass the gates of step i
	flags  []byte
	cells  []uint16
	flying []uint16 // by task and epoch: what is on its way, 0 if nothing; else 1 + index into loads
}

func (s *exState) key() string {
	b := make([]byte, 0, len(s.epoch)+len(s.status)+len(s.flags)+2*len(s.cells)+2*len(s.flying))
	b = append(append(append(b, s.epoch...), s.status...), s.flags...)
	for _, c := range s.cells {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	for _, c := range s.flying {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return string(b)
}

func (s *exState) clone() *exState {
	return &exState{slices.Clone(s.epoch), slices.Clone(s.status), slices.Clone(s.flags), slices.Clone(s.cells), slices.Clone(s.flying)}
}

var errTooLarge = errors.New("too many states")

// explore returns what can go wrong in a valid plan, errTooLarge, or nil.
func explore(p *Plan, epochs, limit int) (states int, err error) {
	for _, single := range []bool{true, false} {
		e := newExplorer(p, epochs, single, limit)
		err := e.run()
		states += len(e.visited)
		if err != nil {
			return states, err
		}
	}
	return states, nil
}

func newExplorer(p *Plan, epochs int, single bool, limit int) *explorer {
	e := &explorer{
		p: p, epochs: epochs, single: single, limit: limit, cellID: make(map[cellAt]int),
		flagID: make(map[Signal]int), names: make(map[string]uint16), visited: make(map[string]struct{}), texts: []string{""},
		loadID: make(map[string]uint16),
	}
	e.cuts = newCuts(p)
	e.words = words{p, e.cuts}
	for node, n := range p.World.PPN {
		for range n {
			e.node = append(e.node, node)
			e.byRank = append(e.byRank, nil)
		}
	}
	flag := func(s Signal) int {
		id, ok := e.flagID[s]
		if !ok {
			id = len(e.raises)
			e.flagID[s] = id
			e.raises = append(e.raises, 0)
		}
		return id
	}
	for rank := range p.Ranks {
		for _, queue := range p.Ranks[rank].Queues {
			for i := range queue {
				t := &queue[i]
				x := exTask{rank: rank, before: -1, task: t, remote: t.Kind == Send}
				if i > 0 {
					x.before = len(e.tasks) - 1
				}
				for _, src := range t.sources() {
					x.reads = append(x.reads, e.region(rank, src))
				}
				if t.Kind == Compute {
					x.reads = append(x.reads, e.region(rank, t.B))
				}
				for step := range t.Steps {
					x.parts = append(x.parts, [][]int{e.region(rank, t.depthPart(t.Src, step)), e.region(rank, t.depthPart(t.B, step))})
				}
				if t.Kind != Notify {
					x.writes = e.region(t.Peer, t.Dst)
				}
				for _, s := range t.Signals {
					e.raises[flag(s)]++
					x.remote = x.remote || e.node[s.Rank] != e.node[rank]
				}
				for _, w := range t.Waits {
					flag(Signal{rank, w.Flag})
				}
				e.byRank[rank] = append(e.byRank[rank], len(e.tasks))
				e.tasks = append(e.tasks, x)
			}
		}
	}
	for id := range e.tasks {
		x := &e.tasks[id]
		for _, w := range x.task.Waits {
			if p.Flags[w.Flag].Field == nil {
				continue
			}
			for other := range e.tasks {
				if slices.Contains(e.tasks[other].task.Signals, Signal{x.rank, w.Flag}) {
					x.follows = append(x.follows, other)
				}
			}
		}
	}
	for rank := range p.Ranks { // results that nobody writes have cells, too
		for id := range p.Buffers {
			if b := &p.Buffers[id]; b.Kind == BufOutput {
				e.region(rank, Region{BufferID(id), b.RowSpan(rank, len(p.Ranks)), All(b.Cols)})
			}
		}
	}
	return e
}

func (e *explorer) region(rank int, r Region) []int {
	q := e.cuts.rect(r)
	b := &e.p.Buffers[r.Buffer]
	var ids []int
	for row := q.r0; row < q.r1; row++ {
		for col := q.c0; col < q.c1; col++ {
			at := cellAt{int32(rank), int32(r.Buffer), row, col}
			id, ok := e.cellID[at]
			if !ok {
				id = len(e.cells)
				e.cellID[at] = id
				e.cells = append(e.cells, exCell{rank: rank, row: row, input: r.Buffer, isIn: b.Kind == BufInput, out: b.Kind == BufOutput})
			}
			ids = append(ids, id)
		}
	}
	return ids
}

func (e *explorer) content(what string, epoch int) uint16 {
	text := fmt.Sprintf("%d|%s", epoch, what)
	id, ok := e.names[text]
	if !ok {
		id = uint16(len(e.texts))
		e.texts = append(e.texts, text)
		e.names[text] = id
	}
	return id
}

func (e *explorer) run() error {
	start := &exState{
		epoch: make([]byte, len(e.byRank)), status: make([]byte, len(e.tasks)), flags: make([]byte, len(e.raises)),
		cells: make([]uint16, len(e.cells)), flying: make([]uint16, len(e.tasks)*(e.epochs+1)),
	}
	for rank := range start.epoch {
		start.epoch[rank] = 1
		if err := e.finish(start, rank); err != nil {
			return err
		}
	}
	e.visited[start.key()] = struct{}{}
	stack := []*exState{start}
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		next, err := e.step(s)
		if err != nil {
			return err
		}
		if len(next) == 0 {
			for rank, epoch := range s.epoch {
				if int(epoch) <= e.epochs {
					return fmt.Errorf("rank %d never ends epoch %d", rank, epoch)
				}
			}
		}
		for _, n := range next {
			key := n.key()
			if _, ok := e.visited[key]; ok {
				continue
			}
			if len(e.visited) >= e.limit {
				return errTooLarge
			}
			e.visited[key] = struct{}{}
			stack = append(stack, n)
		}
	}
	return nil
}

// step makes all states that can come next.
func (e *explorer) step(s *exState) ([]*exState, error) {
	var next []*exState
	for id := range e.tasks {
		x := &e.tasks[id]
		for epoch := 1; epoch <= e.epochs; epoch++ {
			if s.flying[id*(e.epochs+1)+epoch] != 0 {
				n := s.clone()
				if err := e.deliver(n, id, epoch); err != nil {
					return nil, err
				}
				next = append(next, n)
			}
		}
		if int(s.epoch[x.rank]) > e.epochs {
			continue
		}
		switch s.status[id] {
		case 0:
			if e.single && x.before >= 0 && s.status[x.before] != 2 || !e.follow(s, x) || !e.waited(s, x, 0, false) {
				continue
			}
			n := s.clone()
			if err := e.begin(n, id); err != nil {
				return nil, err
			}
			next = append(next, n)
		case 2:
		case 1:
			if !e.satisfied(s, x, allSteps) { // it still follows a field
				continue
			}
			n := s.clone()
			if err := e.end(n, id); err != nil {
				return nil, err
			}
			next = append(next, n)
		default:
			if step := s.status[id] - 3; e.waited(s, x, uint32(step), false) {
				n := s.clone()
				if err := e.beginRead(n, id, x.parts[step]); err != nil {
					return nil, err
				}
				if n.status[id]++; int(step)+1 == len(x.parts) {
					if err := e.write(n, id); err != nil {
						return nil, err
					}
					n.status[id] = 1
				}
				next = append(next, n)
			}
		}
	}
	return next, nil
}

// follow reports whether the writers of all fields that a task waits for have begun, so that it may begin, too.
func (e *explorer) follow(s *exState, x *exTask) bool {
	for _, w := range x.follows {
		if y := &e.tasks[w]; s.epoch[y.rank] < s.epoch[x.rank] || s.epoch[y.rank] == s.epoch[x.rank] && s.status[w] == 0 {
			return false
		}
	}
	return true
}

func (e *explorer) satisfied(s *exState, x *exTask, step uint32) bool {
	return e.waited(s, x, step, true)
}

// waited reports whether the waits up to a step are over, those for fields included or not.
func (e *explorer) waited(s *exState, x *exTask, step uint32, fields bool) bool {
	for _, w := range upTo(x.task.Waits, step) {
		if !fields && e.p.Flags[w.Flag].Field != nil {
			continue
		}
		if uint64(s.flags[e.flagID[Signal{x.rank, w.Flag}]]) < w.Target(uint64(s.epoch[x.rank])) {
			return false
		}
	}
	return true
}

func (e *explorer) fail(x *exTask, epoch byte, format string, args ...any) error {
	return fmt.Errorf("rank %d (%s) in epoch %d: %s", x.rank, e.p.Describe(*x.task), epoch, fmt.Sprintf(format, args...))
}

func common(a, b []int) bool {
	return slices.ContainsFunc(a, func(c int) bool { return slices.Contains(b, c) })
}

// begin checks that nobody uses what the task writes, nor writes what it reads, and that its sources are right.
func (e *explorer) begin(s *exState, id int) error {
	x := &e.tasks[id]
	if len(x.parts) > 1 {
		s.status[id] = 4
		return e.beginRead(s, id, x.parts[0])
	}
	s.status[id] = 1
	if err := e.beginRead(s, id, x.reads); err != nil {
		return err
	}
	return e.write(s, id)
}

// beginRead checks what a task begins to read. What it follows a field over is read block by block, in whatever parts of
// the depth, when its writer has written it: that is seen at the end.
func (e *explorer) beginRead(s *exState, id int, what [][]int) error {
	if len(e.tasks[id].follows) > 0 {
		return nil
	}
	return e.read(s, id, what)
}

// busy is what another task reads and writes now.
func (e *explorer) busy(s *exState, other int) (reads [][]int, writes []int) {
	y := &e.tasks[other]
	for ep := 1; ep <= e.epochs; ep++ {
		if s.flying[other*(e.epochs+1)+ep] != 0 && y.task.Kind == Send {
			writes = y.writes
		}
	}
	switch st := s.status[other]; {
	case st == 1:
		return y.reads, y.writes
	case st > 2:
		for _, part := range y.parts[:st-3] {
			reads = append(reads, part...)
		}
	}
	return reads, writes
}

func (e *explorer) read(s *exState, id int, what [][]int) error {
	x := &e.tasks[id]
	for other := range e.tasks {
		_, writes := e.busy(s, other)
		for _, r := range what {
			if other != id && common(r, writes) {
				return e.fail(x, s.epoch[x.rank], "%s of rank %d is writing what it reads", e.p.Describe(*e.tasks[other].task), e.tasks[other].rank)
			}
		}
	}
	_, err := e.sources(s, x, what)
	return err
}

func (e *explorer) write(s *exState, id int) error {
	x := &e.tasks[id]
	for other := range e.tasks {
		reads, writes := e.busy(s, other)
		if other == id { // what it sent in the epoch before may still be on its way
			reads = nil
			if x.task.Kind != Send || s.flying[id*(e.epochs+1)+int(s.epoch[x.rank])-1] == 0 {
				continue
			}
		}
		y := &e.tasks[other]
		if common(x.writes, writes) {
			return e.fail(x, s.epoch[x.rank], "it and %s of rank %d write the same", e.p.Describe(*y.task), y.rank)
		}
		for _, r := range reads {
			if common(x.writes, r) {
				return e.fail(x, s.epoch[x.rank], "%s of rank %d is reading what it writes", e.p.Describe(*y.task), y.rank)
			}
		}
	}
	for _, c := range x.writes {
		s.cells[c] = 0
	}
	return nil
}

// sources are the names of what the task reads, cell by cell.
func (e *explorer) sources(s *exState, x *exTask, reads [][]int) ([][]string, error) {
	epoch := s.epoch[x.rank]
	var names [][]string
	for _, cells := range reads {
		var here []string
		for _, c := range cells {
			if e.cells[c].isIn {
				here = append(here, e.words.input(e.cells[c].input, x.rank))
				continue
			}
			of, name, _ := strings.Cut(e.texts[s.cells[c]], "|")
			if of != fmt.Sprint(epoch) {
				return nil, e.fail(x, epoch, "a source holds %q", e.texts[s.cells[c]])
			}
			here = append(here, name)
		}
		names = append(names, here)
	}
	return names, nil
}

// load numbers what a task writes.
func (e *explorer) load(cells []uint16) uint16 {
	key := fmt.Sprint(cells)
	id, ok := e.loadID[key]
	if !ok {
		e.loads = append(e.loads, cells)
		id = uint16(len(e.loads))
		e.loadID[key] = id
	}
	return id
}

func (e *explorer) end(s *exState, id int) error {
	x := &e.tasks[id]
	epoch := s.epoch[x.rank]
	var made []uint16
	if x.task.Kind != Notify {
		if len(x.follows) > 0 {
			if err := e.read(s, id, x.reads); err != nil {
				return err
			}
		}
		names, err := e.sources(s, x, x.reads)
		if err != nil {
			return err
		}
		for _, name := range e.words.made(x.task, names) {
			made = append(made, e.content(name, int(epoch)))
		}
	}
	s.status[id] = 2
	if x.task.Kind != Send {
		for i, c := range x.writes {
			s.cells[c] = made[i]
		}
	}
	for _, sig := range x.task.Signals {
		if e.node[sig.Rank] == e.node[x.rank] {
			if err := e.raise(s, x, sig, int(epoch)); err != nil {
				return err
			}
		}
	}
	if x.remote {
		s.flying[id*(e.epochs+1)+int(epoch)] = e.load(made)
	}
	return e.finish(s, x.rank)
}

func (e *explorer) deliver(s *exState, id, epoch int) error {
	x := &e.tasks[id]
	at := id*(e.epochs+1) + epoch
	if x.task.Kind == Send {
		for i, c := range x.writes {
			s.cells[c] = e.loads[s.flying[at]-1][i]
		}
	}
	s.flying[at] = 0
	for _, sig := range x.task.Signals {
		if e.node[sig.Rank] != e.node[x.rank] {
			if err := e.raise(s, x, sig, epoch); err != nil {
				return err
			}
		}
	}
	return nil
}

// raise holds flags to their rules: a stamp only grows; a counter counts one epoch at a time.
func (e *explorer) raise(s *exState, x *exTask, sig Signal, epoch int) error {
	f := &s.flags[e.flagID[sig]]
	name := e.p.flagName(sig.Flag)
	if e.p.flagKind(sig.Flag) == Stamp {
		if int(*f) >= epoch {
			return e.fail(x, byte(epoch), "the stamp %q of rank %d already is %d", name, sig.Rank, *f)
		}
		*f = byte(epoch)
		return nil
	}
	if n := e.raises[e.flagID[sig]]; int(*f) < n*(epoch-1) {
		return e.fail(x, byte(epoch), "the counter %q of rank %d is %d, so not all of the epoch before have added", name, sig.Rank, *f)
	}
	*f++
	return nil
}

// finish ends a rank's epoch when its tasks are done: the caller looks at the results, and they are nobody's then.
func (e *explorer) finish(s *exState, rank int) error {
	for int(s.epoch[rank]) <= e.epochs {
		for _, id := range e.byRank[rank] {
			if s.status[id] != 2 {
				return nil
			}
		}
		epoch := s.epoch[rank]
		for c, cell := range e.cells {
			if !cell.out || cell.rank != rank {
				continue
			}
			of, what, _ := strings.Cut(e.texts[s.cells[c]], "|")
			b := &e.p.Buffers[cell.input]
			if of != fmt.Sprint(epoch) {
				return fmt.Errorf("rank %d ends epoch %d with %q in %s", rank, epoch, e.texts[s.cells[c]], b.Name)
			}
			if want := e.words.wanted(b.Name, rank, cell.row); what != want {
				return fmt.Errorf("rank %d ends epoch %d with %s in %s, want %s", rank, epoch, what, b.Name, want)
			}
			s.cells[c] = 0
		}
		s.epoch[rank]++
		for _, id := range e.byRank[rank] {
			s.status[id] = 0
		}
	}
	return nil
}
