package launch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/version"
)

// gossiping is the largest number of agents that gossip with each other on one machine: beyond, that would be all it did.
const gossiping = 32

// swarm starts agents as goroutines of this process. They do all that agents do but for starting ranks: each has its own
// address, gossip, certificate, and stream over TCP to its parent.
type swarm struct {
	nodes int
	begin time.Time

	mu      sync.Mutex
	rosters int           // agents that have it
	roster  time.Duration // from the beginning until all had it
	memory  uint64        // of this process then
	cpu     time.Duration // that this process took until then
	errs    []error
	running sync.WaitGroup
}

func (s *swarm) start(_ context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	stdin, to := io.Pipe()
	ctx, kill := context.WithCancel(context.Background())
	a := newAgentProcess(func(end error, _ string) string { return fmt.Sprintf("it ended: %v", end) })
	a.stdin, a.kill = to, kill
	s.running.Go(func() {
		defer kill()
		if a.err = s.live(ctx, cfg, stdin, secret); a.err != nil {
			s.mu.Lock()
			s.errs = append(s.errs, fmt.Errorf("node %d: %w", cfg.Node, a.err))
			s.mu.Unlock()
		}
		_ = stdin.Close()
		close(a.exited)
		close(a.done)
	})
	return a, nil
}

// live is one agent's life, as agent.run's.
func (s *swarm) live(ctx context.Context, cfg AgentConfig, stdin io.Reader, secret session.Secret) error {
	if err := awaitRelay(stdin, &cfg); err != nil {
		return err
	}
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		gone()
	}()
	a := &agent{cfg: cfg, log: slog.New(slog.DiscardHandler), incarnation: rand.Uint64() | 1}
	var err error
	if a.pool, err = openPool(cfg, a.incarnation, secret, a.log); err != nil {
		return err
	}
	defer a.pool.close()
	dial, cancel := context.WithTimeout(ctx, 2*time.Minute) // a hundred greet each other on a machine that may be busy
	defer cancel()
	a.link, err = session.Dial(dial, session.AgentConfig{
		Parents: cfg.Parents, Job: cfg.Job, Generation: cfg.Generation, Node: cfg.Node, Incarnation: a.incarnation, Secret: secret,
		Build: version.Get().BuildID(), Addresses: a.pool.addresses(), Log: a.log,
	})
	if err != nil {
		return err
	}
	defer func() { a.port.close() }()
	if err := a.openRelay(ctx, secret); err != nil {
		return err
	}
	if err := a.sendFacts(ctx); err != nil {
		return err
	}
	over := false // what is left is the end, for which a busy machine may have no time
	for m := range a.link.Messages() {
		if a.relay != nil && !a.relay.Pass(m) {
			continue
		}
		switch k := m.Kind.(type) {
		case *pb.ToAgent_Roster:
			s.gotRoster(k.Roster)
			if s.nodes <= gossiping {
				a.pool.join(ctx, k.Roster)
			}
		case *pb.ToAgent_Start:
			for _, r := range k.Start.GetRanks() {
				a.pretend(ctx, m.Generation, &pb.FromAgent{Kind: &pb.FromAgent_RankStarted{RankStarted: &pb.RankStarted{Rank: r.Rank, Pid: 1}}})
				a.pretend(ctx, m.Generation, &pb.FromAgent{Kind: &pb.FromAgent_RankExited{RankExited: &pb.RankExited{Rank: r.Rank}}})
			}
			a.pretend(ctx, m.Generation, &pb.FromAgent{Kind: &pb.FromAgent_NodeDone{NodeDone: &pb.NodeDone{}}})
			over = true
		case *pb.ToAgent_Shutdown:
			leave, cancel := context.WithTimeout(ctx, 20*time.Second) // the machine may be busy
			defer cancel()
			if a.relay != nil {
				_ = a.relay.end(leave)
			}
			_ = a.link.Close(leave)
			return nil
		}
	}
	if a.relay != nil {
		_ = a.relay.end(ctx)
	}
	if over {
		return nil
	}
	return a.link.Err()
}

func (a *agent) pretend(ctx context.Context, generation uint32, m *pb.FromAgent) {
	m.Generation = generation
	_ = a.link.Send(ctx, m)
}

func (s *swarm) gotRoster(r *pb.Roster) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(r.Nodes) != s.nodes {
		s.errs = append(s.errs, fmt.Errorf("a roster of %d nodes", len(r.Nodes)))
	}
	if s.rosters++; s.rosters == s.nodes {
		s.roster, s.cpu = time.Since(s.begin), cpuTime()-s.cpu
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s.memory = m.HeapInuse + m.StackInuse
	}
}

// cpuTime is what this process has taken of all cores.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// runSwarm runs a whole job on agents of this process.
func runSwarm(tb testing.TB, nodes, radix int) *swarm {
	tb.Helper()
	hosts, err := Pretend(nodes)
	if err != nil {
		tb.Fatal(err)
	}
	world := plan.World{}
	for range nodes {
		world.PPN = append(world.PPN, 1)
	}
	s := &swarm{nodes: nodes, begin: time.Now(), cpu: cpuTime()}
	job := &Job{ID: "swarm", World: world, Hosts: hosts, Argv: []string{"true"}, Env: []string{"A=B"}, Dir: "/", Radix: radix, Silence: time.Minute, StartTimeout: 2 * time.Minute}
	out, err := Run(tb.Context(), job, Options{
		Output: NewOutput(stdio.NewMux(stdio.MuxOptions{Stdout: stdio.Output{Writer: io.Discard}, Stderr: stdio.Output{Writer: io.Discard}, Ranks: nodes}), io.Discard, nil),
		Log:    slog.New(slog.DiscardHandler), Begin: s.begin, starters: map[Reach]starter{"": s},
	})
	if err != nil {
		tb.Fatal(err)
	}
	if out.Cause != nil {
		tb.Errorf("%d nodes: %s", nodes, CauseText(out.Cause))
	}
	s.running.Wait()
	for _, err := range s.errs {
		tb.Error(err)
	}
	if s.rosters != nodes {
		tb.Errorf("%d of %d agents had the roster", s.rosters, nodes)
	}
	return s
}

// Jobs of all depths come up, run and end in order.
func TestSwarm(t *testing.T) {
	for _, tt := range []struct{ nodes, radix int }{{1, 1}, {5, 1}, {33, 32}, {40, 3}, {100, 4}} {
		runSwarm(t, tt.nodes, tt.radix)
	}
}
