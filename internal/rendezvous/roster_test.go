package rendezvous

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

func hello(node int32) *pb.Hello {
	return &pb.Hello{Job: "j", Generation: 2, Node: node, Incarnation: uint64(node) + 10, Hostname: "h" + string('a'+node),
		Addresses: []string{"127.0.0." + string('1'+node) + ":7000"}}
}

func TestRosterOrder(t *testing.T) {
	start := time.Unix(1000, 0)
	a, err := NewAssembly("j", 2, []int{2, 1, 3}, start)
	if err != nil {
		t.Fatal(err)
	}
	for i, node := range []int32{2, 0, 1} { // the order of arrival does not count
		if _, err := a.Roster(); err == nil {
			t.Error("a roster with nodes missing")
		}
		complete, err := a.Hello(hello(node))
		if err != nil || complete != (i == 2) {
			t.Fatalf("after node %d: complete %v, %v", node, complete, err)
		}
	}
	got, err := a.Roster()
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.Roster{Job: "j", Generation: 2, Nodes: []*pb.Node{
		{Index: 0, Incarnation: 10, Hostname: "ha", Address: "127.0.0.1", Gossip: []string{"127.0.0.1:7000"}, FirstRank: 0, Ranks: 2},
		{Index: 1, Incarnation: 11, Hostname: "hb", Address: "127.0.0.2", Gossip: []string{"127.0.0.2:7000"}, FirstRank: 2, Ranks: 1},
		{Index: 2, Incarnation: 12, Hostname: "hc", Address: "127.0.0.3", Gossip: []string{"127.0.0.3:7000"}, FirstRank: 3, Ranks: 3},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestMissing(t *testing.T) {
	start, later := time.Unix(1000, 0), time.Unix(1005, 0)
	a, err := NewAssembly("j", 2, []int{1, 1, 1}, start)
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []int32{0, 1} {
		if _, err := a.Hello(hello(node)); err != nil {
			t.Fatal(err)
		}
	}
	a.Lost(1, later)
	a.Lost(2, later) // was not here anyway
	if diff := cmp.Diff([]Missing{{1, later}, {2, start}}, a.Missing()); diff != "" {
		t.Error(diff)
	}
	if _, err := a.Hello(hello(1)); err != nil {
		t.Error(err)
	}
}

func TestBadHellos(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*pb.Hello)
		want   string
	}{
		{"job", func(h *pb.Hello) { h.Job = "other" }, `job "other"`},
		{"generation", func(h *pb.Hello) { h.Generation = 1 }, "generation 1"},
		{"node", func(h *pb.Hello) { h.Node = 2 }, "node 2; job j has nodes 0 to 1"},
		{"negative node", func(h *pb.Hello) { h.Node = -1 }, "node -1"},
		{"twice", func(h *pb.Hello) { h.Node = 0 }, "second hello of node 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, err := NewAssembly("j", 2, []int{1, 1}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Hello(hello(0)); err != nil {
				t.Fatal(err)
			}
			h := hello(1)
			test.change(h)
			if _, err := a.Hello(h); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if len(a.Missing()) != 1 {
				t.Error("a bad hello was counted")
			}
		})
	}
	for _, ppn := range [][]int{nil, {1, 0}} {
		if _, err := NewAssembly("j", 0, ppn, time.Now()); err == nil {
			t.Errorf("ppn %v was accepted", ppn)
		}
	}
}

func TestRosterWithABadAddress(t *testing.T) {
	a, err := NewAssembly("j", 2, []int{1}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := hello(0)
	h.Addresses = []string{"nonsense"}
	if _, err := a.Hello(h); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Roster(); err == nil {
		t.Error("a roster with an address that is none")
	}
}
