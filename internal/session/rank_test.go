package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/engine"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// node is an agent with its rank server, fed from its link.
type node struct {
	link   *AgentLink
	server *RankServer
}

// newNodes makes a job whose agents serve ranks, and attaches all of them; the roster is pushed.
func newNodes(t *testing.T, r *rig, ppn ...int) (nodes []*node, ranks []*Rank) {
	t.Helper()
	links, roster := r.job(ppn...)
	for i, link := range links {
		n := &node{link: link, server: NewRankServer(link, RankServerConfig{Build: "agent-build", Node: i, Log: r.log})}
		nodes = append(nodes, n)
		t.Cleanup(n.server.Close)
		if err := n.server.Observe(&pb.ToAgent{Kind: &pb.ToAgent_Roster{Roster: roster}}); err != nil {
			t.Fatal(err)
		}
		if err := n.server.Observe(&pb.ToAgent{Kind: &pb.ToAgent_Start{Start: &pb.Start{Run: []byte("run")}}}); err != nil {
			t.Fatal(err)
		}
		go func() {
			for m := range link.Messages() {
				if err := n.server.Observe(m); err != nil {
					t.Error(err)
				}
			}
		}()
		for range ppn[i] {
			rank, err := n.attach(t, len(ranks), ProtocolVersion)
			if err != nil {
				t.Fatal(err)
			}
			ranks = append(ranks, rank)
		}
	}
	return nodes, ranks
}

func (n *node) attach(t *testing.T, rank int, protocol uint32) (*Rank, error) {
	t.Helper()
	sockets, err := NewRankSockets()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.server.Serve(rank, sockets.Session, sockets.Broker); err != nil {
			t.Errorf("serving rank %d: %v", rank, err)
		}
	}()
	t.Cleanup(func() { <-done })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := attach(ctx, sockets.RankSession, sockets.RankBroker, "rank-build", protocol)
	if err == nil {
		t.Cleanup(r.Close)
	}
	return r, err
}

// all runs f for every rank at the same time.
func all(t *testing.T, ranks []*Rank, f func(ctx context.Context, i int, r *Rank) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	for i, r := range ranks {
		group.Go(func() error {
			if err := f(ctx, i, r); err != nil {
				return fmt.Errorf("rank %d: %w", i, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// blob is what rank `from` puts for rank `to` before a fence: long ones span several chunks.
func blob(from, to, round int) []byte {
	b := bytes.Repeat([]byte{byte(from), byte(to + 1), byte(round)}, 1+MaxChunk/2*(from%2))
	return append(b, byte(len(b)))
}

func TestPutFenceGet(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 3})
	_, ranks := newNodes(t, r, 2, 1, 2)
	for i, rank := range ranks {
		info := rank.Info()
		if info.Rank != i || info.Job != testJob || string(info.Run) != "run" || len(info.Roster.Nodes) != 3 {
			t.Fatalf("rank %d learned %+v", i, info)
		}
	}
	all(t, ranks, func(ctx context.Context, i int, r *Rank) error {
		if _, _, err := r.Get(ctx, 0); err == nil {
			return errors.New("a get before any fence succeeded")
		}
		for round := 1; round <= 3; round++ {
			// Everybody puts a common part, except rank 3 in round 2; and a private part for the next rank.
			next, previous := (i+1)%len(ranks), (i+len(ranks)-1)%len(ranks)
			if i != 3 || round != 2 {
				if err := r.Put(ctx, engine.Everyone, blob(i, -1, round)); err != nil {
					return err
				}
			}
			if err := r.Put(ctx, next, blob(i, next, round)); err != nil {
				return err
			}
			if err := r.Put(ctx, next, []byte("and more")); err != nil {
				return err
			}
			if err := r.Fence(ctx); err != nil {
				return err
			}
			for from := range ranks {
				common, private, err := r.Get(ctx, from)
				if err != nil {
					return err
				}
				wantCommon := blob(from, -1, round)
				if from == 3 && round == 2 {
					wantCommon = nil
				}
				var wantPrivate []byte
				if from == previous {
					wantPrivate = append(blob(from, i, round), "and more"...)
				}
				if !bytes.Equal(common, wantCommon) || (common == nil) != (wantCommon == nil) {
					return fmt.Errorf("round %d, rank %d's common part: %d bytes, want %d", round, from, len(common), len(wantCommon))
				}
				if !bytes.Equal(private, wantPrivate) || (private == nil) != (wantPrivate == nil) {
					return fmt.Errorf("round %d, rank %d's private part: %d bytes, want %d", round, from, len(private), len(wantPrivate))
				}
			}
		}
		return nil
	})
}

func TestEmptyBlobIsNotNone(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	_, ranks := newNodes(t, r, 1)
	if err := ranks[0].Put(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := ranks[0].Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if common, private, err := ranks[0].Get(t.Context(), 0); err != nil || common != nil || private == nil {
		t.Errorf("common %v, private %v, %v", common, private, err)
	}
}

func TestBarrierOrder(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 2})
	_, ranks := newNodes(t, r, 2, 1)
	var mu sync.Mutex
	entered := make([]int, len(ranks))
	all(t, ranks, func(ctx context.Context, i int, r *Rank) error {
		for round := 1; round <= 20; round++ {
			mu.Lock()
			entered[i] = round
			mu.Unlock()
			if err := r.Barrier(ctx); err != nil {
				return err
			}
			mu.Lock()
			for peer, e := range entered {
				if e < round {
					mu.Unlock()
					return fmt.Errorf("past barrier %d, but rank %d is at %d", round, peer, e)
				}
			}
			mu.Unlock()
		}
		return nil
	})
}

// A rank that gives up waiting is still counted in, and joins the same barrier when it calls again,
// even if that is done by then.
func TestGivenUpBarrierAndFence(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 2})
	_, ranks := newNodes(t, r, 1, 1)
	for _, c := range []struct {
		collective func(*Rank, context.Context) error
		late       func() []int
	}{
		{(*Rank).Barrier, func() []int { _, late := r.head.Waiting(); return late }},
		{(*Rank).Fence, func() []int { late, _ := r.head.Waiting(); return late }},
	} {
		collective := c.collective
		short, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() { gaveUp <- collective(ranks[0], short) }()
		for fmt.Sprint(c.late()) != "[1]" { // until it is counted in
			select {
			case err := <-gaveUp:
				t.Fatalf("it did not wait: %v", err)
			case <-time.After(time.Millisecond):
			}
		}
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		all(t, ranks[1:], func(ctx context.Context, _ int, r *Rank) error { return collective(r, ctx) })
		all(t, ranks[:1], func(ctx context.Context, _ int, r *Rank) error { return collective(r, ctx) })
		all(t, ranks, func(ctx context.Context, _ int, r *Rank) error { return collective(r, ctx) })
	}
	ranks[0].Close()
	if err := ranks[0].Barrier(t.Context()); !errors.Is(err, errRankClosed) {
		t.Errorf("a barrier of a closed rank: %v", err)
	}
}

func TestWaitingNamesTheLate(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 2})
	_, ranks := newNodes(t, r, 2, 1)
	done := make(chan error, 1)
	go func() { done <- ranks[1].Barrier(t.Context()) }()
	for {
		_, late := r.head.Waiting()
		if fmt.Sprint(late) == "[0 2]" {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("one rank passed the barrier alone: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	all(t, []*Rank{ranks[0], ranks[2]}, func(ctx context.Context, _ int, r *Rank) error { return r.Barrier(ctx) })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBadPutsAreTheRanksOwnError(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	_, ranks := newNodes(t, r, 2)
	ctx := t.Context()
	if err := ranks[0].Put(ctx, 2, nil); err == nil || !strings.Contains(err.Error(), "no rank 2 in a job of 2 ranks") {
		t.Errorf("got %v", err)
	}
	if err := ranks[0].Put(ctx, 1, make([]byte, MaxRankPut+1)); err == nil || !strings.Contains(err.Error(), "more than 16 MiB") {
		t.Errorf("got %v", err)
	}
	if _, _, err := ranks[0].Get(ctx, 7); err == nil {
		t.Error("got the data of a rank that is not there")
	}
	all(t, ranks, func(ctx context.Context, _ int, r *Rank) error { return r.Fence(ctx) }) // nobody was hurt
}

// All ranks together may fill the head; then the job ends with a clear reason, not the agent.
func TestStoreLimitEndsTheJob(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1, StoreLimit: 1 << 20})
	_, ranks := newNodes(t, r, 1)
	if err := ranks[0].Put(t.Context(), 0, make([]byte, 2<<20)); err != nil {
		t.Fatal(err)
	}
	ev := r.event("abort request", func(ev HeadEvent) bool {
		if ev.Lost != nil {
			t.Fatal(ev.Lost)
		}
		return ev.Message.GetAbort() != nil
	})
	if reason := ev.Message.GetAbort().Reason; !strings.Contains(reason, "more than 1 MiB before fence 1") {
		t.Error(reason)
	}
}

func TestReportAbortAndLoss(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 2})
	nodes, ranks := newNodes(t, r, 1, 1)
	if err := ranks[1].Report(t.Context(), []byte(`{"ok":true}`)); err != nil {
		t.Fatal(err)
	}
	ev := r.event("report", func(ev HeadEvent) bool { return ev.Message.GetReport() != nil })
	if rep := ev.Message.GetReport(); rep.Rank != 1 || string(rep.Json) != `{"ok":true}` {
		t.Errorf("got %v", rep)
	}
	if err := ranks[1].RequestAbort(t.Context(), Complaint{Reason: "it is wrong", ExitStatus: 3, PeerLost: true}); err != nil {
		t.Fatal(err)
	}
	ev = r.event("abort request", func(ev HeadEvent) bool { return ev.Message.GetAbort() != nil })
	if a := ev.Message.GetAbort(); a.Rank != 1 || a.Reason != "it is wrong" || a.ExitStatus != 3 || !a.PeerLost {
		t.Errorf("got %v", a)
	}

	// The abort frees whoever waits, with the cause.
	waits := map[string]func() error{
		"fence":   func() error { return ranks[0].Fence(t.Context()) },
		"barrier": func() error { return ranks[0].Barrier(t.Context()) },
		"file":    func() error { _, err := ranks[0].PeerFile(t.Context(), 0, "never"); return err },
	}
	errs := make(chan error, len(waits))
	for _, wait := range waits {
		go func() { errs <- wait() }()
	}
	cause := &pb.Cause{Kind: pb.Cause_RANK_ABORT, Node: 1, Rank: 1, Reason: "it is wrong"}
	if err := r.head.Broadcast(&pb.ToAgent{Kind: &pb.ToAgent_Abort{Abort: &pb.Abort{Cause: cause}}}); err != nil {
		t.Fatal(err)
	}
	for range waits {
		if err := <-errs; err == nil || !strings.Contains(err.Error(), "the job was aborted: it is wrong") {
			t.Errorf("got %v", err)
		}
	}
	for _, rank := range ranks {
		if got := <-rank.Aborted(); got.GetReason() != "it is wrong" || got.GetRank() != 1 {
			t.Errorf("got %v", got)
		}
	}
	var aborted *AbortedError
	if err := ranks[0].Barrier(t.Context()); !errors.As(err, &aborted) || aborted.Cause.GetKind() != pb.Cause_RANK_ABORT {
		t.Errorf("got %v", err)
	}
	nodes[0].server.Close()
}

func TestLostAgentAbortsTheRank(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	nodes, ranks := newNodes(t, r, 2)
	nodes[0].server.Close()
	if got := <-ranks[0].Aborted(); got.GetKind() != pb.Cause_AGENT_LOST {
		t.Errorf("got %v", got)
	}
	ranks[1].Close()
	for c := range ranks[1].Aborted() { // may have seen the loss first; must end in any case
		t.Log(c)
	}
	if _, err := ranks[0].PeerFile(t.Context(), 1, "x"); err == nil {
		t.Error("a file of a lost agent")
	}
}

func TestAttachRefusesOtherProtocol(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 1})
	nodes, _ := newNodes(t, r, 1)
	_, err := nodes[0].attach(t, 0, 9)
	for _, want := range []string{"protocol 9", `"rank-build"`, "protocol 1", `"agent-build"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}

func TestFilesBetweenRanks(t *testing.T) {
	r := newRig(t, HeadConfig{Nodes: 2})
	_, ranks := newNodes(t, r, 3, 1)
	before := openFiles(t)
	all(t, ranks[:3], func(ctx context.Context, i int, r *Rank) error {
		fd, err := unix.MemfdCreate("heap", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		heap := os.NewFile(uintptr(fd), "heap")
		defer heap.Close()
		if _, err := heap.WriteString(fmt.Sprintf("heap of rank %d", i)); err != nil {
			return err
		}
		share := func() error { return r.ShareFile(ctx, "heap", heap) }
		if i != 2 { // rank 2 asks first and shares afterwards
			if err := share(); err != nil {
				return err
			}
		}
		for peer := range 3 {
			if i == 2 && peer == 2 {
				if err := share(); err != nil {
					return err
				}
			}
			f, err := r.PeerFile(ctx, peer, "heap")
			if err != nil {
				return err
			}
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				return fmt.Errorf("a received descriptor is inherited by children (%v)", err)
			}
			text, err := io.ReadAll(io.NewSectionReader(f, 0, 100))
			_ = f.Close()
			if want := fmt.Sprintf("heap of rank %d", peer); err != nil || string(text) != want {
				return fmt.Errorf("got %q (%v), want %q", text, err, want)
			}
		}
		if err := share(); err == nil || !strings.Contains(err.Error(), "already shared") {
			return fmt.Errorf("sharing twice: %v", err)
		}
		if _, err := r.PeerFile(ctx, 3, "heap"); err == nil || !strings.Contains(err.Error(), "rank 3 is not on this node, whose ranks are 0 to 2") {
			return fmt.Errorf("a file of another node: %v", err)
		}
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if _, err := r.PeerFile(short, 0, "never shared"); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("waiting for a file that nobody shares: %v", err)
		}
		if err := r.ShareFile(ctx, strings.Repeat("x", 200), heap); err == nil {
			return errors.New("a name of 200 bytes was accepted")
		}
		return nil
	})
	if after := openFiles(t); after != before+3 { // the agent keeps one of each rank
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestInheritedFiles(t *testing.T) {
	t.Setenv(EnvSessionFD, "x")
	t.Setenv(EnvBrokerFD, "1")
	if _, _, err := InheritedFiles(); err == nil {
		t.Error("a descriptor named x")
	}
	s, err := NewRankSockets()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	session, err := unix.Dup(int(s.RankSession.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	broker, err := unix.Dup(int(s.RankBroker.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvSessionFD, fmt.Sprint(session))
	t.Setenv(EnvBrokerFD, fmt.Sprint(broker))
	a, b, err := InheritedFiles()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{a, b} {
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s is inherited by children (%v)", f.Name(), err)
		}
		_ = f.Close()
	}
	if _, _, err := InheritedFiles(); err == nil || !strings.Contains(err.Error(), "must be started by mkrun launch") {
		t.Errorf("a second time: %v", err)
	}
}
