package keeper

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// ProcessName is what ps, pkill and killall see of a keeper. It is not the agent's, so that a `pkill -9 mkrun` leaves the
// keeper alive to clean up.
const ProcessName = "rank-keeper"

// Main is the body of the keeper process: it starts the ranks its agent sends and stays until nothing below
// it is left. It returns the exit status of the process, which nobody but a person running it by hand looks
// at. The end of ctx kills everything, like the death of the agent.
func Main(ctx context.Context) int {
	// Ranks are killed when the thread that started them ends (PDEATHSIG): keep all of it on one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	if err := prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "mkrun keeper: %v\n", err)
		return stdio.StatusLauncher
	}
	k := &keeper{
		children: make(chan os.Signal, 1),
		signals:  make(chan os.Signal, 16),
		heard:    heard{},
		commands: make(chan command, commandsWaiting),
		silent:   make(chan struct{}),
	}
	Withstand(k.signals)
	defer signal.Stop(k.signals)
	signal.Notify(k.children, syscall.SIGCHLD) // before the first start, so that no exit is missed
	defer signal.Stop(k.children)
	control := os.NewFile(controlFD, "control")
	defer control.Close()
	k.reports = gob.NewEncoder(control)
	wire := &receiver{fd: controlFD}
	go func() {
		defer close(k.commands)
		var agent *watchdog.Watchdog
		for decoder := gob.NewDecoder(wire); ; {
			var c command
			if decoder.Decode(&c) != nil {
				return // the agent is gone
			}
			if agent != nil {
				agent.Alive()
			}
			switch c.Kind {
			case cmdReady:
				// Both ends have now built what (de)codes these messages, before anybody waits for it.
				k.report(report{Kind: repReady})
				continue
			case cmdFiles:
				continue
			case cmdAsk:
				k.report(report{Kind: repAlive})
				continue
			case cmdLaunch:
				c.Launch.take(wire)
				agent = k.watchAgent(c.Launch)
			case cmdSignal:
				suspend(agent, syscall.Signal(c.Signal))
			}
			k.commands <- c
		}
	}()

	first, ok := <-k.commands
	if !ok || first.Kind != cmdLaunch {
		return stdio.StatusLauncher
	}
	k.launch = first.Launch
	k.start()
	k.supervise(ctx)
	k.report(report{Kind: repDone, Left: k.left})
	return 0
}

// prepare makes the process fit to be a keeper.
func prepare() error {
	if t, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || t != unix.SOCK_STREAM {
		return errors.New("this command is started by mkrun's agent, not by people")
	}
	if err := BecomeSubreaper(); err != nil {
		return err
	}
	// Ranks get the descriptors they are given and no others, whatever the agent was started with.
	if err := unix.CloseRange(controlFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("mark descriptors close-on-exec: %w", err)
	}
	if err := RaiseLimits(); err != nil {
		return err
	}
	// Only for the eyes of people.
	_ = os.WriteFile("/proc/self/comm", []byte(ProcessName), 0)
	return nil
}

// commandsWaiting is how many orders may wait while the keeper kills: meanwhile it says that it lives.
const commandsWaiting = 16

// keeper is the state of the process. Only its main goroutine touches it.
type keeper struct {
	launch   launch
	ranks    []rankState // parallel to launch.Ranks
	children chan os.Signal
	signals  chan os.Signal // that this process was sent
	heard    heard
	commands chan command
	silent   chan struct{} // closed when the agent says nothing any more
	reports  *gob.Encoder

	alone  bool      // without the agent
	ending bool      // ranks were told to end: those that do so from now on were ended by us
	killed bool      // and SIGKILL was sent
	killAt time.Time // of kill
	kill   <-chan time.Time
	left   []Process // could not be killed
}

type rankState struct {
	pid    int // 0: not started
	exited bool
}

func (k *keeper) report(r report) {
	// An agent that is gone closes the commands too, and that is where it is dealt with.
	_ = k.reports.Encode(r)
}

// start starts all ranks, or none: what cannot be started is reported before anything is called started.
func (k *keeper) start() {
	wires := k.launch.Ranks
	k.ranks = make([]rankState, len(wires))
	paths := make([]string, len(wires))
	failed := -1
	fail := func(i int, e *execError) {
		if failed < 0 {
			failed = i
		}
		k.ranks[i].exited = true
		k.report(report{Kind: repExited, Rank: wires[i].Rank, Code: e.status, ExecError: e.text})
	}

	for i, w := range wires {
		path, e := resolve(w)
		if e != nil {
			fail(i, e)
		}
		paths[i] = path
	}
	if k.launch.Files < 0 && failed < 0 {
		fail(0, &execError{stdio.StatusLauncher, "not all files of the ranks could be passed on: more than may be open (ulimit -n)"})
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil && failed < 0 {
		fail(0, &execError{stdio.StatusLauncher, fmt.Sprintf("open %s: %v", os.DevNull, err)})
	}
	started := make([]time.Time, len(wires))
	for i, w := range wires {
		if failed >= 0 {
			break
		}
		pid, e := spawn(paths[i], w, null)
		if e != nil {
			fail(i, e)
			break
		}
		k.ranks[i].pid, started[i] = pid, time.Now()
	}
	// The agent must see the end of a rank's output when the rank and its children are gone.
	_ = unix.Close(null)
	for _, w := range wires {
		for _, fd := range w.descriptors() {
			_ = unix.Close(fd)
		}
	}

	if failed < 0 {
		for i, r := range k.ranks {
			k.report(report{Kind: repStarted, Rank: wires[i].Rank, PID: r.pid, UnixNano: started[i].UnixNano()})
		}
		return
	}
	k.ending = true
	for i, r := range k.ranks {
		if r.pid == 0 && !r.exited {
			k.ranks[i].exited = true
			k.report(report{Kind: repExited, Rank: wires[i].Rank, Code: stdio.StatusLauncher, KilledByUs: true,
				ExecError: fmt.Sprintf("not started, because rank %d could not be", wires[failed].Rank)})
		}
	}
	k.killAll()
}

// supervise returns when no process is left below the keeper, or only such as cannot be killed.
func (k *keeper) supervise(ctx context.Context) {
	cancelled, silent := ctx.Done(), k.silent
	for !k.reap() && len(k.left) == 0 {
		select {
		case <-k.children:
		case sig := <-k.signals:
			k.heard.note(sig, time.Now())
		case c, ok := <-k.commands:
			if ok {
				k.obey(c)
				continue
			}
			k.commands = nil
			k.agentGone()
		case <-silent:
			silent = nil
			k.agentGone()
		case <-k.kill:
			k.killAll()
		case <-cancelled:
			cancelled = nil
			k.killAll()
		}
	}
}

// agentGone ends the ranks of an agent that is dead or stopped, and reads their output in its place, so that they can end
// in order instead of by SIGPIPE, or block.
func (k *keeper) agentGone() {
	if k.alone {
		return
	}
	k.alone = true
	for _, w := range k.launch.Ranks {
		for _, fd := range w.Readers {
			go func() { _, _ = io.Copy(io.Discard, os.NewFile(uintptr(fd), "output")) }()
		}
	}
	k.stop(k.launch.AbortGrace)
}

func (k *keeper) obey(c command) {
	switch c.Kind {
	case cmdSignal:
		wanted := map[int]bool{}
		for _, rank := range c.Ranks {
			wanted[rank] = true
		}
		now := time.Now()
		if k.heard.take(k.signals, now); k.heard.had(syscall.Signal(c.Signal), now) {
			return
		}
		k.signal(syscall.Signal(c.Signal), func(rank int) bool { return len(c.Ranks) == 0 || wanted[rank] })
	case cmdStop:
		k.stop(c.Grace)
	case cmdKill:
		k.killAll()
	}
}

// signal sends to the process groups of living ranks. A rank that has not been reaped still holds its number.
func (k *keeper) signal(sig syscall.Signal, to func(rank int) bool) {
	for i, r := range k.ranks {
		if r.pid != 0 && !r.exited && to(k.launch.Ranks[i].Rank) {
			_ = unix.Kill(-r.pid, sig) // the group exists as long as the rank is not reaped
		}
	}
}

// stop ends the ranks with SIGTERM and, after the grace, everything with SIGKILL. Of several stops the earliest end counts.
func (k *keeper) stop(grace time.Duration) {
	if grace <= 0 {
		k.killAll()
		return
	}
	if at := time.Now().Add(grace); k.kill == nil || at.Before(k.killAt) {
		k.killAt, k.kill = at, time.After(grace)
	}
	if k.ending {
		return // each gets one SIGTERM
	}
	k.reap() // what has ended by now did so by itself
	k.ending = true
	all := func(int) bool { return true }
	k.signal(syscall.SIGTERM, all)
	k.signal(syscall.SIGCONT, all) // a stopped process acts on SIGTERM only when it goes on
}

// killAll kills everything below the keeper.
func (k *keeper) killAll() {
	k.reap()
	k.ending, k.killed, k.kill = true, true, nil
	s := sweeper{
		root:  os.Getpid(),
		spare: func(Process) bool { return false },
		reap:  func([]Process) { k.reap() },
	}
	left, err := s.run()
	if err != nil {
		// Without a process table the ranks' own groups can still be reached.
		k.signal(syscall.SIGKILL, func(int) bool { return true })
		fmt.Fprintf(os.Stderr, "mkrun keeper of job %s, generation %d: %v; only the ranks' process groups were killed\n",
			k.launch.Job, k.launch.Generation, err)
	}
	k.left = left
	for i, r := range k.ranks {
		if len(left) > 0 && !r.exited {
			k.ranks[i].exited = true
			k.report(report{Kind: repExited, Rank: k.launch.Ranks[i].Rank, Signal: int(syscall.SIGKILL), KilledByUs: true})
		}
	}
}

// reap waits for all children that ended, orphans of ranks included, and reports whether none is left. No
// child means no descendant: an orphan becomes the keeper's child at the moment its parent ends.
func (k *keeper) reap() (none bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return true
		case pid == 0:
			return false
		default:
			k.ended(pid, status)
		}
	}
}

func (k *keeper) ended(pid int, status syscall.WaitStatus) {
	for i, r := range k.ranks {
		if r.pid != pid || r.exited {
			continue
		}
		k.ranks[i].exited = true
		k.report(exitReport(k.launch.Ranks[i].Rank, status, k.ours(status)))
	}
}

// ours reports whether a rank ended because it was told to. The kernel closes the sockets of a dying process, at
// which its peers complain and an order to stop may come, before the process can be reaped: a death by a
// signal that was never sent from here is nobody's order.
func (k *keeper) ours(status syscall.WaitStatus) bool {
	if status.Signaled() && status.Signal() != syscall.SIGTERM {
		return k.killed
	}
	return k.ending
}

// exitReport takes the end of a rank as wait4 tells it.
func exitReport(rank int, status syscall.WaitStatus, killedByUs bool) report {
	r := report{Kind: repExited, Rank: rank, KilledByUs: killedByUs}
	if status.Signaled() {
		r.Signal, r.CoreDumped = int(status.Signal()), status.CoreDump()
	} else {
		r.Code = status.ExitStatus()
	}
	return r
}
