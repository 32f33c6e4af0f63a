package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/version"
)

// Options are what the launcher needs besides the job.
type Options struct {
	Mux     Mux          // where the ranks' output goes; closed by Run
	Notices io.Writer    // one-line notices to the user, usually stderr
	Log     *slog.Logger // for people who debug mkrun
	Verbose bool         // agents log too

	OnlyRanks func(rank int) bool // whose output is shown; nil: all
	Events    io.Writer           // gets what happens, as lines of JSON; nil: nobody wants that
	Progress  func() int          // Notices is a terminal, of that width; nil: it is none
	Signals   <-chan os.Signal    // the user's
	Forward   []syscall.Signal    // of them, those that are passed on and end nothing
	Stdin     *os.File            // what ranks read, if the job wants that
	Begin     time.Time           // when the command was given

	stays    bool              // when the user stops the job: the launcher elsewhere does
	starters map[Reach]starter // tests start agents in their own way
}

// Mux is where ranks' output goes, which is not mixed within a line: *stdio.Mux.
type Mux interface {
	Write(rank int, host string, stream stdio.Stream, data []byte, at time.Time) error
	Close() error
}

// Outcome is how a job ended.
type Outcome struct {
	Cause   *pb.Cause     // nil: every rank ended with status 0
	Reports [][]byte      // of the ranks, by rank; nil where a rank did not report
	Ended   []bool        // by rank: it ended with status 0
	Places  []RankPlace   // by rank
	Checks  []Check       // of the nodes, if there were any
	Started time.Duration // from the command to the first barrier that all ranks passed, or to their start; 0 if never
}

// RankPlace is where a rank was put on its node; "" where nothing was bound, or no GPU is known.
type RankPlace struct {
	CPUs string   // as 0-15,64
	GPU  string   // as CUDA names it
	NICs []string // as the node calls them
}

// ExitStatus is what mkrun launch ends with.
func (o *Outcome) ExitStatus() int {
	if o.Cause == nil {
		return 0
	}
	return int(o.Cause.GetExitStatus())
}

// endLimit bounds the time between the order to end and the end, beyond the ranks' own grace.
const endLimit = 5 * time.Second

// killLimit is the same for ranks that get no grace.
const killLimit = time.Second

// stopDelay is how long ranks have to stop before the launcher stops itself.
const stopDelay = 300 * time.Millisecond

// Run runs a job to its end. The error is for a launcher that could not even begin; whatever happens
// later is the Outcome's cause. When it returns, nothing of the job is left on this host.
func Run(ctx context.Context, job *Job, opts Options) (*Outcome, error) {
	if job.HeadFirst {
		return runThroughFirst(ctx, job, opts)
	}
	events := newEventLog(opts.Events, job, opts.Begin, func(err error) { fmt.Fprintf(opts.Notices, "mkrun: %v\n", err) })
	events.write(Event{Event: "job_start", Nodes: job.World.Nodes(), Ranks: job.World.Size(), Argv: job.Argv, Build: version.Get().BuildID()})
	out, err := run(ctx, job, opts, events)
	if err != nil {
		events.end(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
	} else {
		events.end(out.Cause)
	}
	return out, err
}

func run(ctx context.Context, job *Job, opts Options, events *eventLog) (*Outcome, error) {
	if err := job.checkHere(); err != nil {
		return nil, err
	}
	// An agent that is killed leaves its keeper to this process.
	if err := keeper.BecomeSubreaper(); err != nil {
		return nil, err
	}
	m, err := newMachine(job, time.Now())
	if err != nil {
		return nil, err
	}
	l := &launcher{job: job, opts: opts, machine: m, secret: session.NewSecret(), gone: make(chan int, job.World.Nodes()),
		came: make(chan arrival, job.World.Nodes()), events: events, relays: map[int][]string{}, toldAll: map[int]bool{}}
	if opts.Progress != nil {
		l.progress = &progress{w: opts.Notices, width: opts.Progress}
		l.opts.Notices = l.progress
	}
	l.head, err = session.NewHead(session.HeadConfig{
		Job: job.ID, Generation: firstGeneration, Secret: l.secret, Nodes: job.World.Nodes(), Radix: job.Radix, Build: version.Get().BuildID(), Log: opts.Log,
	})
	if err != nil {
		return nil, err
	}
	listener, parents, err := listen(ctx, job)
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- l.head.Serve(context.WithoutCancel(ctx), listener) }()

	l.output = newOutputQueue(opts.Mux)
	if err := l.startAgents(ctx, parents); err != nil {
		l.machine.fail(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
	}
	l.follow(ctx)
	l.machine.conclude()
	l.end()
	if err := <-served; err != nil {
		opts.Log.Warn("serving agents", "error", err)
	}
	if err := l.output.close(); err != nil && l.machine.cause == nil {
		l.machine.cause = outputCause(err)
	}
	out := &Outcome{Cause: l.machine.cause, Started: l.started}
	if l.machine.preflight != nil {
		out.Checks = l.machine.preflight.checks
	}
	if out.Cause != nil {
		out.Cause.Rank = int32(job.Number(int(out.Cause.GetRank())))
	}
	for _, r := range l.machine.ranks {
		out.Reports = append(out.Reports, r.report)
		out.Places = append(out.Places, RankPlace{CPUs: r.place.GetCpus(), GPU: r.place.GetGpu(), NICs: r.place.GetNics()})
		out.Ended = append(out.Ended, r.exit != nil && r.exit.GetExitCode() == 0 && r.exit.GetSignal() == 0 && r.exit.GetExecError() == "")
	}
	return out, nil
}

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
	output   *outputQueue
	events   *eventLog
	progress *progress    // nil: Notices is no terminal
	stdin    *stdinSource // nil: not read
	started  time.Duration
	signals  int // of the user's, that end programs
	first    syscall.Signal
	giveUp   <-chan time.Time // set once the job has to end
	stopAt   <-chan time.Time // set once the user wants the job stopped (Ctrl-Z)
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
	at := ":0"
	if !job.spread() {
		at = net.JoinHostPort(job.Hosts[0].Address, "0") // pretended nodes all reach the loopback address of the first
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", at)
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
	startTimer, timer := l.timerOf(l.job.StartTimeout), l.timerOf(l.job.Timeout)
	var grace, tick, lonely <-chan time.Time
	if l.progress != nil {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		defer l.progress.clear()
		tick = ticker.C
	}
	done := ctx.Done()
	for {
		if l.machine.over() {
			if l.signals > 0 || !l.machine.restartable() {
				return
			}
			startTimer, grace, lonely = nil, nil, nil
			if l.job.StartTimeout > 0 {
				startTimer = time.After(l.job.StartTimeout)
			}
			l.restart()
			continue
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
			if l.machine.allStarted() {
				startTimer = nil
				orders = append(orders, l.readStdin()...)
			}
		case now := <-tick:
			if text := l.machine.waitingFor(now); text == "" || l.machine.cause != nil {
				l.progress.clear()
			} else if now.Sub(l.opts.Begin) > progressAfter {
				l.progress.show(text)
			}
		case a := <-l.came:
			orders = l.arrive(a)
		case node := <-l.gone:
			orders = l.agentGone(node)
		case sig := <-l.opts.Signals:
			orders = l.userSignal(sig)
			if grace == nil && l.machine.cause != nil {
				grace = time.After(l.job.Grace)
			}
		case err := <-l.output.failed:
			orders = l.machine.fail(outputCause(err))
		case err := <-l.stdin.failures():
			orders = l.machine.fail(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
		case <-done:
			done = nil
			orders = l.machine.fail(noPlace(pb.Cause_LAUNCHER, context.Cause(ctx).Error(), stdio.StatusLauncher))
		case <-startTimer:
			orders = l.machine.fail(noPlace(pb.Cause_TIMEOUT, fmt.Sprintf(
				"not all ranks were started within %v (--start-timeout):%s%s", l.job.StartTimeout, l.machine.states(time.Now()), l.startFailures()), stdio.StatusTimeout))
		case <-timer:
			orders = l.machine.fail(noPlace(pb.Cause_TIMEOUT, fmt.Sprintf(
				"the job did not end within %v (--timeout):%s%s", l.job.Timeout, l.machine.states(time.Now()), l.waiting()), stdio.StatusTimeout))
		case <-lonely:
			orders = l.machine.fail(noPlace(pb.Cause_TIMEOUT, fmt.Sprintf(
				"a rank ended %v ago, and others still run (--wait-after-exit):%s", l.job.WaitAfterExit, l.machine.states(time.Now())), stdio.StatusTimeout))
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
		l.order(orders)
	}
}

// restart starts the ranks again, of which one has failed and all have ended.
func (l *launcher) restart() {
	l.giveUp = nil
	cause := l.machine.cause
	cause.Rank = int32(l.job.Number(int(cause.GetRank())))
	l.events.next(cause)
	fmt.Fprintf(l.opts.Notices, "%s\nmkrun: starting all ranks again (restart %d of %d)\n", CauseText(cause), l.machine.restarts()+1, l.job.MaxRestarts)
	l.order(l.machine.restart())
}

// tellChecks says what was found on the nodes before any rank was started.
func (l *launcher) tellChecks() {
	for _, c := range l.machine.preflight.checks {
		e := Event{Event: "check", Code: c.Code, Severity: string(c.Severity), Text: c.Text, Reason: c.Action}
		if c.Node >= 0 {
			e.Node = &c.Node
		}
		l.events.write(e)
	}
	if l.job.ConnectOnly {
		return // the caller shows all of them
	}
	for _, line := range CheckLines(l.machine.preflight.checks, len(l.job.Hosts), doctor.Warn) {
		fmt.Fprintf(l.opts.Notices, "mkrun: check: %s\n", line)
	}
}

// readStdin begins to read for the ranks that want that, which are there now.
func (l *launcher) readStdin() []order {
	if l.stdin != nil || l.opts.Stdin == nil || l.machine.cause != nil {
		return nil
	}
	var nodes []int
	for rank := range l.job.World.Size() {
		node := l.job.World.NodeOf(rank)
		if l.job.Stdin.reads(l.job.Number(rank)) && (len(nodes) == 0 || nodes[len(nodes)-1] != node) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	var err error
	generation := l.machine.generation
	l.stdin, err = startStdin(l.opts.Stdin, nodes, func(node int, m *pb.ToAgent) error {
		m.Generation = generation
		return l.head.Send(node, m)
	})
	if err != nil {
		return l.machine.fail(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
	}
	return nil
}

// take lets the machine act on what an agent said.
func (l *launcher) take(ev session.HeadEvent) []order {
	m, node := l.machine, ev.Node
	switch {
	case ev.Lost != nil:
		why := ev.Lost.Reason
		if end := l.howItEnded(node); end != "" {
			why = end // says more than that the connection broke
		}
		if a, by := l.agents[node], l.job.Hosts[node].By; a != nil && by != ReachSrun && l.job.Hosts[node].remote() {
			a.kill() // an ssh to a host that is cut off would be waited for; an srun is that of the others too
		}
		l.events.write(Event{Event: "node_lost", Node: &node, Reason: why})
		return m.lost(node, why)
	case ev.Left:
		m.nodeDone(node)
		return nil
	case ev.Refused != nil:
		if node < 0 {
			return nil // a stranger
		}
		return m.fail(m.nodeCause(pb.Cause_LAUNCHER, node, "its agent was refused: "+ev.Refused.Reason))
	case ev.Barrier == 1:
		if l.started == 0 {
			l.started = time.Since(l.opts.Begin)
		}
		return nil
	case ev.Message == nil:
		return nil
	}
	l.events.heard(node, ev.Message)
	switch k := ev.Message.Kind.(type) {
	case *pb.FromAgent_Hello:
		if theirs, ours := k.Hello.GetBuild(), version.Get().BuildID(); theirs != ours {
			return m.fail(m.nodeCause(pb.Cause_LAUNCHER, node, fmt.Sprintf(
				"its mkrun is %s, this one is %s; install the same on both, name the right one with --remote-mkrun, or have this one copied with --copy-self", theirs, ours)))
		}
		return m.hello(node, k.Hello)
	case *pb.FromAgent_PreflightDone:
		orders := m.checked(node, k.PreflightDone, time.Now())
		if m.preflight != nil && m.preflight.done {
			l.tellChecks()
		}
		return orders
	case *pb.FromAgent_Facts:
		orders := m.factsFrom(node, k.Facts.GetJson())
		if f := m.nodes[node].facts; f != nil {
			l.relayIs(node, f.Relay)
		}
		return orders
	case *pb.FromAgent_Below:
		return l.below(node, k.Below)
	case *pb.FromAgent_RankStarted:
		m.started(int(k.RankStarted.GetRank()), int(k.RankStarted.GetPid()))
		m.ranks[k.RankStarted.GetRank()].place = k.RankStarted
		if l.job.ReportBindings {
			fmt.Fprintf(l.opts.Notices, "mkrun: rank %d on %s: %s\n", l.job.Number(int(k.RankStarted.GetRank())), l.job.Hosts[node].Name, k.RankStarted.GetPlace())
		}
		if !l.job.Session && l.started == 0 && m.allStarted() {
			l.started = time.Since(l.opts.Begin)
		}
	case *pb.FromAgent_Attached:
		m.attached(int(k.Attached.GetRank()))
	case *pb.FromAgent_RankExited:
		return m.exited(node, k.RankExited)
	case *pb.FromAgent_Report:
		m.reported(int(k.Report.GetRank()), k.Report.GetJson())
	case *pb.FromAgent_Abort:
		if m.cause == nil {
			k.Abort.Reason += l.waiting() // who did not come, if that is what it is about
		}
		return m.abortRequested(node, k.Abort)
	case *pb.FromAgent_Output:
		o := k.Output
		number := l.job.Number(int(o.GetRank()))
		if l.opts.OnlyRanks != nil && !l.opts.OnlyRanks(number) {
			return nil
		}
		l.output.put(frame{
			rank: number, host: l.job.Hosts[node].Name,
			stream: stdio.Stream(o.GetStream()), data: o.GetData(), at: time.Unix(0, o.GetUnixNs()),
		})
	case *pb.FromAgent_NodeDone:
		m.nodeDone(node)
	case *pb.FromAgent_StdinTaken:
		l.stdin.acknowledge(node, k.StdinTaken)
	case *pb.FromAgent_Member:
		l.opts.Log.Debug("gossip", "from", node, "node", k.Member.GetNode(), "alive", k.Member.GetAlive())
	case *pb.FromAgent_Log:
		if k.Log.GetLevel() == levelNotice {
			fmt.Fprintf(l.opts.Notices, "mkrun: %s (node %d): %s\n", l.job.Hosts[node].Name, node, k.Log.GetText())
			return nil
		}
		l.opts.Log.Debug(k.Log.GetText(), "node", node)
	}
	return nil
}

// agentGone handles the end of an agent's process. If it had joined, its stream tells the same and
// more; if it never said hello, this is all there will be.
func (l *launcher) agentGone(node int) []order {
	if l.machine.nodes[node].joined {
		return nil
	}
	return l.machine.lost(node, "it ended before it joined the job ("+l.agents[node].gone()+")")
}

// reapDelay is how long a lost agent's process may take to be seen to end: its connection breaks a moment before.
const reapDelay = 200 * time.Millisecond

// howItEnded says how the process of an agent that is lost ended, or "" if it lives on.
func (l *launcher) howItEnded(node int) string {
	a := l.agents[node]
	if a == nil {
		return ""
	}
	select {
	case <-a.exited:
		return a.gone()
	case <-time.After(reapDelay):
		return ""
	}
}

// waiting says what the ranks that wait in the session wait for.
func (l *launcher) waiting() string {
	fence, barrier := l.head.Waiting()
	text := ""
	if len(fence) > 0 && len(fence) < l.job.World.Size() {
		text += fmt.Sprintf("\n  the others wait in a fence for ranks %v", fence)
	}
	if len(barrier) > 0 && len(barrier) < l.job.World.Size() {
		text += fmt.Sprintf("\n  the others wait in a barrier for ranks %v", barrier)
	}
	return text
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
	if err := l.head.Broadcast(&pb.ToAgent{Kind: &pb.ToAgent_Shutdown{Shutdown: &pb.Shutdown{}}}); err != nil {
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

// outputCause ends a job whose output has nowhere to go: quietly, like any program, when the reader has left.
func outputCause(err error) *pb.Cause {
	if errors.Is(err, syscall.EPIPE) {
		return noPlace(pb.Cause_LAUNCHER, "nobody reads the ranks' output any more", stdio.StatusOfSignal(syscall.SIGPIPE))
	}
	return noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher)
}

func noPlace(kind pb.Cause_Kind, reason string, status int) *pb.Cause {
	return &pb.Cause{Kind: kind, Node: -1, Rank: -1, Reason: reason, ExitStatus: int32(status)}
}

// timerOf fires when a bound that counts from the command is over; it is nil, and never fires, for a bound of 0.
func (l *launcher) timerOf(bound time.Duration) <-chan time.Time {
	if bound <= 0 {
		return nil
	}
	return time.After(bound - time.Since(l.opts.Begin))
}
