package session

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/leaktest"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const testJob = "j-test"

// rig is a head on a loopback port, with the means to connect agents to it.
type rig struct {
	t      testing.TB
	head   *Head
	secret Secret
	addr   string
	via    DialFunc
	log    *slog.Logger
}

// newRig starts a head. Its events must be read by the test; what is left is drained in the end.
func newRig(t testing.TB, cfg HeadConfig) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Silence == 0 {
		cfg.Silence = time.Hour // silence is tested in fake time; the machine may be busy
	}
	r := newRigOn(t, cfg, l)
	r.addr = l.Addr().String()
	return r
}

func newRigOn(t testing.TB, cfg HeadConfig, l net.Listener) *rig {
	t.Helper()
	r := &rig{t: t, secret: NewSecret(), log: slog.New(slog.DiscardHandler)}
	cfg.Job, cfg.Secret, cfg.Log, cfg.Build = testJob, r.secret, r.log, "head-build"
	head, err := NewHead(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.head = head
	served := make(chan error, 1)
	go func() { served <- head.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		go func() {
			for range head.Events() {
			}
		}()
		done, cancel := context.WithCancel(context.Background())
		cancel()
		head.Close(done)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

func (r *rig) agentConfig(node int) AgentConfig {
	return AgentConfig{
		Parents: []string{r.addr}, Job: testJob, Node: node, Incarnation: uint64(node) + 100,
		Secret: r.secret, Build: "agent-build", Hostname: "host", Addresses: []string{"127.0.0.1:1"}, Log: r.log, Dial: r.via,
	}
}

// dial connects an agent; its link is closed in the end.
func (r *rig) dial(cfg AgentConfig) (*AgentLink, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	link, err := Dial(ctx, cfg)
	if err == nil {
		r.t.Cleanup(func() {
			done, cancel := context.WithCancel(context.Background())
			cancel()
			_ = link.Close(done)
		})
	}
	return link, err
}

func (r *rig) mustDial(node int) *AgentLink {
	r.t.Helper()
	link, err := r.dial(r.agentConfig(node))
	if err != nil {
		r.t.Fatal(err)
	}
	return link
}

// event returns the next event that is wanted, and fails on one that must not come.
func (r *rig) event(what string, want func(HeadEvent) bool) HeadEvent {
	r.t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case ev, ok := <-r.head.Events():
			if !ok {
				r.t.Fatalf("events ended before %s", what)
			}
			if want(ev) {
				return ev
			}
			if ev.Lost != nil {
				r.t.Fatalf("instead of %s: %v", what, ev.Lost)
			}
		case <-timeout:
			r.t.Fatalf("no %s came", what)
		}
	}
}

func isHello(ev HeadEvent) bool { return ev.Message.GetHello() != nil }
func isLost(ev HeadEvent) bool  { return ev.Lost != nil }

// job connects all agents of a roster with the given ranks per node, and pushes the roster.
func (r *rig) job(ppn ...int) (links []*AgentLink, roster *pb.Roster) {
	r.t.Helper()
	roster = &pb.Roster{Job: testJob}
	for node, ranks := range ppn {
		links = append(links, r.mustDial(node))
		r.event("hello", isHello)
		first := int32(0)
		if node > 0 {
			last := roster.Nodes[node-1]
			first = last.FirstRank + last.Ranks
		}
		roster.Nodes = append(roster.Nodes, &pb.Node{Index: int32(node), FirstRank: first, Ranks: int32(ranks)})
	}
	if err := r.head.PushRoster(roster); err != nil {
		r.t.Fatal(err)
	}
	for _, link := range links {
		if m := next(r.t, link); m.GetRoster() == nil {
			r.t.Fatalf("got %v, want the roster", m)
		}
	}
	return links, roster
}

// next returns an agent's next message.
func next(t testing.TB, link *AgentLink) *pb.ToAgent {
	t.Helper()
	select {
	case m, ok := <-link.Messages():
		if !ok {
			t.Fatalf("the link ended: %v", link.Err())
		}
		return m
	case <-time.After(time.Minute):
		t.Fatal("no message came")
	}
	return nil
}

func send(t testing.TB, link *AgentLink, m *pb.FromAgent) {
	t.Helper()
	if err := link.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}
