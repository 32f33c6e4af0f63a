package launch

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"slices"
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
		if got := m.reached(); got != want {
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
		if rank == 3 {
			wants("rank 3")
			m.job.Grace = 10 * time.Second
			if got, want := m.passedOn(), "passed on to rank 3, which has 10s to end"; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		m.exited(m.job.World.NodeOf(int(rank)), &pb.RankExited{Rank: rank, Signal: int32(syscall.SIGTERM)})
	}
	wants("no rank, since none runs")
	if got, want := m.passedOn(), "no rank runs any more; the job ends"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
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
	now := time.Unix(1000, 0)
	l := &launcher{job: m.job, machine: m, notices: &notices, opts: Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))}}
	if orders := l.userSignal(os.Interrupt, now); len(orders) != 1 || orders[0].msg.GetAbort() == nil || m.cause.GetKind() != pb.Cause_USER_SIGNAL {
		t.Errorf("orders %v, cause %v, want an abort by the user", orders, m.cause)
	}
	if want := "mkrun: interrupt: no rank was started yet; the job ends\n"; notices.String() != want {
		t.Errorf("it says %q, want %q", notices.String(), want)
	}
	for node := range m.nodes {
		if orders := m.checked(node, answerOf(t, now, 0, checkReport{}), now); orders != nil {
			t.Errorf("orders %v after the user ended the job", orders)
		}
	}
	if orders := l.userSignal(os.Interrupt, now.Add(time.Second)); len(orders) != 1 || orders[0].msg.GetShutdown() == nil {
		t.Errorf("orders %v, want an end without grace: no rank could heed SIGTERM", orders)
	}
}

// P37, P38: what ends a process and its group signals mkrun twice at once, which is one wish; a person's second one, and
// a third, still count. A head elsewhere hears each wish once, however close they arrive.
func TestP37SameSignalTwiceAtOnceIsOneWish(t *testing.T) {
	type heard struct {
		sig   syscall.Signal
		after time.Duration // since the first
	}
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		stays bool
		heard []heard
		want  string // what was done at each: i passed on with grace, t SIGTERM, k SIGKILL, - nothing
	}{
		"process and group":    {heard: []heard{{syscall.SIGTERM, 0}, {syscall.SIGTERM, 100 * time.Microsecond}}, want: "i-"},
		"group a little later": {heard: []heard{{syscall.SIGTERM, 0}, {syscall.SIGTERM, 199 * ms}}, want: "i-"},
		"once more":            {heard: []heard{{syscall.SIGTERM, 0}, {syscall.SIGTERM, ms}, {syscall.SIGTERM, 200 * ms}}, want: "i-k"},
		"Ctrl-C three times":   {heard: []heard{{syscall.SIGINT, 0}, {syscall.SIGINT, 300 * ms}, {syscall.SIGINT, 600 * ms}}, want: "itk"},
		"Ctrl-C held down":     {heard: []heard{{syscall.SIGINT, 0}, {syscall.SIGINT, 150 * ms}, {syscall.SIGINT, 300 * ms}, {syscall.SIGINT, 450 * ms}}, want: "i-t-"},
		"another right behind": {heard: []heard{{syscall.SIGTERM, 0}, {syscall.SIGHUP, ms}}, want: "i-"},
		"another later":        {heard: []heard{{syscall.SIGINT, 0}, {syscall.SIGTERM, sameWish}}, want: "it"},
		"both twice":           {heard: []heard{{syscall.SIGINT, 0}, {syscall.SIGINT, ms}, {syscall.SIGTERM, 300 * ms}, {syscall.SIGTERM, 301 * ms}}, want: "i-t-"},
		"at a head elsewhere":  {stays: true, heard: []heard{{syscall.SIGINT, 0}, {syscall.SIGINT, ms}, {syscall.SIGINT, 2 * ms}}, want: "itk"},
	} {
		t.Run(name, func(t *testing.T) {
			m := testMachine(t, 1, 1)
			for node := range m.nodes {
				m.hello(node, helloOf(node))
				m.factsFrom(node, []byte(`{"master_port":4711}`))
			}
			l := newLauncher(m.job, m, Options{stays: c.stays})
			l.notices = io.Discard
			got := ""
			for _, h := range c.heard {
				switch orders := l.userSignal(h.sig, time.Unix(1000, 0).Add(h.after)); {
				case len(orders) == 0:
					got += "-"
				case orders[0].msg.GetShutdown() != nil:
					got += "k"
				case l.endings.count == 1 && orders[0].msg.GetSignal().GetNumber() == int32(h.sig):
					got += "i"
				case orders[0].msg.GetSignal().GetNumber() == int32(syscall.SIGTERM):
					got += "t"
				default:
					t.Fatalf("unexpected orders %v", orders)
				}
			}
			if got != c.want {
				t.Errorf("it did %q, want %q", got, c.want)
			}
		})
	}
}

// P38: who signals mkrun and its group with what ends nothing means it once, as for a process that the kernel has not given the
// first yet. What ends the job comes behind it; a later one is another.
func TestP38SignalsAreGatheredBeforeTheyArePassedOn(t *testing.T) {
	m := testMachine(t, 1)
	join(t, m)
	l := newLauncher(m.job, m, Options{Forward: []syscall.Signal{syscall.SIGWINCH}})
	l.notices = io.Discard
	numbers := func(orders []order) (list []syscall.Signal) {
		for _, o := range orders {
			list = append(list, syscall.Signal(o.msg.GetSignal().GetNumber()))
		}
		return list
	}
	now := time.Unix(1000, 0)
	for i, step := range []struct{ came, want []syscall.Signal }{
		{[]syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR1}, []syscall.Signal{syscall.SIGUSR1}},
		{[]syscall.Signal{syscall.SIGUSR1}, []syscall.Signal{syscall.SIGUSR1}},
		{[]syscall.Signal{syscall.SIGWINCH, syscall.SIGUSR2, syscall.SIGWINCH}, []syscall.Signal{syscall.SIGWINCH, syscall.SIGUSR2}},
	} {
		for _, s := range step.came {
			if orders := l.userSignal(s, now); orders != nil || l.passAt == nil {
				t.Errorf("step %d: orders %v at once", i, orders)
			}
		}
		if got := numbers(l.passGathered()); !slices.Equal(got, step.want) || l.passAt != nil {
			t.Errorf("step %d: passed on %v, want %v", i, got, step.want)
		}
	}
	l.userSignal(syscall.SIGUSR1, now)
	if got, want := numbers(l.userSignal(syscall.SIGTERM, now)), []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM}; !slices.Equal(got, want) || l.passAt != nil {
		t.Errorf("passed on %v, want %v", got, want)
	}
}

// The launcher of a job whose head is elsewhere passes each wish on once, and ends the job itself at the third.
func TestP37RemoteLauncherPassesEachWishOnce(t *testing.T) {
	var sent bytes.Buffer
	l := &remoteLauncher{pipe: headPipe{w: &sent}, endings: endings{within: sameWish}}
	at := time.Unix(1000, 0)
	for i, wish := range []struct {
		sig       syscall.Signal
		after     time.Duration
		end, sent bool
	}{
		{syscall.SIGTERM, 0, false, true},
		{syscall.SIGTERM, time.Millisecond, false, false},
		{syscall.SIGUSR1, time.Millisecond, false, true},
		{syscall.SIGUSR1, time.Millisecond, false, true},
		{syscall.SIGTERM, time.Second, false, true},
		{syscall.SIGTERM, 2 * time.Second, true, true},
	} {
		sent.Reset()
		end := l.passOn(wish.sig, at.Add(wish.after))
		if end != wish.end || (sent.Len() > 0) != wish.sent {
			t.Errorf("signal %d (%v after %v): end %v, %d bytes sent", i, wish.sig, wish.after, end, sent.Len())
		}
	}
}

// P37: a node that was signalled by whoever signals all ends the job with the ranks' grace. When the launcher is signalled
// too, nothing is passed on a second time; a person's wish after that is SIGKILL.
func TestP37NodeIsSignalled(t *testing.T) {
	m := testMachine(t, 2, 1)
	for node := range m.nodes {
		m.hello(node, helloOf(node))
		m.factsFrom(node, []byte(`{"master_port":4711}`))
	}
	l := newLauncher(m.job, m, Options{Forward: []syscall.Signal{syscall.SIGHUP}})
	l.notices = io.Discard
	if orders := l.nodeSignal(1, syscall.SIGHUP); orders != nil || m.cause != nil {
		t.Errorf("orders %v for a signal that ends nothing", orders)
	}
	orders := l.nodeSignal(1, syscall.SIGTERM)
	if len(orders) != 1 || orders[0].node != allNodes || orders[0].msg.GetSignal().GetNumber() != int32(syscall.SIGTERM) {
		t.Fatalf("orders %v, want SIGTERM to all", orders)
	}
	if c := m.cause; c.GetKind() != pb.Cause_USER_SIGNAL || c.GetNode() != 1 || c.GetExitStatus() != 143 {
		t.Errorf("cause %v", c)
	}
	if orders := l.nodeSignal(0, syscall.SIGTERM); orders != nil {
		t.Errorf("orders %v for the other node's word of the same", orders)
	}
	// A rank that ends by it is no failure that would cost the others their grace.
	if orders := m.exited(1, &pb.RankExited{Rank: 1, Signal: int32(syscall.SIGTERM)}); orders != nil {
		t.Errorf("orders %v when a rank ends", orders)
	}
	at := time.Unix(1000, 0)
	if orders := l.userSignal(syscall.SIGTERM, at); orders != nil {
		t.Errorf("orders %v for the launcher's own signal", orders)
	}
	if orders := l.userSignal(os.Interrupt, at.Add(time.Second)); len(orders) != 1 || orders[0].msg.GetShutdown().GetExitStatus() != 143 {
		t.Errorf("orders %v, want an end without grace, with the job's status", orders)
	}
}
