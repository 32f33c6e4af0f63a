package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/version"
)

const (
	dialLimit  = 30 * time.Second // for reaching the parent
	leaveLimit = 2 * time.Second  // for saying goodbye
	lastLines  = 20               // of a rank's stderr, for the message about its failure
)

// Agent is the body of an agent process: it says on stdout that it is there, reads its configuration from stdin,
// joins the job, starts and watches the ranks of its node, and ends when it is told to or when its parent is
// gone. Whatever ends it, no rank outlives it. It returns the exit status.
func Agent(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	stdio.ReportBrokenPipes() // the way back may break before the ranks are ended
	if _, err := io.WriteString(stdout, agentReady); err != nil {
		fmt.Fprintf(stderr, "mkrun agent: saying that it is there: %v\n", err)
		return stdio.StatusLauncher
	}
	cfg, secret, err := readAgentConfig(stdin)
	if err != nil {
		fmt.Fprintf(stderr, "mkrun agent: %v\n", err)
		return stdio.StatusLauncher
	}
	level := slog.LevelWarn
	if cfg.Verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})).With("node", cfg.Node)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	// The launcher holds the other end of stdin for as long as it lives.
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		gone(fmt.Errorf("the launcher is gone"))
	}()
	_ = os.WriteFile("/proc/self/comm", []byte("mkrun-agent"), 0) // only for the eyes of people
	a := &agent{cfg: cfg, log: log, incarnation: rand.Uint64() | 1}
	if err := a.run(ctx, secret); err != nil {
		log.Error("agent ends", "error", err)
		return stdio.StatusLauncher
	}
	return 0
}

type agent struct {
	cfg         AgentConfig
	log         *slog.Logger
	incarnation uint64
	link        *session.AgentLink
	ranks       *session.RankServer
	pool        *pool
	start       *pb.Start
	group       *keeper.Group
	serving     sync.WaitGroup // of the ranks' sockets
	files       rankFiles      // their output, as well
}

// run is one agent's life. An error means that the node could not do its part.
func (a *agent) run(ctx context.Context, secret session.Secret) error {
	if err := keeper.BecomeSubreaper(); err != nil {
		return err
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
	a.link, err = session.Dial(dialCtx, session.AgentConfig{
		Parents: a.cfg.Parents, Job: a.cfg.Job, Generation: a.cfg.Generation, Node: a.cfg.Node,
		Incarnation: a.incarnation, Secret: secret, Build: version.Get().BuildID(), Addresses: a.pool.addresses(), Log: a.log,
	})
	if err != nil {
		return err
	}
	a.ranks = session.NewRankServer(a.link, session.RankServerConfig{Build: version.Get().BuildID(), Node: a.cfg.Node, Log: a.log})
	defer func() { a.ranks.Close(); a.serving.Wait() }()
	if err := a.sendFacts(ctx); err != nil {
		return err
	}
	err = a.serve(ctx)
	a.endRanks(err == nil)
	closeCtx, cancelClose := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancelClose()
	if closeErr := a.link.Close(closeCtx); err == nil {
		err = closeErr
	}
	return err
}

// serve follows the parent's orders until it says Shutdown (nil), or is lost.
func (a *agent) serve(ctx context.Context) error {
	var events <-chan keeper.Event
	for {
		select {
		case m, ok := <-a.link.Messages():
			if !ok {
				return a.link.Err()
			}
			done, err := a.obey(ctx, m)
			if done || err != nil {
				return err
			}
			if a.group != nil && events == nil {
				events = a.group.Events()
			}
		case ev, ok := <-events:
			if !ok {
				a.nodeDone(ctx)
				events = make(chan keeper.Event) // nothing more comes
				continue
			}
			a.tell(ctx, ev)
		case opinion := <-a.pool.opinions():
			a.send(ctx, memberMessage(opinion))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// obey acts on one message of the parent; done means that it was the last.
func (a *agent) obey(ctx context.Context, m *pb.ToAgent) (done bool, err error) {
	if err := a.ranks.Observe(m); err != nil {
		return false, fmt.Errorf("the parent broke the protocol: %w", err)
	}
	switch k := m.Kind.(type) {
	case *pb.ToAgent_Roster:
		a.pool.join(ctx, k.Roster)
	case *pb.ToAgent_Start:
		a.start = k.Start
		if err := a.startRanks(ctx); err != nil {
			a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{Rank: -1, Reason: err.Error()}}})
			a.nodeDone(ctx)
		}
	case *pb.ToAgent_Signal:
		switch syscall.Signal(k.Signal.GetNumber()) {
		case syscall.SIGTSTP: // the parent stops next, and will be silent
			a.link.Suspend()
		case syscall.SIGCONT:
			a.link.Resume()
		}
		if a.group == nil {
			return false, nil
		}
		ranks := make([]int, 0, len(k.Signal.GetRanks()))
		for _, r := range k.Signal.GetRanks() {
			ranks = append(ranks, int(r))
		}
		if err := a.group.Signal(syscall.Signal(k.Signal.GetNumber()), ranks...); err != nil {
			a.log.Warn("passing a signal on", "error", err)
		}
	case *pb.ToAgent_Abort:
		if a.group == nil {
			a.nodeDone(ctx)
			return false, nil
		}
		a.group.Stop(time.Duration(a.start.GetAbortGraceMs()) * time.Millisecond)
	case *pb.ToAgent_Shutdown:
		return true, nil
	}
	return false, nil
}

func (a *agent) startRanks(ctx context.Context) error {
	spec := keeper.Spec{
		Job: a.cfg.Job, Generation: a.cfg.Generation,
		AbortGrace: time.Duration(a.start.GetAbortGraceMs()) * time.Millisecond,
		Grace:      time.Duration(a.start.GetGraceMs()) * time.Millisecond,
		LastLines:  lastLines,
		Self:       selfBinary,
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the mkrun binary: %w", err)
	}
	sockets := map[int]*session.RankSockets{}
	closeAll := func() {
		for _, s := range sockets {
			s.Close()
		}
	}
	for _, r := range a.start.GetRanks() {
		rank := keeper.RankSpec{Rank: int(r.GetRank()), LocalRank: int(r.GetLocalRank()), Argv: r.GetArgv(), Env: r.GetEnv(), Dir: r.GetDir()}
		if a.cfg.InheritEnv {
			rank.Env = overlay(BaseEnv(os.Environ()), rank.Env)
		}
		if r.GetSession() {
			if rank.Argv[0] == Self {
				rank.Argv[0] = self
			}
			s, err := session.NewRankSockets()
			if err != nil {
				closeAll()
				return err
			}
			sockets[rank.Rank] = s
			rank.Files = []*os.File{s.RankSession, s.RankBroker}
			rank.Env = append(rank.Env, session.EnvSessionFD+"=3", session.EnvBrokerFD+"=4")
		}
		spec.Ranks = append(spec.Ranks, rank)
	}
	files, err := a.cfg.Output.open(spec.Ranks)
	if err != nil {
		closeAll()
		return err
	}
	a.files = files
	// The group outlives ctx: when the agent ends, endRanks sees to it.
	if a.group, err = keeper.Start(context.WithoutCancel(ctx), spec, outputSink{a}); err != nil {
		closeAll()
		a.files.close()
		return err
	}
	for rank, s := range sockets {
		s.CloseRankEnds()
		a.serving.Go(func() {
			if err := a.ranks.Serve(rank, s.Session, s.Broker); err != nil {
				a.log.Warn("a rank's session", "rank", rank, "error", err)
			}
		})
	}
	return nil
}

// endRanks makes sure that nothing of the ranks is left, whatever ended the agent. An agent that was dismissed while
// ranks run was told to kill them.
func (a *agent) endRanks(dismissed bool) {
	if a.group == nil {
		return
	}
	if dismissed {
		a.group.Kill()
	} else {
		a.group.Stop(time.Duration(a.start.GetAbortGraceMs()) * time.Millisecond)
	}
	go func() {
		for range a.group.Events() { // nobody is told any more
		}
	}()
	if err := a.group.Wait(); err != nil {
		a.log.Warn("ending the ranks", "error", err)
	}
	a.files.close()
}

// tell passes an event of the ranks on to the parent.
func (a *agent) tell(ctx context.Context, ev keeper.Event) {
	switch e := ev.(type) {
	case keeper.Started:
		a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_RankStarted{RankStarted: &pb.RankStarted{
			Rank: int32(e.Rank), Pid: int32(e.PID), UnixNs: e.At.UnixNano()}}})
	case keeper.Exited:
		a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_RankExited{RankExited: &pb.RankExited{
			Rank: int32(e.Rank), ExitCode: int32(e.Code), Signal: int32(e.Signal), CoreDumped: e.CoreDumped,
			ExecError: e.ExecError, KilledByUs: e.KilledByUs, LastLines: e.LastLines}}})
	}
}

func (a *agent) nodeDone(ctx context.Context) {
	if a.group != nil {
		if err := a.group.Wait(); err != nil {
			a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{Rank: -1, Reason: err.Error()}}})
		}
	}
	a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_NodeDone{NodeDone: &pb.NodeDone{}}})
}

// send tells the parent something. Its loss is seen by serve, so errors here end nothing.
func (a *agent) send(ctx context.Context, m *pb.FromAgent) {
	if err := a.link.Send(ctx, m); err != nil {
		a.log.Debug("telling the parent", "error", err)
	}
}

// sendFacts tells what is known at once; the ranks' start waits for it.
func (a *agent) sendFacts(ctx context.Context) error {
	port, err := freePort(ctx, a.cfg.Address)
	if err != nil {
		return err
	}
	facts, err := json.Marshal(Facts{MasterPort: port})
	if err != nil {
		return fmt.Errorf("encoding this node's facts: %w", err)
	}
	return a.link.Send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Facts{Facts: &pb.Facts{Json: facts}}})
}

// freePort finds a TCP port that nobody listens on at an address. It is the kernel's choice among
// many, so it stays free long enough for rank 0 to take it.
func freePort(ctx context.Context, address string) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return 0, fmt.Errorf("looking for a free port on %s: %w", address, err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("looking for a free port on %s: %w", address, err)
	}
	return port, nil
}

// outputSink sends the ranks' output up. While the parent takes none, the ranks are held back.
type outputSink struct{ a *agent }

func (s outputSink) Output(rank int, stream stdio.Stream, data []byte, at time.Time) {
	if err := s.a.files.write(rank, stream, data); err != nil {
		s.a.send(context.Background(), &pb.FromAgent{Kind: &pb.FromAgent_Log{Log: &pb.AgentLog{
			Level: levelNotice, Text: err.Error() + "; from here on the file lacks output"}}})
	}
	s.a.send(context.Background(), &pb.FromAgent{Kind: &pb.FromAgent_Output{Output: &pb.Output{
		Rank: int32(rank), Stream: int32(stream), Data: data, UnixNs: at.UnixNano()}}})
}
