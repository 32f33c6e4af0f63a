package keeper

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// ErrKeeperLost is wrapped by Wait's error when the keeper died before its ranks. All of them, and what was
// below them, have been killed.
var ErrKeeperLost = errors.New("the keeper process died")

// Group is the ranks of one Start. Its methods are safe from any goroutine.
type Group struct {
	spec   Spec
	sink   Sink
	keeper *Spare
	ranks  map[int]*rankOutput // by rank
	events chan Event
	done   chan struct{} // closed when nothing is left
	err    error         // of Wait; set before done is closed

	watch  *watchdog.Watchdog     // of the keeper; may be nil
	silent atomic.Pointer[string] // why the watch killed the keeper

	sendMu sync.Mutex
	sender *gob.Encoder

	patience    time.Duration // that a keeper gets to end everything before it is itself killed
	hurryMu     sync.Mutex
	hurryAt     time.Time     // when that is over; zero while nobody wants an end
	keeperEnded chan struct{} // closed when its end was seen
}

// keeperPatience is more than a keeper that works needs to find out that something cannot be killed.
const keeperPatience = freezeLimit + killLimit + 2*time.Second

// rankOutput is the reading side of one rank's two streams.
type rankOutput struct {
	pumps   []*stdio.Pump
	tail    *stdio.Tail
	drained sync.WaitGroup // both pumps ended
}

// Start gives the ranks of spec to a keeper and makes the calling process a subreaper. How the ranks fare is told by
// Events. When ctx ends, the group is stopped with spec.Grace.
func Start(ctx context.Context, spec Spec, sink Sink) (*Group, error) {
	if len(spec.Ranks) == 0 {
		return nil, errors.New("start ranks: none given")
	}
	if err := BecomeSubreaper(); err != nil {
		return nil, err
	}
	g := &Group{
		spec:   spec,
		sink:   sink,
		ranks:  map[int]*rankOutput{},
		events: make(chan Event, 2*len(spec.Ranks)), // all there can be: nobody waits for a reader
		done:   make(chan struct{}),

		patience:    keeperPatience,
		keeperEnded: make(chan struct{}),
	}
	start, files, err := g.openFiles()
	if err != nil {
		return nil, err
	}
	defer closeAll(files.theirs)
	if g.keeper, err = spec.Keeper.orPrepare(spec.Self); err != nil {
		closeAll(files.ours)
		return nil, err
	}
	g.sender = g.keeper.sender
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
	endWatch := g.watchKeeper() // from here on: it may be stopped before it takes the ranks
	unhook := context.AfterFunc(ctx, func() { g.Stop(spec.Grace) })
	go func() {
		defer unhook()
		g.run(endWatch)
	}()
	g.launch(start, files.passed)
	return g, nil
}

// groupFiles are the files that the ranks get, or whose other ends they get.
type groupFiles struct {
	ours   []*os.File // the pumps'
	theirs []*os.File // made here for the keeper; closed here once it has them
	passed []*os.File // to the keeper: theirs and the caller's
}

// pass returns the place of a file among those that are passed.
func (f *groupFiles) pass(file *os.File) int {
	f.passed = append(f.passed, file)
	return len(f.passed) - 1
}

// openFiles makes the ranks' pipes, and what to send the keeper.
func (g *Group) openFiles() (start launch, files groupFiles, err error) {
	defer func() {
		if err != nil {
			closeAll(files.theirs)
			closeAll(files.ours)
		}
	}()
	hold := g.spec.Hold
	if hold == 0 {
		hold = stdio.FlushAfter
	}
	start = launch{Job: g.spec.Job, Generation: g.spec.Generation, AbortGrace: g.spec.AbortGrace, Heartbeat: g.spec.Heartbeat, Silence: g.spec.Silence}
	for _, spec := range g.spec.Ranks {
		if g.ranks[spec.Rank] != nil {
			return launch{}, files, fmt.Errorf("rank %d is given twice", spec.Rank)
		}
		w := wireRank{Rank: spec.Rank, Argv: spec.Argv, Env: spec.Env, Dir: spec.Dir, Stdin: -1, CPUs: spec.CPUs}
		out := &rankOutput{tail: stdio.NewTail(g.spec.LastLines)}
		for _, stream := range []stdio.Stream{stdio.Stdout, stdio.Stderr} {
			r, spare, wr, err := pipe()
			if err != nil {
				return launch{}, files, fmt.Errorf("make a pipe for rank %d: %w", spec.Rank, err)
			}
			files.ours, files.theirs = append(files.ours, r), append(files.theirs, spare, wr)
			w.Readers = append(w.Readers, files.pass(spare))
			emit := func(data []byte, at time.Time) { g.sink.Output(spec.Rank, stream, data, at) }
			if stream == stdio.Stdout {
				w.Stdout = files.pass(wr)
				out.pumps = append(out.pumps, stdio.NewPump(r, hold, emit, nil))
			} else {
				w.Stderr = files.pass(wr)
				out.pumps = append(out.pumps, stdio.NewPump(r, hold, emit, out.tail))
			}
		}
		if spec.Stdin != nil {
			w.Stdin = files.pass(spec.Stdin)
		}
		for _, f := range spec.Files {
			w.Files = append(w.Files, files.pass(f))
		}
		g.ranks[spec.Rank] = out
		start.Ranks = append(start.Ranks, w)
	}
	start.Files = len(files.passed)
	return start, files, nil
}

// launch sends the keeper its ranks, and their files before.
func (g *Group) launch(start launch, files []*os.File) {
	for len(files) > 0 {
		n := min(len(files), filesAtOnce)
		g.send(command{Kind: cmdFiles}, files[:n]...)
		files = files[n:]
	}
	g.send(command{Kind: cmdLaunch, Launch: start})
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
	// Only a file that was made blocking is passed on as it is; Fd makes others blocking, and all their
	// descriptors with them.
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
	suspend(g.watch, sig)
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

// keeperLook is how often a keeper that was told to end everything is looked at.
const keeperLook = 250 * time.Millisecond

// expectEnd kills the keeper if it is still there after a time, of several the earliest, or at once if somebody has
// stopped it: then it will not obey.
func (g *Group) expectEnd(within time.Duration) {
	g.hurryMu.Lock()
	defer g.hurryMu.Unlock()
	at := time.Now().Add(within)
	if g.hurryAt.IsZero() {
		g.hurryAt = at
		go g.hurry()
	} else if at.Before(g.hurryAt) {
		g.hurryAt = at
	}
}

func (g *Group) hurry() {
	look := time.NewTicker(min(keeperLook, g.patience))
	defer look.Stop()
	for {
		select {
		case <-g.keeperEnded:
			return
		case <-look.C:
		}
		g.hurryMu.Lock()
		late := time.Since(g.hurryAt)
		g.hurryMu.Unlock()
		pid := g.keeper.cmd.Process.Pid
		p, _ := readProcess(pid)
		if givenUp(p.stopped(), late, g.patience, func() bool { return wantsProcessor(pid) }) {
			_ = g.keeper.cmd.Process.Kill() // the error would be that it has ended
			return
		}
	}
}

// Wait returns when no process is left and all output and events were delivered. The error tells of a lost
// keeper or of processes that could not be killed, not of ranks that failed.
func (g *Group) Wait() error {
	<-g.done
	return g.err
}

// send gives the keeper a command, and files with it.
func (g *Group) send(c command, files ...*os.File) {
	g.sendMu.Lock()
	defer g.sendMu.Unlock()
	g.keeper.wire.attach(files)
	// A keeper that is gone needs no command; run deals with its end.
	_ = g.sender.Encode(c)
}

// run follows the keeper to its end, at which it ends the watch.
func (g *Group) run(endWatch func()) {
	defer close(g.done)
	defer close(g.events)
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

	<-g.keeper.ready
	for {
		var r report
		if g.keeper.decoder.Decode(&r) != nil {
			break // the keeper has ended, or must: it sees the socket close
		}
		g.heard()
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
	waitErr := g.keeper.end()
	close(g.keeperEnded)
	endWatch()
	how := exitText(waitErr)
	if silent := g.silent.Load(); silent != nil {
		how = *silent
	}
	if !finished {
		var err error
		left, err = g.afterKeeper(pids, exited, exit, how)
		g.err = errors.Join(fmt.Errorf("%w (pid %d: %s)", ErrKeeperLost, g.keeper.cmd.Process.Pid, how), err)
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
func (g *Group) afterKeeper(pids map[int]int, exited map[int]bool, exit func(report), how string) ([]Process, error) {
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
				ExecError: fmt.Sprintf("not started: %v (%s)", ErrKeeperLost, how)})
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
	g.sink.Ended(r.Rank, by)
	out.drained.Wait()
	g.events <- Exited{
		Rank: r.Rank, Code: r.Code, Signal: syscall.Signal(r.Signal), CoreDumped: r.CoreDumped,
		ExecError: r.ExecError, KilledByUs: r.KilledByUs, LastLines: out.tail.Lines(),
	}
}
