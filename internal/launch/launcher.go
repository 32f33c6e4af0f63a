package launch

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
)

type launcher struct {
	job      *Job
	opts     Options
	machine  *machine
	secret   session.Secret
	head     *session.Head
	agents   []*agentProcess // by node; nil if it was not started
	came     chan arrival    // one for each node
	gone     chan int        // nodes whose agent process has ended
	starts   context.CancelFunc
	by       map[Reach]starter
	parents  []string         // where the head is
	relays   map[int][]string // where agents are that others report to
	toldAll  map[int]bool     // of those, by Slurm's common input
	pending  int              // nodes that have not arrived
	events   *eventLog
	notices  io.Writer    // the user's
	stdin    *stdinSource // nil: not read
	started  time.Duration
	endings  endings
	passing  gathered         // signals that are passed on
	passAt   <-chan time.Time // when they are
	restarts restarts
	told     bool             // a node was, by somebody else, of the job's end
	timeout  <-chan time.Time // --timeout
	giveUp   <-chan time.Time // set once the job has to end
	stopAt   <-chan time.Time // set once the user wants the job stopped (Ctrl-Z)
}

func newLauncher(job *Job, m *machine, opts Options) *launcher {
	l := &launcher{job: job, opts: opts, machine: m, secret: session.NewSecret(), gone: make(chan int, job.World.Nodes()),
		came: make(chan arrival, job.World.Nodes()), relays: map[int][]string{}, toldAll: map[int]bool{}}
	if !opts.stays { // the launcher elsewhere passes each wish on once
		l.endings.within = sameWish
	}
	return l
}

// arrival is the outcome of starting a node's agent.
type arrival struct {
	node  int
	agent *agentProcess
	err   error
}

// listen opens the head's port: on loopback if all nodes are on this host, else at every address, of which those are
// returned that other hosts may reach. Whoever connects must prove to be of the job before anything else.
func listen(ctx context.Context, job *Job) (net.Listener, []string, error) {
	at := ""
	if !job.spread() {
		at = job.Hosts[0].Address // pretended nodes all reach the loopback address of the first
		devices, err := net.Interfaces()
		if err == nil {
			err = loopbackUp(at, devices)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("listening for agents: %w", err)
		}
	}
	listener, err := job.Ports.Listen(ctx, at)
	if err != nil {
		return nil, nil, fmt.Errorf("listening for agents: %w", err)
	}
	if !job.spread() {
		return listener, []string{listener.Addr().String()}, nil
	}
	choose, err := newChooser(ctx)
	var parents []string
	if err == nil {
		parents, err = choose.reachable(job.Interfaces, job.Hosts, listener.Addr().(*net.TCPAddr).Port)
	}
	if err != nil {
		_ = listener.Close()
		return nil, nil, fmt.Errorf("listening for agents: %w", err)
	}
	return listener, parents, nil
}

// arrive takes note of an agent's process, or of why there is none.
func (l *launcher) arrive(a arrival) []order {
	l.pending--
	if a.err != nil {
		return l.machine.fail(l.machine.nodeCause(pb.Cause_LAUNCHER, a.node, a.err.Error()))
	}
	l.agents[a.node] = a.agent
	l.tellRelay(a.node)
	go func() {
		<-a.agent.done
		l.gone <- a.node
	}()
	return nil
}

// follow runs the job until nothing of it is left, or it must be given up.
func (l *launcher) follow(ctx context.Context) {
	startTimer := l.timerOf(l.job.StartTimeout)
	var grace, tick, lonely <-chan time.Time
	if l.opts.Output.show != nil {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		defer l.opts.Output.progress("")
		tick = ticker.C
	}
	done := ctx.Done()
	for {
		switch {
		case !l.machine.over():
		case l.restarts.at != nil && l.machine.cause == nil: // and not yet
		case l.endings.count > 0 || l.restarts.at != nil || !l.machine.restartable():
			return
		default:
			startTimer, grace, lonely = nil, nil, nil
			l.restartLater(time.Now())
		}
		var orders []order
		select {
		case ev, ok := <-l.head.Events():
			if !ok {
				return
			}
			orders = l.take(ev)
			if lonely == nil && l.job.WaitAfterExit > 0 && l.machine.someEndedWell() {
				lonely = time.After(l.job.WaitAfterExit)
			}
			if l.machine.allStarted() && !l.machine.pausing {
				startTimer = nil
				if l.restarts.running.IsZero() {
					l.restarts.running = time.Now()
				}
				orders = append(orders, l.readStdin()...)
			}
		case now := <-tick:
			if text := l.machine.waitingFor(now); text == "" || l.machine.cause != nil {
				l.opts.Output.progress("")
			} else if now.Sub(l.opts.Begin) > progressAfter {
				l.opts.Output.progress(text)
			}
		case a := <-l.came:
			orders = l.arrive(a)
		case node := <-l.gone:
			orders = l.agentGone(node)
		case sig := <-l.opts.Signals:
			orders = l.userSignal(sig, time.Now())
		case <-l.passAt:
			orders = l.passGathered()
		case err := <-l.opts.Output.failed:
			orders = l.machine.fail(outputCause(err))
		case err := <-l.stdin.failures():
			orders = l.machine.fail(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
		case <-done:
			done = nil
			orders = l.machine.fail(noPlace(pb.Cause_LAUNCHER, context.Cause(ctx).Error(), stdio.StatusLauncher))
		case <-startTimer:
			orders = l.machine.fail(noPlace(pb.Cause_TIMEOUT, fmt.Sprintf(
				"not all ranks were started within %v (--start-timeout):%s%s", l.job.StartTimeout, l.machine.states(time.Now()), l.startFailures()), stdio.StatusTimeout))
		case <-l.timeout:
			orders = l.machine.fail(noPlace(pb.Cause_TIMEOUT, fmt.Sprintf(
				"the job did not end within %v (--timeout):%s%s", l.job.Timeout, l.machine.states(time.Now()), l.waiting()), stdio.StatusTimeout))
		case <-lonely:
			orders = l.machine.fail(noPlace(pb.Cause_TIMEOUT, fmt.Sprintf(
				"a rank ended %v ago, and others still run (--wait-after-exit):%s", l.job.WaitAfterExit, l.machine.states(time.Now())), stdio.StatusTimeout))
		case <-l.restarts.at:
			if l.job.StartTimeout > 0 {
				startTimer = time.After(l.job.StartTimeout)
			}
			l.restart()
		case <-grace:
			orders = l.machine.abort()
			l.giveUp = time.After(l.job.AbortGrace + endLimit)
		case <-l.stopAt:
			l.stopAt = nil
			if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil { // until somebody says SIGCONT
				l.opts.Log.Warn("stopping", "error", err)
			}
		case <-l.giveUp:
			l.opts.Log.Warn("agents do not come to an end; killing them")
			return
		}
		if grace == nil && l.machine.cause.GetKind() == pb.Cause_USER_SIGNAL {
			grace = time.After(l.job.Grace)
		}
		l.order(orders)
	}
}

// order sends what the machine wants said. An agent that cannot be reached is an event of its own.
func (l *launcher) order(orders []order) {
	for _, o := range orders {
		var err error
		o.msg.Generation = l.machine.generation
		if p := o.msg.GetPreflight(); p != nil {
			p.SentNs = time.Now().UnixNano()
		}
		switch {
		case o.msg.GetRoster() != nil:
			err = l.head.PushRoster(o.msg.GetRoster())
		case o.node == allNodes:
			err = l.head.Broadcast(o.msg)
		default:
			err = l.head.Send(o.node, o.msg)
		}
		if err != nil {
			l.opts.Log.Warn("ordering an agent", "node", o.node, "error", err)
		}
		if o.msg.GetAbort() != nil && l.giveUp == nil {
			l.giveUp = time.After(l.job.AbortGrace + endLimit)
		}
	}
}

// end dismisses the agents and makes sure that nothing is left on this host.
func (l *launcher) end() {
	l.stdin.close()
	l.starts()
	for l.pending > 0 {
		if a := <-l.came; a.err == nil {
			l.arrive(a)
		} else {
			l.pending--
		}
	}
	l.closeWays()
	if err := l.head.Broadcast(l.machine.dismissal()); err != nil {
		l.opts.Log.Warn("dismissing the agents", "error", err)
	}
	go func() {
		for ev := range l.head.Events() { // late output still counts
			l.take(ev)
		}
	}()
	closeCtx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	l.head.Close(closeCtx)
	for _, a := range l.agents {
		if a != nil {
			a.end(closeCtx)
		}
	}
	left, err := keeper.KillDescendants()
	if err != nil || len(left) > 0 {
		l.opts.Log.Error("processes are left that could not be killed", "processes", left, "error", err)
	}
}

func (l *launcher) timerOf(bound time.Duration) <-chan time.Time { return timerOf(bound, l.opts.Begin) }

// timerOf fires when a bound that counts from the command is over; it is nil, and never fires, for a bound of 0.
func timerOf(bound time.Duration, begin time.Time) <-chan time.Time {
	if bound <= 0 {
		return nil
	}
	return time.After(bound - time.Since(begin))
}
