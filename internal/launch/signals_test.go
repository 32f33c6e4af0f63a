package launch

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// An order goes to every node, behind the order to start: so it reaches also the ranks of whose start nothing was heard yet.
func TestAliveAreThoseWhomAnOrderReaches(t *testing.T) {
	m := testMachine(t, 2, 2)
	wants := func(want string) {
		t.Helper()
		if got := m.alive(); got != want {
			t.Errorf("alive are %q, want %q", got, want)
		}
	}
	wants("no rank, since none runs")
	for node := range m.nodes {
		m.hello(node, helloOf(node))
		m.factsFrom(node, []byte(`{"master_port":4711}`))
	}
	wants("all ranks")
	m.started(0, 100)
	m.started(1, 101)
	wants("all ranks")
	m.exited(1, &pb.RankExited{Rank: 2})
	wants("ranks 0-1,3")
	for _, rank := range []int32{0, 1, 3} {
		m.exited(m.job.World.NodeOf(int(rank)), &pb.RankExited{Rank: rank, Signal: int32(syscall.SIGTERM)})
	}
	wants("no rank, since none runs")
	m.restart()
	wants("all ranks")
}

// While nodes are checked no rank is there that could end by a signal: the job is ended at once.
func TestInterruptDuringChecks(t *testing.T) {
	m := testMachine(t, 1, 1)
	m.job.Preflight = true
	for node := range m.nodes {
		m.hello(node, helloOf(node))
		m.factsFrom(node, []byte(`{"master_port":4711}`))
	}
	var notices strings.Builder
	l := &launcher{job: m.job, machine: m, notices: &notices, opts: Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}}
	if orders := l.userSignal(os.Interrupt); len(orders) != 1 || orders[0].msg.GetAbort() == nil || m.cause.GetKind() != pb.Cause_USER_SIGNAL {
		t.Errorf("orders %v, cause %v, want an abort by the user", orders, m.cause)
	}
	if want := "mkrun: interrupt: no rank was started yet; the job ends\n"; notices.String() != want {
		t.Errorf("it says %q, want %q", notices.String(), want)
	}
	now := time.Unix(1000, 0)
	for node := range m.nodes {
		if orders := m.checked(node, answerOf(t, now, 0, checkReport{}), now); orders != nil {
			t.Errorf("orders %v after the user ended the job", orders)
		}
	}
	if orders := l.userSignal(os.Interrupt); len(orders) != 1 || orders[0].msg.GetShutdown() == nil {
		t.Errorf("orders %v, want an end without grace: no rank could heed SIGTERM", orders)
	}
}
