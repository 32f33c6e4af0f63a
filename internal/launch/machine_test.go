package launch

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/plan"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

func testMachine(t *testing.T, ppn ...int) *machine {
	t.Helper()
	hosts, err := Pretend(len(ppn))
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(&Job{ID: "job", World: plan.World{PPN: ppn}, Hosts: hosts, Argv: []string{"true"}, Env: []string{"EDITOR=ed"}}, time.Unix(100, 0))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// helloOf is what the agent of a node says first.
func helloOf(node int) *pb.Hello {
	return &pb.Hello{Job: "job", Generation: firstGeneration, Node: int32(node), Addresses: []string{"127.0.0.1:7946"}}
}

// join brings all nodes in and starts all ranks.
func join(t *testing.T, m *machine) {
	t.Helper()
	orders := 0
	for node := range m.nodes {
		orders += len(m.hello(node, helloOf(node)))
		orders += len(m.factsFrom(node, []byte(`{"master_port":4711}`)))
	}
	if orders != 1+len(m.nodes) {
		t.Fatalf("%d orders, want the roster and %d starts", orders, len(m.nodes))
	}
	for rank := range m.ranks {
		m.started(rank, 100+rank)
	}
	if !m.allStarted() {
		t.Fatal("all ranks were started, but the machine waits for some")
	}
}

func TestRosterAndStartNeedEveryHelloAndTheMasterPort(t *testing.T) {
	m := testMachine(t, 2, 1)
	if orders := m.hello(1, helloOf(1)); orders != nil {
		t.Fatalf("orders before all nodes were there: %v", orders)
	}
	if orders := m.hello(0, helloOf(0)); orders != nil {
		t.Fatalf("orders before the master port was known: %v", orders)
	}
	orders := m.factsFrom(0, []byte(`{"master_port":4711}`))
	if len(orders) != 3 {
		t.Fatalf("%d orders, want the roster and two starts", len(orders))
	}
	roster := orders[0].msg.GetRoster()
	if n := roster.GetNodes()[1]; n.GetFirstRank() != 2 || n.GetRanks() != 1 {
		t.Errorf("node 1 has ranks from %d, %d of them; want 2, 1", n.GetFirstRank(), n.GetRanks())
	}
	if common := convert[string](orders[2].msg.GetStart().GetEnv()); !slices.Equal(common, m.job.Env) || len(common) == 0 {
		t.Errorf("node 1 was told %q of the environment of all ranks, want %q", common, m.job.Env)
	}
	ranks := orders[2].msg.GetStart().GetRanks()
	if len(ranks) != 1 || ranks[0].GetRank() != 2 || ranks[0].GetLocalRank() != 0 {
		t.Fatalf("node 1 was told to start %v", ranks)
	}
	env := string(bytes.Join(ranks[0].GetEnv(), []byte("\n")))
	if strings.Contains(env, m.job.Env[0]) {
		t.Errorf("%s is sent for each rank anew", m.job.Env[0])
	}
	for _, want := range []string{"RANK=2", "LOCAL_RANK=0", "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=1", "MASTER_PORT=4711", "MKRUN_NODE_RANK=1"} {
		if !strings.Contains(env, want) {
			t.Errorf("rank 2 lacks %s in its environment", want)
		}
	}
}

func TestFailureHasOneCause(t *testing.T) {
	exit := func(rank, code int32) func(m *machine) []order {
		return func(m *machine) []order {
			return m.exited(m.job.World.NodeOf(int(rank)), &pb.RankExited{Rank: rank, ExitCode: code})
		}
	}
	killed := func(rank, sig int32, byUs bool) func(m *machine) []order {
		return func(m *machine) []order {
			return m.exited(m.job.World.NodeOf(int(rank)), &pb.RankExited{Rank: rank, Signal: sig, KilledByUs: byUs})
		}
	}
	complain := func(rank int32, why string) func(m *machine) []order {
		return func(m *machine) []order {
			return m.abortRequested(m.job.World.NodeOf(int(rank)), &pb.AbortRequest{Rank: rank, Reason: why, ExitStatus: 1})
		}
	}
	hear := func(rank int32, why string) func(m *machine) []order {
		return func(m *machine) []order {
			return m.abortRequested(m.job.World.NodeOf(int(rank)), &pb.AbortRequest{Rank: rank, Reason: why, ExitStatus: 1, PeerLost: true})
		}
	}
	lost := func(node int) func(m *machine) []order {
		return func(m *machine) []order { return m.lost(node, "killed") }
	}
	tests := []struct {
		name   string
		events []func(m *machine) []order
		kind   pb.Cause_Kind
		rank   int32
		status int32
		aborts int
	}{
		{"all well", []func(*machine) []order{exit(0, 0), exit(1, 0), exit(2, 0)}, pb.Cause_KIND_UNSPECIFIED, 0, 0, 0},
		{"first exit wins", []func(*machine) []order{exit(2, 3), exit(0, 5)}, pb.Cause_RANK_EXIT, 2, 3, 1},
		{"killed by a signal", []func(*machine) []order{killed(1, 9, false)}, pb.Cause_RANK_EXIT, 1, 137, 1},
		{"our own kills are no cause", []func(*machine) []order{exit(2, 3), killed(0, 9, true), killed(1, 15, true)}, pb.Cause_RANK_EXIT, 2, 3, 1},
		{"death explains a complaint", []func(*machine) []order{complain(0, "link to rank 2 closed"), killed(2, 9, false)}, pb.Cause_RANK_EXIT, 2, 137, 1},
		{"exit explains a complaint", []func(*machine) []order{complain(0, "link to rank 2 closed"), exit(2, 7)}, pb.Cause_RANK_EXIT, 2, 7, 1},
		{"obeying an abort is no cause", []func(*machine) []order{complain(0, "wait timed out"), exit(1, exitAborted), exit(2, exitAborted)}, pb.Cause_RANK_ABORT, 0, 1, 1},
		{"complaining twice is no cause", []func(*machine) []order{complain(0, "wait timed out"), complain(1, "me too"), exit(1, 1)}, pb.Cause_RANK_ABORT, 0, 1, 1},
		{"lost agent explains a complaint", []func(*machine) []order{complain(0, "link closed"), lost(1)}, pb.Cause_AGENT_LOST, -1, 125, 1},
		{"what a peer found explains its loss", []func(*machine) []order{hear(0, "lost rank 2"), complain(2, "wait timed out"), exit(2, 124)}, pb.Cause_RANK_ABORT, 2, 1, 1},
		{"a loss does not explain what was found", []func(*machine) []order{complain(2, "wait timed out"), hear(0, "lost rank 2")}, pb.Cause_RANK_ABORT, 2, 1, 1},
		{"death explains a loss", []func(*machine) []order{hear(0, "lost rank 2"), killed(2, 9, false)}, pb.Cause_RANK_EXIT, 2, 137, 1},
		{"a rank's own exit after its complaint", []func(*machine) []order{complain(1, "check failed"), exit(1, 1)}, pb.Cause_RANK_ABORT, 1, 1, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := testMachine(t, 2, 1)
			join(t, m)
			aborts := 0
			for _, ev := range tt.events {
				for _, o := range ev(m) {
					if o.msg.GetAbort() != nil {
						aborts++
					}
				}
			}
			if m.cause.GetKind() != tt.kind || m.cause.GetRank() != tt.rank || m.cause.GetExitStatus() != tt.status {
				t.Errorf("cause %v rank %d status %d, want %v rank %d status %d",
					m.cause.GetKind(), m.cause.GetRank(), m.cause.GetExitStatus(), tt.kind, tt.rank, tt.status)
			}
			if aborts != tt.aborts {
				t.Errorf("%d aborts were ordered, want %d", aborts, tt.aborts)
			}
		})
	}
}

func TestOverNeedsEveryNode(t *testing.T) {
	m := testMachine(t, 1, 1)
	join(t, m)
	m.nodeDone(0)
	if m.over() {
		t.Fatal("over while node 1 still runs")
	}
	m.lost(1, "killed")
	if !m.over() {
		t.Fatal("not over although one node is done and the other lost")
	}
}

func TestSilentSuccessIsNoSuccess(t *testing.T) {
	m := testMachine(t, 1, 1)
	m.job.Session = true
	join(t, m)
	m.reported(0, []byte("{}"))
	for rank := range m.ranks {
		m.exited(rank, &pb.RankExited{Rank: int32(rank)})
		m.nodeDone(rank)
	}
	m.conclude()
	if m.cause.GetRank() != 1 {
		t.Fatalf("rank 1 ended without a report, cause is %v", m.cause)
	}
}

func TestStatesNameWhoIsMissing(t *testing.T) {
	m := testMachine(t, 1, 1)
	m.hello(0, helloOf(0))
	if got := m.states(time.Unix(103, 0)); !strings.Contains(got, "node1 (node 1, 127.0.0.2): its agent has not said hello for 3s") {
		t.Errorf("states do not name the missing node:%s", got)
	}
}

func TestStatesNameEveryRank(t *testing.T) {
	m := testMachine(t, 4, 2, 1)
	for node := range 3 {
		m.hello(node, helloOf(node))
	}
	m.ranks[1].phase, m.ranks[1].pid = rankStarted, 77
	const want = `
  rank 0 on node0: not started
  rank 1 on node0: running (pid 77)
  ranks 2-3 on node0: not started
  ranks 4-5 on node1: not started
  rank 6 on node2: not started`
	if got := m.states(time.Unix(103, 0)); got != want {
		t.Errorf("states are%s\nwant%s", got, want)
	}
}

func TestRestart(t *testing.T) {
	m := testMachine(t, 1, 1)
	m.job.MaxRestarts = 2
	join(t, m)
	if m.restartable() {
		t.Error("a job in which nothing failed is to be restarted")
	}
	m.exited(1, &pb.RankExited{Rank: 1, ExitCode: 3})
	m.nodeDone(0)
	m.factsFrom(0, []byte(`{"master_port":4712}`))
	m.nodeDone(1)
	if !m.over() || !m.restartable() {
		t.Fatalf("over %v, restartable %v", m.over(), m.restartable())
	}
	orders := m.restart()
	if len(orders) != 3 || orders[0].msg.GetRoster().GetGeneration() != firstGeneration+1 {
		t.Fatalf("orders %v, want the next generation's roster and two starts", orders)
	}
	env := string(bytes.Join(orders[2].msg.GetStart().GetRanks()[0].GetEnv(), []byte("\n")))
	for _, want := range []string{"MKRUN_RESTART_COUNT=1", "TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=2", "MASTER_PORT=4712"} {
		if !strings.Contains(env, want) {
			t.Errorf("rank 1 lacks %s in its environment", want)
		}
	}
	if m.over() || m.cause != nil || m.allStarted() {
		t.Error("the next generation began with what was left of the one before")
	}
}

func TestWhatIsNotRestarted(t *testing.T) {
	for name, fail := range map[string]func(m *machine){
		"no restart left": func(m *machine) { m.job.MaxRestarts = 0; m.exited(0, &pb.RankExited{Rank: 0, ExitCode: 3}) },
		"lost agent":      func(m *machine) { m.exited(0, &pb.RankExited{Rank: 0, ExitCode: 3}); m.lost(1, "cut off") },
		"lost agent whose ranks had ended": func(m *machine) {
			m.exited(0, &pb.RankExited{Rank: 0, ExitCode: 3})
			m.nodeDone(1)
			m.lost(1, "cut off")
		},
		"time, while ranks end": func(m *machine) {
			m.exited(0, &pb.RankExited{Rank: 0, ExitCode: 3})
			m.fail(noPlace(pb.Cause_TIMEOUT, "--timeout", 124))
		},
		"no program": func(m *machine) { m.exited(0, &pb.RankExited{Rank: 0, ExitCode: 127, ExecError: "not there"}) },
		"user":       func(m *machine) { m.interrupt(2) },
		"time":       func(m *machine) { m.fail(noPlace(pb.Cause_TIMEOUT, "--timeout", 124)) },
	} {
		m := testMachine(t, 1, 1)
		m.job.MaxRestarts = 5
		join(t, m)
		fail(m)
		m.nodeDone(0)
		m.nodeDone(1)
		if m.restartable() {
			t.Errorf("%s: it is to be restarted", name)
		}
	}
}

// Agents that crowd this host are given more time before their silence means something; those of other hosts, and a user
// who says how much, are not.
func TestSilence(t *testing.T) {
	crowd := crowdedAgents*runtime.NumCPU() + 20
	for name, tt := range map[string]struct {
		job  Job
		want time.Duration
	}{
		"few":    {Job{Hosts: make([]Host, crowd-20)}, DefaultSilence},
		"many":   {Job{Hosts: make([]Host, crowd)}, DefaultSilence + 2*time.Second},
		"remote": {Job{Hosts: slices.Repeat([]Host{{By: ReachSSH}}, crowd)}, DefaultSilence},
		"chosen": {Job{Hosts: make([]Host, crowd), Silence: time.Second}, time.Second},
	} {
		if got := tt.job.silence(); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// Who left others waiting is the cause, and not those who fail of it; unless there was one already.
func TestAbandoned(t *testing.T) {
	abandoned := &pb.AbortRequest{Rank: 1, Reason: "ended, and others wait for it", ExitStatus: 125, Certain: true}
	m := testMachine(t, 2)
	m.abortRequested(0, abandoned)
	m.exited(0, &pb.RankExited{Rank: 0, ExitCode: 15})
	if m.cause.GetRank() != 1 || m.cause.GetExitStatus() != 125 {
		t.Errorf("the cause is %v", m.cause)
	}
	m = testMachine(t, 2)
	m.abortRequested(0, &pb.AbortRequest{Rank: 0, Reason: "waited 4s", ExitStatus: 124})
	m.abortRequested(0, abandoned)
	if m.cause.GetExitStatus() != 124 {
		t.Errorf("the cause is %v", m.cause)
	}
}

// What is on its way to the agents is no more changed by what becomes known of the cause: it is written by others.
func TestOrdersKeepTheirCause(t *testing.T) {
	m := testMachine(t, 1, 1)
	join(t, m)
	orders := m.fail(&pb.Cause{Kind: pb.Cause_RANK_ABORT, Rank: 1})
	m.exited(1, &pb.RankExited{Rank: 1, ExitCode: 3, LastLines: []string{"last words"}})
	if got := orders[0].msg.GetAbort().GetCause(); got == m.cause || len(got.GetLastLines()) != 0 || len(m.cause.GetLastLines()) == 0 {
		t.Errorf("the order has %v, the machine %v", got, m.cause)
	}
}
