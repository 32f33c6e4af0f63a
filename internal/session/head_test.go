package session

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

func TestHelloToShutdown(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 2})
	links, _ := r.job(2, 1)
	send(t, links[1], &pb.FromAgent{Kind: &pb.FromAgent_Facts{Facts: &pb.Facts{Json: []byte("{}")}}})
	if ev := r.event("facts", func(ev HeadEvent) bool { return ev.Message.GetFacts() != nil }); ev.Node != 1 || ev.Incarnation != 101 {
		t.Errorf("facts of node %d, incarnation %d", ev.Node, ev.Incarnation)
	}
	if err := r.head.Send(0, &pb.ToAgent{Kind: &pb.ToAgent_Signal{Signal: &pb.Signal{Number: 15}}}); err != nil {
		t.Fatal(err)
	}
	if m := next(t, links[0]); m.GetSignal().GetNumber() != 15 {
		t.Errorf("got %v", m)
	}
	if err := r.head.Broadcast(&pb.ToAgent{Kind: &pb.ToAgent_Shutdown{Shutdown: &pb.Shutdown{}}}); err != nil {
		t.Fatal(err)
	}
	for node, link := range links {
		if m := next(t, link); m.GetShutdown() == nil {
			t.Fatalf("got %v", m)
		}
		send(t, link, &pb.FromAgent{Kind: &pb.FromAgent_NodeDone{NodeDone: &pb.NodeDone{}}})
		if err := link.Close(t.Context()); err != nil {
			t.Errorf("closing the link of node %d: %v", node, err)
		}
		if err := link.Send(t.Context(), &pb.FromAgent{}); !errors.Is(err, ErrClosed) {
			t.Errorf("sending on a closed link: %v", err)
		}
		done := r.event("end", func(ev HeadEvent) bool { return ev.Node == node })
		if done.Message.GetNodeDone() == nil {
			t.Errorf("node %d: got %+v, want NodeDone", node, done)
		}
		if ev := r.event("left", func(ev HeadEvent) bool { return ev.Node == node }); !ev.Left {
			t.Errorf("node %d: got %+v, want Left", node, ev)
		}
	}
	r.head.Close(t.Context())
	if _, open := <-r.head.Events(); open {
		t.Error("an event after Close")
	}
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*AgentConfig)
		want   []string
	}{
		{"protocol", func(c *AgentConfig) { c.protocol = 7 }, []string{"protocol 7", `"agent-build"`, "protocol 1", `"head-build"`}},
		{"generation", func(c *AgentConfig) { c.Generation = 3 }, []string{"generation 0, not 3"}},
		{"node index", func(c *AgentConfig) { c.Node = 5 }, []string{"node index 5 is outside"}},
		{"second agent of a node", func(c *AgentConfig) { c.Incarnation = 77 }, []string{"node 0 is already taken by another agent process"}},
		{"second hello of an agent", func(*AgentConfig) {}, []string{"node 0 has already said hello"}},
		{"long text", func(c *AgentConfig) { c.Node = 1; c.Hostname = strings.Repeat("x", 300) }, []string{"too long"}},
		{"many addresses", func(c *AgentConfig) { c.Node = 1; c.Addresses = make([]string, 40) }, []string{"40 addresses"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, HeadConfig{Nodes: 2})
			r.mustDial(0)
			cfg := r.agentConfig(0)
			test.change(&cfg)
			_, err := r.dial(cfg)
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("got %v, want a refusal", err)
			}
			if refused.Protocol != ProtocolVersion || refused.Build != "head-build" {
				t.Errorf("the refusal comes from protocol %d, build %q", refused.Protocol, refused.Build)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			ev := r.event("refusal", func(ev HeadEvent) bool { return ev.Refused != nil })
			if ev.Refused.Reason != refused.Reason || ev.Refused.Hello.GetBuild() != "agent-build" {
				t.Errorf("event %+v", ev.Refused)
			}
		})
	}
}

// The job's name is part of every key, so an agent of another job does not get as far as a hello;
// the same goes for another secret.
func TestStrangersAreRefused(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	for name, change := range map[string]func(*AgentConfig){
		"other secret": func(c *AgentConfig) { c.Secret = NewSecret() },
		"other job":    func(c *AgentConfig) { c.Job = "j-other" },
	} {
		cfg := r.agentConfig(0)
		change(&cfg)
		if _, err := r.dial(cfg); !errors.Is(err, errStranger) && (err == nil || !strings.Contains(err.Error(), errStranger.Error())) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	r.mustDial(0)
}

// The head does not trust the client's word: a client that skips verifying still needs a certificate.
func TestHeadVerifiesClients(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	config, err := tlsConfig(NewSecret(), testJob, Identity{RoleAgent, 0})
	if err != nil {
		t.Fatal(err)
	}
	config.InsecureSkipVerify = true
	conn, err := dialOnce(t.Context(), dialAttempt, dialTCP, r.addr, config)
	if err != nil { // TLS 1.3: the client's handshake ends before the server has judged it
		return
	}
	defer conn.cut()
	cfg := r.agentConfig(0)
	cfg.protocol = ProtocolVersion
	if link, err := greet(t.Context(), cfg, conn); err == nil {
		t.Error("an agent without the secret was welcomed")
		link.end(ErrClosed)
		<-link.finished
	}
}

func TestCertificateMustMatchHello(t *testing.T) {
	h, err := NewHead(HeadConfig{Job: testJob, Secret: NewSecret(), Nodes: 3})
	if err != nil {
		t.Fatal(err)
	}
	hello := &pb.Hello{Protocol: ProtocolVersion, Job: testJob, Node: 1, Incarnation: 1}
	if reason := h.examine(hello, Identity{RoleAgent, 1}, theHead); reason != "" {
		t.Error(reason)
	}
	for _, id := range []Identity{{RoleAgent, 2}, {RoleHead, -1}, {RoleLauncher, -1}} {
		if h.examine(hello, id, theHead) == "" {
			t.Errorf("%v may speak for agent 1", id)
		}
	}
	if reason := h.examine(&pb.Hello{Protocol: ProtocolVersion, Job: "other", Node: 1}, Identity{RoleAgent, 1}, theHead); !strings.Contains(reason, `not "other"`) {
		t.Error(reason)
	}
}

func TestBrokenConnectionIsSeenAtOnce(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1, Silence: time.Hour})
	link := r.mustDial(0)
	link.conn.cut() // as when the process dies
	ev := r.event("loss", isLost)
	if !ev.Lost.Broke || !strings.Contains(ev.Lost.Error(), "agent of node 0 (host) lost: its connection broke") {
		t.Error(ev.Lost)
	}
	<-link.Done()
	if err := link.Err(); err == nil || !strings.Contains(err.Error(), "broke") {
		t.Errorf("the agent's side: %v", err)
	}
	if err := r.head.Send(0, &pb.ToAgent{}); err == nil {
		t.Error("sending to a lost agent succeeded")
	}
	if _, err := r.dial(r.agentConfig(0)); err == nil {
		t.Error("a lost agent was let in again in the same generation")
	}
}

func TestLeavingUnaskedIsALoss(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	link := r.mustDial(0)
	if err := link.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ev := r.event("loss", isLost); !strings.Contains(ev.Lost.Reason, "before it was told") {
		t.Error(ev.Lost)
	}
}

func TestBrokenProtocolIsALoss(t *testing.T) {
	for name, m := range map[string]*pb.FromAgent{
		"second hello":             {Kind: &pb.FromAgent_Hello{Hello: &pb.Hello{}}},
		"not its own rank":         {Kind: &pb.FromAgent_RankExited{RankExited: &pb.RankExited{Rank: 2}}},
		"no such node":             {Kind: &pb.FromAgent_Member{Member: &pb.MemberEvent{Node: 9}}},
		"put of another node":      {Kind: &pb.FromAgent_Put{Put: &pb.Put{From: 2, To: -1, Round: 1}}},
		"put for nobody":           {Kind: &pb.FromAgent_Put{Put: &pb.Put{From: 0, To: 3, Round: 1}}},
		"put for a later fence":    {Kind: &pb.FromAgent_Put{Put: &pb.Put{From: 0, To: -1, Round: 2}}},
		"put of a huge chunk":      {Kind: &pb.FromAgent_Put{Put: &pb.Put{From: 0, To: -1, Round: 1, Chunk: make([]byte, MaxChunk+1)}}},
		"fence out of order":       {Kind: &pb.FromAgent_Fence{Fence: &pb.FenceEnter{Rank: 1, Round: 2}}},
		"barrier of a rank beyond": {Kind: &pb.FromAgent_Barrier{Barrier: &pb.BarrierEnter{Rank: -5, Seq: 1}}},
		"empty kinds":              {Kind: &pb.FromAgent_Barrier{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, HeadConfig{Nodes: 2})
			links, _ := r.job(2, 1)
			send(t, links[0], m)
			ev := r.event("loss", isLost)
			if ev.Node != 0 || !strings.Contains(ev.Lost.Reason, "broke the protocol") {
				t.Errorf("got %v", ev.Lost)
			}
		})
	}
}

// bubble is a rig without sockets, for fake time.
func bubble(t *testing.T, cfg HeadConfig) (*rig, *bufconn.Listener) {
	l := bufconn.Listen(1 << 20)
	r := newRigOn(t, cfg, l)
	r.addr = "head"
	r.via = func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
	return r, l
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := bubble(t, HeadConfig{Nodes: 1})
		silent := make(chan struct{})
		cfg := r.agentConfig(0)
		cfg.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := l.DialContext(ctx)
			return &mutable{Conn: conn, muted: silent, closed: make(chan struct{})}, err
		}
		link, err := r.dial(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.event("hello", isHello)
		time.Sleep(time.Minute)
		if link.Err() != nil {
			t.Fatalf("the link did not live: %v", link.Err())
		}
		start := time.Now()
		close(silent) // the cable is pulled: neither side hears of the other, and no reset comes
		ev := r.event("loss", isLost)
		if got := time.Since(start); got < 2500*time.Millisecond || got > 3*time.Second {
			t.Errorf("the head saw it after %v, want 2.5 to 3 s", got)
		}
		if want := "it said nothing for 3s"; ev.Lost.Reason != want || ev.Lost.Broke {
			t.Errorf("reason %q, want %q", ev.Lost.Reason, want)
		}
		<-link.Done()
		if got := time.Since(start); got < 4*time.Second || got > 4500*time.Millisecond {
			t.Errorf("the agent saw it after %v, want 4 to 4.5 s", got)
		}
		if want := "the parent at bufconn said nothing for 4.5s"; link.Err().Error() != want {
			t.Errorf("reason %q, want %q", link.Err(), want)
		}
	})
}

// An agent that is silent since it does not get its turn is waited for, by the head and the head by it.
func TestSilenceIsExcused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 10 * time.Second
		var start time.Time
		var wg sync.WaitGroup
		works := func() bool { return time.Since(start) < long }
		r, l := bubble(t, HeadConfig{Nodes: 1, Excuse: func(hello *pb.Hello) func() bool {
			if hello.GetPid() != int32(os.Getpid()) {
				t.Errorf("an excuse of process %d", hello.GetPid())
			}
			return works
		}})
		silent := make(chan struct{})
		cfg := r.agentConfig(0)
		cfg.Dial = func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := l.DialContext(ctx)
			return &mutable{Conn: conn, muted: silent, closed: make(chan struct{})}, err
		}
		cfg.Excuse = works
		start = time.Now()
		link, err := r.dial(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.event("hello", isHello)
		close(silent)
		for who, ended := range map[string]func(){"the head": func() { r.event("loss", isLost) }, "the agent": func() { <-link.Done() }} {
			wg.Go(func() {
				ended()
				if got := time.Since(start); got < long || got > long+DefaultHeartbeat {
					t.Errorf("%s saw it after %v, want %v", who, got, long)
				}
			})
		}
		wg.Wait()
	})
}

// mutable is a connection that can be cut silently: what is written vanishes, and nothing arrives.
type mutable struct {
	net.Conn
	muted  chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (m *mutable) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	select {
	case <-m.muted:
		<-m.closed
		return 0, net.ErrClosed
	default:
	}
	return n, err
}

func (m *mutable) Write(b []byte) (int, error) {
	select {
	case <-m.muted:
		return len(b), nil
	default:
		return m.Conn.Write(b)
	}
}

func (m *mutable) Close() error {
	m.once.Do(func() { close(m.closed) })
	select {
	case <-m.muted:
		return nil
	default:
		return m.Conn.Close()
	}
}

// The counter of generations is the head's alone: a roster must be the next one, and what is said about ranks of
// another generation changes nothing.
func TestOnlyTheCurrentGenerationCounts(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 2})
	links, roster := r.job(1, 1)
	enter := func(link *AgentLink, generation uint32, rank int32, seq uint64) {
		send(t, link, &pb.FromAgent{Generation: generation, Kind: &pb.FromAgent_Barrier{Barrier: &pb.BarrierEnter{Rank: rank, Seq: seq}}})
	}
	enter(links[0], 0, 0, 1) // the first generation stops half-way
	send(t, links[0], &pb.FromAgent{Kind: &pb.FromAgent_NodeDone{NodeDone: &pb.NodeDone{}}})
	r.event("node done", func(ev HeadEvent) bool { return ev.Message.GetNodeDone() != nil })

	again := proto.Clone(roster).(*pb.Roster)
	for _, wrong := range []uint32{0, 2} {
		again.Generation = wrong
		if err := r.head.PushRoster(again); err == nil {
			t.Errorf("a roster of generation %d was taken after that of generation 0", wrong)
		}
	}
	again.Generation = 1
	if err := r.head.PushRoster(again); err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if m := next(t, link); m.GetRoster().GetGeneration() != 1 || m.GetGeneration() != 1 {
			t.Fatalf("got %v, want the roster of generation 1", m)
		}
	}
	enter(links[1], 0, 1, 1) // late: would complete the first generation's barrier
	enter(links[1], 2, 1, 1) // of no generation there is
	send(t, links[1], &pb.FromAgent{Kind: &pb.FromAgent_RankExited{RankExited: &pb.RankExited{Rank: 1, ExitCode: 9}}})
	enter(links[0], 1, 0, 1)
	enter(links[1], 1, 1, 1)
	if ev := r.event("barrier", func(ev HeadEvent) bool { return ev.Barrier != 0 || ev.Message.GetRankExited() != nil }); ev.Message != nil {
		t.Fatal("the exit of a rank of an older generation was passed on")
	}
	for _, link := range links {
		if m := next(t, link); m.GetBarrierDone() == nil || m.GetGeneration() != 1 {
			t.Fatalf("got %v, want the end of generation 1's barrier", m)
		}
	}
}
