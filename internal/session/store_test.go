package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// twoNodes has ranks 0 and 1 on node 0, and rank 2 on node 1.
func twoNodes(t *testing.T) world {
	t.Helper()
	w, err := newWorld(&pb.Roster{Nodes: []*pb.Node{{Index: 0, FirstRank: 0, Ranks: 2}, {Index: 1, FirstRank: 2, Ranks: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// What a rank put for another never travels to a node that has no business with it.
func TestStoreSendsEachNodeOnlyItsOwn(t *testing.T) {
	s := newStore(twoNodes(t), 1<<20)
	for _, p := range []*pb.Put{
		{From: 0, To: -1, Chunk: []byte("0 to all")},
		{From: 0, To: 1, Chunk: []byte("0 to 1")},
		{From: 1, To: 2, Chunk: []byte("1 to 2")},
		{From: 2, To: 0, Chunk: []byte("2 to 0")},
		{From: 2, To: 2, Chunk: []byte("2 to 2")},
	} {
		p.Round = 1
		if err := s.put(p); err != nil {
			t.Fatal(err)
		}
	}
	var out [][]*pb.ToAgent
	for rank := range int32(3) {
		if out != nil {
			t.Fatal("the fence was done before all had entered")
		}
		var err error
		if out, err = s.enter(&pb.FenceEnter{Rank: rank, Round: 1}); err != nil {
			t.Fatal(err)
		}
	}
	for node, want := range [][]string{{"0 to all", "0 to 1", "2 to 0"}, {"0 to all", "1 to 2", "2 to 2"}} {
		var got []string
		for _, m := range out[node] {
			for _, p := range m.GetFenceDone().Blobs {
				got = append(got, string(p.Chunk))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("node %d got %q, want %q", node, got, want)
		}
	}
}

func TestStoreCutsMessages(t *testing.T) {
	s := newStore(twoNodes(t), 64<<20)
	for i := range 200 { // sizes from nothing to a whole chunk
		if err := s.put(&pb.Put{From: int32(i % 3), To: -1, Round: 1, Chunk: make([]byte, (i*7919)%MaxChunk)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.put(&pb.Put{From: 0, To: -1, Round: 1, Chunk: make([]byte, MaxChunk)}); err != nil {
		t.Fatal(err)
	}
	messages, blobs := s.pieces(0, 1), 0
	for i, m := range messages {
		if size := proto.Size(m); size > 2*MaxChunk {
			t.Errorf("message %d of %d has %d bytes", i, len(messages), size)
		}
		if last := i == len(messages)-1; m.GetFenceDone().More == last {
			t.Errorf("message %d of %d: more = %v", i, len(messages), m.GetFenceDone().More)
		}
		blobs += len(m.GetFenceDone().Blobs)
	}
	if blobs != 201 {
		t.Errorf("%d blobs came out of 201", blobs)
	}
	if empty := newStore(twoNodes(t), 1).pieces(1, 1); len(empty) != 1 || empty[0].GetFenceDone().More {
		t.Errorf("a fence without data makes %v", empty)
	}
}

func TestStoreLimits(t *testing.T) {
	put := func(s *store, rank int32, n int) (err error) {
		for ; n > 0 && err == nil; n-- {
			err = s.put(&pb.Put{From: rank, To: -1, Round: s.fence.done + 1, Chunk: make([]byte, MaxChunk)})
		}
		return err
	}
	s := newStore(twoNodes(t), 2*MaxRankPut)
	if err := put(s, 0, MaxRankPut/MaxChunk); err != nil {
		t.Error(err)
	}
	if err := put(s, 0, 1); !errors.Is(err, errStoreFull) || !strings.Contains(err.Error(), "rank 0 put more than 16 MiB") {
		t.Errorf("got %v", err)
	}
	if err := put(s, 1, MaxRankPut/MaxChunk); err != nil {
		t.Error(err)
	}
	if err := put(s, 2, 1); !errors.Is(err, errStoreFull) || !strings.Contains(err.Error(), "together put more than 32 MiB") {
		t.Errorf("got %v", err)
	}
	for rank := range int32(3) {
		if _, err := s.enter(&pb.FenceEnter{Rank: rank, Round: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(s, 0, MaxRankPut/MaxChunk); err != nil {
		t.Errorf("after the fence there is room again: %v", err)
	}
}

func TestCollective(t *testing.T) {
	c := newCollective("barrier", 3)
	enter := func(rank int32, round uint64) string {
		done, err := c.enter(rank, round)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(done)
	}
	for _, step := range []struct {
		rank  int32
		round uint64
		want  string
	}{
		{1, 1, "false"},
		{1, 1, "rank 1 entered barrier 1 twice"},
		{1, 2, "rank 1 entered barrier 2 while barrier 1 is in progress"},
		{3, 1, "rank 3 entered a barrier, but the job has ranks 0 to 2"},
		{-1, 1, "rank -1 entered a barrier, but the job has ranks 0 to 2"},
		{0, 1, "false"},
		{2, 1, "true"},
		{2, 1, "rank 2 entered barrier 1 while barrier 2 is in progress"},
		{2, 2, "false"},
	} {
		if got := enter(step.rank, step.round); got != step.want {
			t.Errorf("rank %d, round %d: %q, want %q", step.rank, step.round, got, step.want)
		}
	}
	if got := c.missing(); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("missing %v", got)
	}
}

func TestBadRosters(t *testing.T) {
	for name, nodes := range map[string][]*pb.Node{
		"empty":       nil,
		"gap":         {{Index: 0, FirstRank: 0, Ranks: 1}, {Index: 1, FirstRank: 2, Ranks: 1}},
		"order":       {{Index: 1, FirstRank: 0, Ranks: 1}},
		"no rank":     {{Index: 0, FirstRank: 0, Ranks: 0}},
		"nothing":     {nil},
		"too many":    {{Index: 0, FirstRank: 0, Ranks: 1 << 30}},
		"less than 0": {{Index: 0, FirstRank: 0, Ranks: -1}},
	} {
		if _, err := newWorld(&pb.Roster{Nodes: nodes}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
