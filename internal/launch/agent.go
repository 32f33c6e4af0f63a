package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/topology"
	"github.com/mkrun/mkrun/internal/version"
)

const (
	dialLimit  = 30 * time.Second   // for reaching the parent
	leaveLimit = 2 * time.Second    // for saying goodbye
	belowLimit = 3 * leaveLimit / 4 // of that, for those that report here
	lastLines  = 20                 // of a rank's stderr, for the message about its failure
)

// Agent is the body of an agent process: it says on stdout that it is there, reads its configuration from stdin,
// joins the job, starts and watches the ranks of its node, and ends when it is told to or when its parent is
// gone. Whatever ends it, no rank outlives it. It returns the exit status: 0 if it has done its part, however the job ended.
func Agent(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	status, _ := agentOf(ctx, stdin, stdout, stderr)
	return status
}

// agentOf is an agent's body. It returns its exit status and the job's, which is known if that is 0.
func agentOf(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (status, job int) {
	stdio.ReportBrokenPipes() // the way back may break before the ranks are ended
	if _, err := io.WriteString(stdout, agentReady); err != nil {
		fmt.Fprintf(stderr, "mkrun agent: saying that it is there: %v\n", err)
		return stdio.StatusLauncher, 0
	}
	nameProcess("mkrun-waiting")
	a := &agent{incarnation: rand.Uint64() | 1}
	defer func() { a.keeper.Close() }()
	a.keeper, _ = keeper.Prepare(selfBinary) // while the launcher answers; if it fails the ranks' start tries again, and tells
	cfg, secret, err := readAgentConfig(stdin)
	if err != nil {
		fmt.Fprintf(stderr, "mkrun agent: %v\n", err)
		return stdio.StatusLauncher, 0
	}
	level := slog.LevelWarn
	if cfg.Verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})).With("node", cfg.Node)
	a.signals = make(chan os.Signal, 16)
	keeper.Withstand(a.signals)
	defer signal.Stop(a.signals)
	// Whoever started it holds the other end of stdin for as long as it lives.
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	parent := make(chan error, 1)
	go func() {
		parent <- awaitRelay(stdin, &cfg)
		_, _ = io.Copy(io.Discard, stdin)
		gone(fmt.Errorf("the launcher is gone"))
	}()
	if cfg.Staged { // at once, so that it is gone whatever ends this process
		if err := removeStaged(); err != nil {
			log.Warn("cleaning up", "error", err)
		}
	}
	nameProcess("mkrun-agent")
	select {
	case err := <-parent:
		if err != nil {
			fmt.Fprintf(stderr, "mkrun agent: %v\n", err) // the last of its words, which people see
			return stdio.StatusLauncher, 0
		}
	case <-ctx.Done():
		return stdio.StatusLauncher, 0
	}
	a.cfg, a.log = cfg, log
	if err := a.run(ctx, secret); err != nil {
		fmt.Fprintf(stderr, "mkrun agent: %v\n", err) // the last of its words, which people see
		return stdio.StatusLauncher, 0
	}
	return 0, a.jobStatus
}

// nameProcess names this process for the eyes of people.
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

type agent struct {
	cfg         AgentConfig
	log         *slog.Logger
	incarnation uint64
	link        *session.AgentLink
	pool        *pool
	relay       *relay                         // nil: nobody reports here
	keeper      *keeper.Spare                  // for ranks that have none yet; nil: one has to be started
	crew        *crew                          // of the generation that the parent announced last; nil before the first
	port        *portLease                     // for the first node's ranks
	look        func() (*topology.Node, error) // at this node, once
	signals     chan os.Signal                 // that this process was sent
	jobStatus   int                            // as the parent says when it dismisses this agent
	checker     checker
	checking    sync.WaitGroup
}

// run is one agent's life. An error means that the node could not do its part.
func (a *agent) run(ctx context.Context, secret session.Secret) error {
	if err := keeper.BecomeSubreaper(); err != nil {
		return err
	}
	a.look = sync.OnceValues(func() (*topology.Node, error) { return look(ctx) })
	if a.cfg.Look && hasGPUs() {
		go func() { _, _ = a.look() }() // a driver may take long to answer; ranks ask again
	}
	var err error
	if a.cfg.Address == "" {
		choose, err := newChooser(ctx)
		if err != nil {
			return err
		}
		addr, err := choose.choose(a.cfg.Interfaces, a.cfg.Candidates, a.cfg.Parents)
		if err != nil {
			return err
		}
		a.cfg.Address = addr.String()
		a.log.Debug("address for the other nodes", "address", a.cfg.Address)
	}
	if a.pool, err = openPool(a.cfg, a.incarnation, secret, a.log); err != nil {
		return err
	}
	defer a.pool.close()
	dialCtx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	var excuse func() bool // the launcher's, which started this process
	if a.cfg.Here && a.cfg.tree().Parent(a.cfg.Node) < 0 {
		excuse = keeper.EffortOf(os.Getppid()).Works
	}
	a.link, err = session.Dial(dialCtx, session.AgentConfig{
		Parents: a.cfg.Parents, Job: a.cfg.Job, Generation: a.cfg.Generation, Node: a.cfg.Node,
		Incarnation: a.incarnation, Secret: secret, Build: version.Get().BuildID(), Addresses: a.pool.addresses(), Excuse: excuse, Log: a.log,
	})
	if err != nil {
		return err
	}
	defer func() { a.port.close() }()
	if err := a.openRelay(ctx, secret); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); a.checker.close(); a.checking.Wait() }()
	if err = a.sendFacts(ctx); err == nil {
		err = a.serve(ctx)
	}
	if a.crew != nil {
		a.crew.end(err == nil)
		a.crew.close()
	}
	closeCtx, cancelClose := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancelClose()
	if a.relay != nil {
		below, cancelBelow := context.WithTimeout(closeCtx, belowLimit)
		defer cancelBelow()
		if relayErr := a.relay.end(below); err == nil {
			err = relayErr
		}
	}
	if closeErr := a.link.Close(closeCtx); err == nil {
		err = closeErr
	}
	return err
}

// serve follows the parent's orders until it says Shutdown (nil), or is lost.
func (a *agent) serve(ctx context.Context) error {
	for {
		a.tellSignals(ctx) // before anything that may follow from them
		select {
		case m, ok := <-a.link.Messages():
			if !ok {
				return a.link.Err()
			}
			if a.relay != nil && !a.relay.Pass(m) {
				continue
			}
			done, err := a.obey(ctx, m)
			if done || err != nil {
				return err
			}
		case ev, ok := <-a.crew.events():
			if !ok {
				a.nodeDone(ctx)
				continue
			}
			a.tellSignals(ctx)
			a.tell(ctx, ev)
		case sig := <-a.signals:
			a.tellSignal(ctx, sig)
		case opinion := <-a.pool.opinions():
			if m := a.pool.message(opinion); m != nil {
				a.send(ctx, m)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tellSignals tells the parent of the signals that came to this process.
func (a *agent) tellSignals(ctx context.Context) {
	for {
		select {
		case sig := <-a.signals:
			a.tellSignal(ctx, sig)
		default:
			return
		}
	}
}

// tellSignal tells the parent of a signal that this process was sent, if it was to end it. It is the head that ends
// jobs: all ranks then have their grace, also where whoever sends it (a batch system, a service manager) sends it to some
// hosts only. Others are for ranks, which have had them from the same sender.
func (a *agent) tellSignal(ctx context.Context, sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok && endsPrograms(s, keeper.Passing) {
		a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Signalled{Signalled: &pb.Signal{Number: int32(s)}}})
	}
}

// obey acts on one message of the parent; done means that it was the last.
func (a *agent) obey(ctx context.Context, m *pb.ToAgent) (done bool, err error) {
	if r := m.GetRoster(); r != nil {
		if err := a.newCrew(ctx, r.GetGeneration(), len(r.GetNodes())); err != nil {
			return false, err
		}
	}
	if m.GetGeneration() != a.generation() && m.GetShutdown() == nil {
		a.log.Debug("dropped an order about ranks of another generation", "generation", m.GetGeneration())
		return false, nil
	}
	if a.crew != nil {
		if err := a.crew.server.Observe(m); err != nil {
			return false, fmt.Errorf("the parent broke the protocol: %w", err)
		}
	}
	switch k := m.Kind.(type) {
	case *pb.ToAgent_Roster:
		a.pool.join(ctx, k.Roster)
	case *pb.ToAgent_Preflight:
		received := time.Now().UnixNano()
		a.checking.Go(func() { // may take long; orders to end must not wait for it
			if err := a.check(ctx, k.Preflight, received); err != nil {
				a.log.Warn("checking this node", "error", err)
			}
		})
	case *pb.ToAgent_Start:
		if err := a.crew.begin(ctx, a, k.Start); err != nil {
			a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{Rank: -1, Reason: err.Error()}}})
			a.nodeDone(ctx)
		}
	case *pb.ToAgent_OutputTaken:
		if a.crew != nil {
			a.crew.window.taken(k.OutputTaken.GetBytes())
		}
	case *pb.ToAgent_Stdin:
		return false, a.crew.stdin.feed(k.Stdin)
	case *pb.ToAgent_Signal:
		switch syscall.Signal(k.Signal.GetNumber()) {
		case syscall.SIGTSTP: // the parent stops next, and will be silent
			a.link.Suspend()
		case syscall.SIGCONT:
			a.link.Resume()
		}
		if a.crew == nil || a.crew.group == nil {
			return false, nil
		}
		ranks := make([]int, 0, len(k.Signal.GetRanks()))
		for _, r := range k.Signal.GetRanks() {
			ranks = append(ranks, int(r))
		}
		if err := a.crew.group.Signal(syscall.Signal(k.Signal.GetNumber()), ranks...); err != nil {
			a.log.Warn("passing a signal on", "error", err)
		}
	case *pb.ToAgent_Abort:
		if a.crew == nil || a.crew.group == nil {
			a.nodeDone(ctx)
			return false, nil
		}
		a.crew.stop()
	case *pb.ToAgent_StartBelow:
		return false, a.startBelow(ctx, k.StartBelow)
	case *pb.ToAgent_Shutdown:
		a.jobStatus = int(k.Shutdown.GetExitStatus())
		return true, nil
	}
	return false, nil
}

// check answers a Preflight that was received at a time of this node's clock.
func (a *agent) check(ctx context.Context, m *pb.Preflight, received int64) error {
	text, err := a.checker.answer(ctx, m, a.cfg.InheritEnv)
	if err != nil {
		return err
	}
	return a.link.Send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_PreflightDone{PreflightDone: &pb.PreflightDone{
		SentNs: m.GetSentNs(), ReceivedNs: received, AnsweredNs: time.Now().UnixNano(), Json: text}}})
}

// generation is that of the ranks.
func (a *agent) generation() uint32 {
	if a.crew == nil {
		return a.cfg.Generation
	}
	return a.crew.generation
}

// newCrew makes room for the ranks of a generation, of which those before it have ended.
func (a *agent) newCrew(ctx context.Context, generation uint32, nodes int) error {
	if a.crew != nil {
		if generation != a.crew.generation+1 || !a.crew.over {
			return fmt.Errorf("the parent broke the protocol: a roster of generation %d while generation %d runs", generation, a.crew.generation)
		}
		a.crew.close()
		a.look = sync.OnceValues(func() (*topology.Node, error) { return look(ctx) }) // what holds its GPUs, and their health, has changed
	}
	a.crew = &crew{generation: generation, nodes: nodes, pmiEnds: map[int]pmiEnd{}, window: newOutputWindow(a.cfg.Window), server: session.NewRankServer(a.link, session.RankServerConfig{
		Build: version.Get().BuildID(), Node: a.cfg.Node, Log: a.log,
	})}
	return nil
}

// tell passes an event of the ranks on to the parent.
func (a *agent) tell(ctx context.Context, ev keeper.Event) {
	switch e := ev.(type) {
	case keeper.Started:
		started := &pb.RankStarted{Rank: int32(e.Rank), Pid: int32(e.PID), UnixNs: e.At.UnixNano()}
		if s := a.crew.seatOf(e.Rank); a.crew.seats != nil {
			started.Cpus, started.Gpu, started.Nics = s.cpus.String(), s.gpu, s.nics
			started.NicRule, started.ProxyCpus = s.nicRule, s.proxy.String()
			started.Place = s.text()
		} else if a.crew.start.GetReportBindings() {
			started.Place = seat{}.text()
		}
		a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_RankStarted{RankStarted: started}})
	case keeper.Exited:
		a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_RankExited{RankExited: &pb.RankExited{
			Rank: int32(e.Rank), ExitCode: int32(e.Code), Signal: int32(e.Signal), CoreDumped: e.CoreDumped,
			ExecError: e.ExecError, KilledByUs: e.KilledByUs, LastLines: e.LastLines}}})
		if e.Code == 0 && e.Signal == 0 && e.ExecError == "" {
			a.crew.unfinished(e.Rank, pmiEndedWell)
		}
	}
}

// nodeDone tells that nothing of this node's ranks is left, before which all of their output was sent. The first node
// finds another port for the ranks that may follow them.
func (a *agent) nodeDone(ctx context.Context) {
	if a.crew != nil {
		if a.crew.over {
			return
		}
		a.crew.over = true
		if a.crew.group != nil {
			if err := a.crew.group.Wait(); err != nil {
				a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{Rank: -1, Reason: err.Error()}}})
			}
		}
		// Connections of these ranks may linger on their port.
		if err := a.sendFacts(ctx); err != nil {
			a.log.Debug("telling the parent of another port", "error", err)
		}
	}
	a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_NodeDone{NodeDone: &pb.NodeDone{}}})
}

// send tells the parent something. Its loss is seen by serve, so errors here end nothing.
func (a *agent) send(ctx context.Context, m *pb.FromAgent) {
	m.Generation = a.generation()
	if err := a.link.Send(ctx, m); err != nil {
		a.log.Debug("telling the parent", "error", err)
	}
}

// sendFacts tells what is known at once; the ranks' start waits for it. The first node has found a port for its ranks.
func (a *agent) sendFacts(ctx context.Context) error {
	var facts Facts
	if a.relay != nil {
		facts.Relay = a.relay.addresses
	}
	if a.cfg.Node == 0 {
		var err error
		if a.port, err = a.port.another(ctx, a.cfg.Ports); err != nil {
			return err
		}
		facts.MasterPort = a.port.port
	}
	text, err := json.Marshal(facts)
	if err != nil {
		return fmt.Errorf("encoding this node's facts: %w", err)
	}
	return a.link.Send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Facts{Facts: &pb.Facts{Json: text}}})
}
