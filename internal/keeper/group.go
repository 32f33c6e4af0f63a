package keeper

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/stdio"
)

// ErrKeeperLost is wrapped by Wait's error when the keeper died before its ranks. All of them, and what was
// below them, have been killed.
var ErrKeeperLost = errors.New("the keeper process died")

// Group is the ranks of one Start. Its methods are safe from any goroutine.
type Group struct {
	spec    Spec
	cmd     *exec.Cmd
	control *os.File
	ranks   map[int]*rankOutput // by rank
	events  chan Event
	done    chan struct{} // closed when nothing is left
	err     error         // of Wait; set before done is closed

	sendMu sync.Mutex
	sender *gob.Encoder

	patience time.Duration // that a keeper gets to end everything before it is itself killed
	hurryMu  sync.Mutex
	hurryAt  time.Time
	hurry    *time.Timer
}

// keeperPatience is more than a keeper that works needs to find out that something cannot be killed.
const keeperPatience = freezeLimit + killLimit + 2*time.Second

// rankOutput is the reading side of one rank's two streams.
type rankOutput struct {
	pumps   []*stdio.Pump
	tail    *stdio.Tail
	drained sync.WaitGroup // both pumps ended
}

// keepers are the live keepers of this process: what is below them is not for a sweep after another
// keeper's death. Held while a keeper is started and during a sweep, so that neither sees half of the other.
var keepers = struct {
	sync.Mutex
	pids map[int]bool
}{pids: map[int]bool{}}

// Start starts a keeper with the ranks of spec and makes the calling process a subreaper. It returns when
// the keeper process runs; how the ranks fare is told by Events. When ctx ends, the group is stopped with spec.Grace.
func Start(ctx context.Context, spec Spec, sink Sink) (*Group, error) {
	if len(spec.Ranks) == 0 {
		return nil, errors.New("start ranks: none given")
	}
	if err := BecomeSubreaper(); err != nil {
		return nil, err
	}
	g := &Group{
		spec:   spec,
		ranks:  map[int]*rankOutput{},
		events: make(chan Event, 2*len(spec.Ranks)), // all there can be: nobody waits for a reader
		done:   make(chan struct{}),

		patience: keeperPatience,
	}
	start, err := g.launchKeeper(sink)
	if err != nil {
		return nil, fmt.Errorf("start the keeper %s: %w", spec.Self, err)
	}
	for _, r := range g.ranks {
		for _, p := range r.pumps {
			r.drained.Go(func() {
				if err := p.Run(); err != nil {
					// The pipe is closed now; the rank sees that.
					r.tail.Write([]byte("mkrun: " + err.Error() + "\n"))
				}
			})
		}
	}
	g.send(command{Kind: cmdLaunch, Launch: start})
	unhook := context.AfterFunc(ctx, func() { g.Stop(spec.Grace) })
	go func() {
		defer unhook()
		g.run()
	}()
	return g, nil
}

// launchKeeper makes the pipes, starts the keeper process and returns what to send it.
func (g *Group) launchKeeper(sink Sink) (start launch, err error) {
	var theirs, ours []*os.File // closed here once the keeper has them; on failure
	defer func() {
		closeAll(theirs)
		if err != nil {
			closeAll(ours)
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return launch{}, fmt.Errorf("make a socket: %w", err)
	}
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "control"))
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return launch{}, errors.Join(err, unix.Close(pair[0]))
	}
	g.control = os.NewFile(uintptr(pair[0]), "control")
	ours = append(ours, g.control)

	files := []*os.File{theirs[0]}
	inherit := func(f *os.File) (fd int) {
		files = append(files, f)
		return controlFD + len(files) - 1
	}
	start = launch{Job: g.spec.Job, Generation: g.spec.Generation, AbortGrace: g.spec.AbortGrace}
	for _, spec := range g.spec.Ranks {
		if g.ranks[spec.Rank] != nil {
			return launch{}, fmt.Errorf("rank %d is given twice", spec.Rank)
		}
		w := wireRank{Rank: spec.Rank, Argv: spec.Argv, Env: spec.Env, Dir: spec.Dir, Stdin: -1, CPUs: spec.CPUs}
		out := &rankOutput{tail: stdio.NewTail(g.spec.LastLines)}
		for _, stream := range []stdio.Stream{stdio.Stdout, stdio.Stderr} {
			r, spare, wr, err := pipe()
			if err != nil {
				return launch{}, fmt.Errorf("make a pipe for rank %d: %w", spec.Rank, err)
			}
			ours, theirs = append(ours, r), append(theirs, spare, wr)
			w.Readers = append(w.Readers, inherit(spare))
			emit := func(data []byte, at time.Time) { sink.Output(spec.Rank, stream, data, at) }
			if stream == stdio.Stdout {
				w.Stdout = inherit(wr)
				out.pumps = append(out.pumps, stdio.NewPump(r, emit, nil))
			} else {
				w.Stderr = inherit(wr)
				out.pumps = append(out.pumps, stdio.NewPump(r, emit, out.tail))
			}
		}
		if spec.Stdin != nil {
			w.Stdin = inherit(spec.Stdin)
		}
		for _, f := range spec.Files {
			w.Files = append(w.Files, inherit(f))
		}
		g.ranks[spec.Rank] = out
		start.Ranks = append(start.Ranks, w)
	}

	g.cmd = &exec.Cmd{
		Path:       g.spec.Self,
		Args:       []string{processName, CommandName},
		Stderr:     os.Stderr,
		ExtraFiles: files,
		// A session of its own: see the package comment. It also keeps the terminal's signals away from ranks.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	keepers.Lock()
	defer keepers.Unlock()
	if err := g.cmd.Start(); err != nil {
		return launch{}, err
	}
	keepers.pids[g.cmd.Process.Pid] = true
	g.sender = gob.NewEncoder(g.control)
	return start, nil
}

// pipe makes a pipe whose reading end has deadlines and whose writing end blocks, as programs expect; spare is
// a second descriptor of the reading end, to be passed on.
func pipe() (r, spare, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, nil, err
	}
	w = os.NewFile(uintptr(fds[1]), "|1")
	again, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, nil, errors.Join(err, unix.Close(fds[0]), w.Close())
	}
	// Only a file that was made blocking is passed on as it is; os/exec makes others blocking, and all its
	// descriptors with it.
	spare = os.NewFile(uintptr(again), "|0")
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, nil, errors.Join(err, unix.Close(fds[0]), spare.Close(), w.Close())
	}
	return os.NewFile(uintptr(fds[0]), "|0"), spare, w, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing was written through it
	}
}

// Events gives every rank's Started and then its Exited, and is closed after the last.
func (g *Group) Events() <-chan Event { return g.events }

// Signal sends a signal to the process groups of the given ranks, or of all if none is given. Ranks that
// ended are passed over.
func (g *Group) Signal(sig syscall.Signal, ranks ...int) error {
	for _, rank := range ranks {
		if g.ranks[rank] == nil {
			return fmt.Errorf("send signal %d: rank %d is not on this node", int(sig), rank)
		}
	}
	g.send(command{Kind: cmdSignal, Signal: int(sig), Ranks: ranks})
	return nil
}

// Stop sends SIGTERM to all ranks and, after the grace, kills them and everything below them. It does not wait.
// A keeper that does not obey, as one that somebody stopped, is killed, and the caller's process does its work.
func (g *Group) Stop(grace time.Duration) {
	g.expectEnd(max(grace, 0) + g.patience)
	g.send(command{Kind: cmdStop, Grace: grace})
}

// Kill kills all ranks and everything below them at once. It does not wait.
func (g *Group) Kill() {
	g.expectEnd(g.patience)
	g.send(command{Kind: cmdKill})
}

// expectEnd kills the keeper if it is still there after a time; of several the earliest counts.
func (g *Group) expectEnd(within time.Duration) {
	g.hurryMu.Lock()
	defer g.hurryMu.Unlock()
	at := time.Now().Add(within)
	if g.hurry != nil {
		if !at.Before(g.hurryAt) {
			return
		}
		g.hurry.Stop()
	}
	// The error would be that it has ended.
	g.hurryAt, g.hurry = at, time.AfterFunc(within, func() { _ = g.cmd.Process.Kill() })
}

// ended stops the clock of expectEnd.
func (g *Group) ended() {
	g.hurryMu.Lock()
	defer g.hurryMu.Unlock()
	if g.hurry != nil {
		g.hurry.Stop()
	}
}

// Wait returns when no process is left and all output and events were delivered. The error tells of a lost
// keeper or of processes that could not be killed, not of ranks that failed.
func (g *Group) Wait() error {
	<-g.done
	return g.err
}

func (g *Group) send(c command) {
	g.sendMu.Lock()
	defer g.sendMu.Unlock()
	// A keeper that is gone needs no command; run deals with its end.
	_ = g.sender.Encode(c)
}

// run follows the keeper to its end.
func (g *Group) run() {
	defer close(g.done)
	defer close(g.events)
	defer g.ended()
	var (
		pids       = map[int]int{} // pid -> rank, of those started
		exited     = map[int]bool{}
		deliveries sync.WaitGroup
		last       sync.WaitGroup
		finished   bool
		left       []Process
	)
	exit := func(r report) {
		exited[r.Rank] = true
		deliveries.Go(func() { g.deliver(r) })
	}

	decoder := gob.NewDecoder(g.control)
	for {
		var r report
		if decoder.Decode(&r) != nil {
			break // the keeper has ended, or must: it sees the socket close
		}
		switch r.Kind {
		case repStarted:
			pids[r.PID] = r.Rank
			g.events <- Started{Rank: r.Rank, PID: r.PID, At: time.Unix(0, r.UnixNano)}
		case repExited:
			exit(r)
			if len(exited) == len(g.ranks) {
				// What is left now has had its chance to finish writing.
				last.Go(func() {
					deliveries.Wait()
					g.Kill()
				})
			}
		case repDone:
			finished, left = true, r.Left
		}
	}
	_ = g.control.Close()
	waitErr := g.cmd.Wait()
	keepers.Lock()
	delete(keepers.pids, g.cmd.Process.Pid)
	keepers.Unlock()
	if !finished {
		var err error
		left, err = g.afterKeeper(pids, exited, exit, waitErr)
		g.err = errors.Join(fmt.Errorf("%w (pid %d: %s)", ErrKeeperLost, g.cmd.Process.Pid, exitText(waitErr)), err)
	}
	deliveries.Wait()
	last.Wait()
	if len(left) > 0 {
		g.err = errors.Join(g.err, fmt.Errorf("processes that could not be killed: %v", left))
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// afterKeeper kills what a dead keeper left, which is now below this process, and reports the ranks' ends.
func (g *Group) afterKeeper(pids map[int]int, exited map[int]bool, exit func(report), cause error) ([]Process, error) {
	keepers.Lock()
	defer keepers.Unlock()
	left, err := killOrphans(func(pid int) bool { return keepers.pids[pid] }, func(pid int, status syscall.WaitStatus) {
		if rank, ok := pids[pid]; ok && !exited[rank] {
			exit(exitReport(rank, status, true))
		}
	})
	started := map[int]bool{}
	for _, rank := range pids {
		started[rank] = true
	}
	for rank := range g.ranks {
		switch {
		case exited[rank]:
		case started[rank]:
			exit(report{Rank: rank, Signal: int(syscall.SIGKILL), KilledByUs: true})
		default:
			exit(report{Rank: rank, Code: stdio.StatusLauncher, KilledByUs: true,
				ExecError: fmt.Sprintf("not started: %v (%v)", ErrKeeperLost, exitText(cause))})
		}
	}
	return left, err
}

// deliver reports a rank's end when all of its output has gone to the sink.
func (g *Group) deliver(r report) {
	out := g.ranks[r.Rank]
	limit := DrainLimit
	if r.Code != 0 || r.Signal != 0 {
		limit = FailedDrainLimit
	}
	by := time.Now().Add(limit)
	for _, p := range out.pumps {
		p.Drain(by)
	}
	out.drained.Wait()
	g.events <- Exited{
		Rank: r.Rank, Code: r.Code, Signal: syscall.Signal(r.Signal), CoreDumped: r.CoreDumped,
		ExecError: r.ExecError, KilledByUs: r.KilledByUs, LastLines: out.tail.Lines(),
	}
}
