package session

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

func TestTree(t *testing.T) {
	for _, tt := range []struct{ radix, nodes int }{{1, 5}, {2, 14}, {3, 40}, {0, 32}, {0, 33}, {0, 1024}, {0, 2000}} {
		tree := Tree{tt.radix, tt.nodes}
		seen := make([]bool, tt.nodes)
		for from := theHead; from < tt.nodes; from++ {
			first, end := tree.Children(from)
			if end-first > tree.radix() {
				t.Errorf("%+v: %d has %d children", tree, from, end-first)
			}
			for child := first; child < end; child++ {
				if seen[child] || tree.Parent(child) != from {
					t.Errorf("%+v: node %d seen before or not a child of %d", tree, child, from)
				}
				seen[child] = true
			}
		}
		if slices.Contains(seen, false) {
			t.Errorf("%+v: somebody is nobody's child", tree)
		}
		for node := range tt.nodes {
			way := []int{node}
			for way[0] != theHead {
				way = append([]int{tree.Parent(way[0])}, way...)
			}
			for i, from := range way[:len(way)-1] {
				if child, ok := tree.toward(from, node); !ok || child != way[i+1] {
					t.Errorf("%+v: from %d toward %d: %d, %v; want %d", tree, from, node, child, ok, way[i+1])
				}
			}
			if _, ok := tree.toward(node, node); ok {
				t.Errorf("%+v: node %d is below itself", tree, node)
			}
			if _, ok := tree.toward(node, tree.Parent(node)); ok {
				t.Errorf("%+v: node %d's parent is below it", tree, node)
			}
		}
	}
	for _, tt := range []struct{ nodes, streams int }{{1, 1}, {32, 32}, {33, 32}, {1024, 32}} {
		if first, end := (Tree{0, tt.nodes}).Children(theHead); end-first != tt.streams {
			t.Errorf("%d nodes: the head has %d streams, want %d", tt.nodes, end-first, tt.streams)
		}
	}
}

// branch is an agent in a tree: what it is told, after it passed on what is for others.
type branch struct {
	link  *AgentLink
	relay *Relay
	addr  string
	mine  chan *pb.ToAgent
}

func (r *rig) branch(t *testing.T, cfg AgentConfig, tree Tree) *branch {
	t.Helper()
	link, err := r.dial(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &branch{link: link, mine: make(chan *pb.ToAgent, 100)}
	b.relay, err = NewRelay(RelayConfig{Job: testJob, Secret: r.secret, Node: cfg.Node, Tree: tree, Build: "relay-build", Log: r.log}, link)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- b.relay.Serve(context.Background(), l) }()
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		for m := range link.Messages() {
			if b.relay.Pass(m) {
				b.mine <- m
			}
		}
	}()
	t.Cleanup(func() {
		done, cancel := context.WithCancel(context.Background())
		cancel()
		b.relay.Close(done)
		_ = link.Close(done)
		<-pumped
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return b
}

// wood is a tree of 7 agents with radix 2: 0 and 1 report to the head, 2 and 3 to 0, 4 and 5 to 1, 6 to 2.
func wood(t *testing.T) (*rig, []*branch) {
	t.Helper()
	tree := Tree{2, 7}
	r := newRig(t, HeadConfig{Nodes: tree.Nodes, Radix: tree.Radix})
	list := make([]*branch, tree.Nodes)
	for node := range list {
		cfg := r.agentConfig(node)
		if p := tree.Parent(node); p != theHead {
			cfg.Parents = []string{list[p].addr}
		}
		list[node] = r.branch(t, cfg, tree)
		if ev := r.event("hello", isHello); ev.Node != node || ev.Incarnation != uint64(node)+100 {
			t.Fatalf("hello of node %d, incarnation %d; want node %d's", ev.Node, ev.Incarnation, node)
		}
	}
	return r, list
}

func (b *branch) next(t *testing.T) *pb.ToAgent {
	t.Helper()
	select {
	case m := <-b.mine:
		return m
	case <-time.After(time.Minute):
		t.Fatal("no message came")
	}
	return nil
}

func TestTreePassesMessages(t *testing.T) {
	r, list := wood(t)
	roster := &pb.Roster{Job: testJob}
	for node := range list {
		roster.Nodes = append(roster.Nodes, &pb.Node{Index: int32(node), FirstRank: int32(node), Ranks: 1})
	}
	if err := r.head.PushRoster(roster); err != nil {
		t.Fatal(err)
	}
	for node := range list {
		if err := r.head.Send(node, &pb.ToAgent{Kind: &pb.ToAgent_Signal{Signal: &pb.Signal{Number: int32(node)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for node, b := range list {
		if m := b.next(t); m.GetRoster() == nil {
			t.Errorf("node %d: got %v, want the roster", node, m)
		}
		if m := b.next(t); m.GetSignal() == nil || int(m.GetSignal().Number) != node {
			t.Errorf("node %d: got %v, want its signal", node, m)
		}
		send(t, b.link, &pb.FromAgent{Kind: &pb.FromAgent_Facts{Facts: &pb.Facts{Json: []byte{byte(node)}}}})
		if ev := r.event("facts", func(ev HeadEvent) bool { return ev.Message.GetFacts() != nil }); ev.Node != node || int(ev.Message.GetFacts().Json[0]) != node {
			t.Errorf("facts %v of node %d, want those of %d", ev.Message, ev.Node, node)
		}
	}
	// A barrier of all ranks, wherever they report; then what each put for its successor.
	for node, b := range list {
		send(t, b.link, &pb.FromAgent{Kind: &pb.FromAgent_Barrier{Barrier: &pb.BarrierEnter{Rank: int32(node), Seq: 1}}})
	}
	for node, b := range list {
		if m := b.next(t); m.GetBarrierDone().GetSeq() != 1 {
			t.Errorf("node %d: got %v, want the barrier's end", node, m)
		}
		next := int32(node+1) % int32(len(list))
		send(t, b.link, &pb.FromAgent{Kind: &pb.FromAgent_Put{Put: &pb.Put{From: int32(node), To: next, Round: 1, Chunk: []byte{byte(node)}}}})
		send(t, b.link, &pb.FromAgent{Kind: &pb.FromAgent_Fence{Fence: &pb.FenceEnter{Rank: int32(node), Round: 1}}})
	}
	for node, b := range list {
		blobs := b.next(t).GetFenceDone().GetBlobs()
		if len(blobs) != 1 || int(blobs[0].To) != node || int(blobs[0].From) != (node+len(list)-1)%len(list) {
			t.Errorf("node %d got %v", node, blobs)
		}
	}
	// The end, in order: from the leaves up.
	if err := r.head.Broadcast(&pb.ToAgent{Kind: &pb.ToAgent_Shutdown{Shutdown: &pb.Shutdown{}}}); err != nil {
		t.Fatal(err)
	}
	left := map[int]bool{}
	for node := len(list) - 1; node >= 0; node-- {
		if m := list[node].next(t); m.GetShutdown() == nil {
			t.Fatalf("got %v, want Shutdown", m)
		}
		go func() {
			list[node].relay.Close(t.Context()) // when all that report to it have left
			_ = list[node].link.Close(t.Context())
		}()
	}
	for range list {
		ev := r.event("left", func(ev HeadEvent) bool { return ev.Left })
		for child := range list {
			if (Tree{2, 7}).Parent(child) == ev.Node && !left[child] {
				t.Errorf("node %d left before %d, which reports to it", ev.Node, child)
			}
		}
		left[ev.Node] = true
	}
}

// The loss of a leaf is told by its parent; with an agent in the middle go all that report to it, which see it themselves.
func TestTreeLosesAgents(t *testing.T) {
	r, list := wood(t)
	list[2].link.conn.cut()
	for _, node := range []int{2, 6} { // deep in the tree, the middle first
		if ev := r.event("loss", isLost); ev.Node != node {
			t.Errorf("lost %v, want node %d", ev.Lost, node)
		}
	}
	r, list = wood(t)
	list[6].link.conn.cut()
	if ev := r.event("loss", isLost); ev.Node != 6 || !strings.Contains(ev.Lost.Reason, "closed it") {
		t.Errorf("lost %v", ev.Lost)
	}
	list[0].link.conn.cut()
	lost := map[int]string{}
	for range 3 {
		ev := r.event("loss", isLost)
		lost[ev.Node] = ev.Lost.Reason
	}
	if len(lost) != 3 || !strings.Contains(lost[0], "closed it") || !strings.Contains(lost[2], "node 0 (host), to which it reported, is gone") {
		t.Errorf("lost %v", lost)
	}
	if err := r.head.Send(3, &pb.ToAgent{Kind: &pb.ToAgent_Signal{Signal: &pb.Signal{}}}); err == nil {
		t.Error("a node that was lost with its parent can be spoken to")
	}
	if err := r.head.Send(5, &pb.ToAgent{Kind: &pb.ToAgent_Signal{Signal: &pb.Signal{Number: 9}}}); err != nil {
		t.Error(err)
	}
	if m := list[5].next(t); m.GetSignal().GetNumber() != 9 {
		t.Errorf("got %v", m)
	}
}

func TestTreeRefuses(t *testing.T) {
	r, list := wood(t)
	// A second agent for a node, at its parent.
	again := r.agentConfig(6)
	again.Incarnation, again.Parents = 7, []string{list[2].addr}
	var refused *RefusedError
	if _, err := r.dial(again); !errors.As(err, &refused) || !strings.Contains(err.Error(), "already taken") {
		t.Errorf("a second agent: %v", err)
	}
	if ev := r.event("refusal", func(ev HeadEvent) bool { return ev.Refused != nil }); ev.Node != 6 {
		t.Errorf("refused node %d: %+v", ev.Node, ev.Refused)
	}
	// One that reports to the wrong one.
	wrong := r.agentConfig(6)
	wrong.Incarnation, wrong.Parents = 7, []string{list[0].addr}
	if _, err := r.dial(wrong); !errors.As(err, &refused) || !strings.Contains(err.Error(), "does not report here") {
		t.Errorf("at the wrong parent: %v", err)
	}
	r.event("refusal", func(ev HeadEvent) bool { return ev.Refused != nil })
	// One that speaks for a node that does not report to it is not to be trusted.
	send(t, list[1].link, &pb.FromAgent{Origin: toNode(6), Kind: &pb.FromAgent_Gone{Gone: &pb.Gone{InOrder: true}}})
	if ev := r.event("loss", isLost); ev.Node != 1 || !strings.Contains(ev.Lost.Reason, "word of node 6") {
		t.Errorf("lost %v", ev.Lost)
	}
}
