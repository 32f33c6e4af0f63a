package launch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/mkrun/mkrun/internal/rendezvous"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/stdio"
)

// firstGeneration numbers the first start of a job's ranks. Each restart adds one; this one counter at the head is all
// that decides which generation a rank is of.
const firstGeneration = 1

// exitAborted is the status with which a rank leaves because others failed, as if it had obeyed a
// SIGTERM. Such an exit is a consequence, never a cause.
const exitAborted = 128 + 15

// machine is the head's view of a job, one generation after the other: a pure state machine without clocks,
// goroutines or sockets. Every input returns the messages it calls for, so that any order of events,
// however unlucky, can be replayed in a test.
type machine struct {
	job      *Job
	assembly *rendezvous.Assembly
	nodes    []nodeState
	ranks    []rankState
	cause    *pb.Cause // why the job failed; nil while all is well
	weight   weight    // of the cause
	begun    bool      // the roster was sent
	starting bool      // the nodes were told to start their ranks: what is said to them later reaches all ranks that live

	kept       *pb.Cause // a failure, of a job that goes on in spite of it
	final      bool      // something happened after which nothing is started again
	pausing    bool      // all ranks have ended, and will be started again
	generation uint32
	preflight  *preflight // nil: nothing was checked
}

type nodeState struct {
	joined bool
	facts  *Facts
	over   bool // its ranks have ended and all output has arrived, or the agent is lost
	lost   bool
}

type rankPhase int

const (
	rankWaiting rankPhase = iota
	rankStarted
	rankAttached
	rankReported
	rankExited
)

func (p rankPhase) String() string {
	return [...]string{"not started", "running", "in session", "reported", "ended"}[p]
}

type rankState struct {
	phase  rankPhase
	pid    int
	report []byte
	place  *pb.RankStarted // where it was put
	exit   *pb.RankExited
	abort  bool // asked for an abort itself
}

// Facts is what an agent tells about its node right after its hello.
type Facts struct {
	MasterPort int      `json:"master_port"`     // a free port on the node's address
	Relay      []string `json:"relay,omitempty"` // where agents connect that report to this one
}

// order is a message to one node's agent, or to all of them (node -1).
type order struct {
	node int
	msg  *pb.ToAgent
}

const allNodes = -1

// newMachine starts with all nodes missing since now.
func newMachine(job *Job, now time.Time) (*machine, error) {
	assembly, err := rendezvous.NewAssembly(job.ID, firstGeneration, job.World.PPN, now)
	if err != nil {
		return nil, err
	}
	return &machine{
		job:      job,
		assembly: assembly,
		nodes:    make([]nodeState, job.World.Nodes()),
		ranks:    make([]rankState, job.World.Size()),

		generation: firstGeneration,
	}, nil
}

// restarts is how often the ranks were started again.
func (m *machine) restarts() int { return int(m.generation - firstGeneration) }

// restartable reports whether the ranks, which have all ended, shall be started once more: one of them failed, all
// agents are there, and the job has a restart left.
func (m *machine) restartable() bool {
	if m.cause == nil || m.final || m.restarts() >= m.job.MaxRestarts || !restartableKind(m.cause.GetKind()) {
		return false
	}
	return !slices.ContainsFunc(m.nodes, func(n nodeState) bool { return n.lost || !n.joined })
}

// pause makes room for the next generation. What fails before that begins is why the job ends.
func (m *machine) pause() { m.pausing, m.kept, m.cause, m.weight = true, m.cause, nil, 0 }

// restart begins the next generation with the same agents.
func (m *machine) restart() []order {
	m.pausing, m.kept = false, nil
	m.generation++
	m.ranks = make([]rankState, m.job.World.Size())
	for node := range m.nodes {
		m.nodes[node].over = false
	}
	m.cause, m.weight, m.begun, m.starting = nil, 0, false, false
	return m.begin()
}

func (m *machine) hello(node int, h *pb.Hello) []order {
	if _, err := m.assembly.Hello(h); err != nil {
		return m.fail(m.nodeCause(pb.Cause_LAUNCHER, node, err.Error()))
	}
	m.nodes[node].joined = true
	return m.begin()
}

func (m *machine) factsFrom(node int, raw []byte) []order {
	var f Facts
	if err := json.Unmarshal(raw, &f); err != nil {
		return m.fail(m.nodeCause(pb.Cause_LAUNCHER, node, fmt.Sprintf("sent facts that cannot be read: %v", err)))
	}
	m.nodes[node].facts = &f
	return m.begin()
}

// begin sends roster and start orders once every node is there and the first one said which port is free.
func (m *machine) begin() []order {
	if m.begun || m.cause != nil || m.nodes[0].facts == nil || !m.assembly.Complete() {
		return nil
	}
	roster, err := m.assembly.Roster()
	if err != nil {
		return m.fail(noPlace(pb.Cause_LAUNCHER, err.Error(), stdio.StatusLauncher))
	}
	m.begun = true
	roster.Generation = m.generation
	for node, n := range roster.GetNodes() {
		m.job.Hosts[node].Address = n.GetAddress()
	}
	orders := []order{{allNodes, &pb.ToAgent{Kind: &pb.ToAgent_Roster{Roster: roster}}}}
	if m.job.Preflight && m.preflight == nil {
		return append(orders, m.lookOrders()...)
	}
	return append(orders, m.startOrders()...)
}

// startOrders tell every node which ranks to start.
func (m *machine) startOrders() []order {
	m.starting = true
	var orders []order
	for node := range m.nodes {
		start := &pb.Start{
			Run:          m.job.Run,
			AbortGraceMs: m.job.AbortGrace.Milliseconds(),
			GraceMs:      m.job.Grace.Milliseconds(),
			Env:          convert[[]byte](m.job.Env),
		}
		start.NetDevices = m.job.NetDevices
		start.Bind, start.Gpus, start.GpuIsolate, start.ReportBindings = m.job.Bind, m.job.nodeGPUs(node), m.job.GPUIsolate, m.job.ReportBindings
		if m.job.PMI {
			start.PmiMapping = m.job.pmiMapping()
		}
		for local := range m.job.World.PPN[node] {
			rank := m.job.World.RankAt(node, local)
			start.Ranks = append(start.Ranks, &pb.RankSpec{
				Rank:      int32(rank),
				LocalRank: int32(local),
				Argv:      convert[[]byte](m.job.Argv),
				Env:       convert[[]byte](m.job.ownEnv(rank, Attempt{MasterPort: m.nodes[0].facts.MasterPort, Restarts: m.restarts()})),
				Dir:       []byte(m.job.Dir),
				Session:   m.job.Session,

				EnvDefault: convert[[]byte](m.job.envDefaults(node)),
				Pmi:        m.job.PMI,
				Gpu:        m.job.chosenGPU(rank),
				Stdin:      m.job.Stdin.reads(m.job.Number(rank)),
			})
		}
		orders = append(orders, order{node, &pb.ToAgent{Kind: &pb.ToAgent_Start{Start: start}}})
	}
	return orders
}

func (m *machine) started(rank, pid int) {
	m.ranks[rank].pid = pid
	m.advance(rank, rankStarted)
}

func (m *machine) attached(rank int) { m.advance(rank, rankAttached) }

func (m *machine) reported(rank int, report []byte) {
	m.ranks[rank].report = report
	m.advance(rank, rankReported)
}

func (m *machine) advance(rank int, to rankPhase) {
	m.ranks[rank].phase = max(m.ranks[rank].phase, to)
}

// allStarted reports whether every rank's process exists (or already ended).
func (m *machine) allStarted() bool {
	return !slices.ContainsFunc(m.ranks, func(r rankState) bool { return r.phase == rankWaiting })
}

func (m *machine) exited(node int, e *pb.RankExited) []order {
	r := &m.ranks[e.GetRank()]
	r.exit = e
	m.advance(int(e.GetRank()), rankExited)
	c := exitCause(e, node, m.job.Hosts[node].Name)
	if c == nil || e.GetKilledByUs() || m.consequence(e, r) {
		return nil
	}
	if m.cause.GetKind() == pb.Cause_RANK_ABORT && m.cause.GetRank() == e.GetRank() {
		// The rank said what was wrong before it left; its exit only adds its last words.
		m.cause.LastLines = e.GetLastLines()
		return nil
	}
	if m.job.KeepGoing && m.cause == nil && c.GetKind() == pb.Cause_RANK_EXIT {
		if m.kept == nil {
			m.kept = c
		}
		return nil
	}
	return m.fail(c)
}

// consequence reports whether a bad exit follows from a failure that is already known: a rank that
// obeyed the abort, or that had itself asked for it.
func (m *machine) consequence(e *pb.RankExited, r *rankState) bool {
	if m.cause == nil || m.cause.GetRank() == e.GetRank() {
		return false
	}
	return r.abort || (e.GetSignal() == 0 && e.GetExitCode() == exitAborted)
}

// abortRequested is a rank's own word that it cannot go on: often because of another one, so what is nearer to the
// root replaces it as the cause.
func (m *machine) abortRequested(node int, a *pb.AbortRequest) []order {
	c := m.nodeCause(pb.Cause_RANK_ABORT, node, a.GetReason())
	c.Rank = a.GetRank()
	c.ExitStatus = a.GetExitStatus()
	if a.GetRank() < 0 {
		c.Kind, c.ExitStatus = pb.Cause_LAUNCHER, stdio.StatusLauncher
		return m.fail(c)
	}
	m.ranks[a.GetRank()].abort = true
	if a.GetCertain() {
		if m.weight >= complaint {
			return nil // the rank ended for that, and so left others waiting
		}
		return m.fail(c)
	}
	if a.GetPeerLost() {
		return m.blame(c, hearsay)
	}
	return m.blame(c, complaint)
}

// lost ends a node whose agent is gone. Its keeper has ended its ranks by itself.
func (m *machine) lost(node int, why string) []order {
	ended := m.nodes[node].over && !m.pausing
	m.nodes[node].over, m.nodes[node].lost = true, true
	if ended {
		return nil
	}
	return m.fail(m.nodeCause(pb.Cause_AGENT_LOST, node, "its agent is gone: "+why))
}

func (m *machine) nodeDone(node int) { m.nodes[node].over = true }

// weight says how near a cause is to the root of a failure. A heavier one replaces a lighter one that came
// first; among equals the first counts.
type weight int

const (
	hearsay   weight = iota + 1 // a rank saw a peer go
	complaint                   // a rank found something wrong itself: a wait that ran out, a wrong frame
	certain                     // a process died, a node vanished, a bound ran out, the user wished it
)

// fail records why the job failed and tells every agent, once.
func (m *machine) fail(c *pb.Cause) []order { return m.blame(c, certain) }

func (m *machine) blame(c *pb.Cause, w weight) []order {
	m.final = m.final || !restartableKind(c.GetKind())
	if m.cause != nil {
		if w > m.weight {
			m.cause, m.weight = c, w
		}
		return nil
	}
	m.cause, m.weight = c, w
	return m.abort()
}

// abort tells every agent to end its ranks, for the cause that is known. More may become known of it while the message is
// on its way, so that gets a copy.
func (m *machine) abort() []order {
	cause := proto.Clone(m.cause).(*pb.Cause)
	return []order{{allNodes, &pb.ToAgent{Kind: &pb.ToAgent_Abort{Abort: &pb.Abort{Cause: cause}}}}}
}

// signal passes a user's signal on to all ranks.
func (m *machine) signal(number int) []order {
	return []order{{allNodes, &pb.ToAgent{Kind: &pb.ToAgent_Signal{Signal: &pb.Signal{Number: int32(number)}}}}}
}

// interrupt is the user's wish to end the job: the ranks get the signal and may end as they like.
func (m *machine) interrupt(sig syscall.Signal) []order {
	return m.endedBy(sig, noPlace(pb.Cause_USER_SIGNAL, fmt.Sprintf("ended by the user (%v)", sig), stdio.StatusOfSignal(sig)))
}

// endedBy ends the job by a signal, for a reason if none is known yet.
func (m *machine) endedBy(sig syscall.Signal, reason *pb.Cause) []order {
	if m.cause == nil {
		m.weight, m.cause = certain, reason
	}
	if !m.starting {
		return m.abort()
	}
	return m.signal(int(sig))
}

// kill ends all ranks without any grace: agents that are dismissed leave nothing behind.
func (m *machine) kill() []order {
	return []order{{allNodes, m.dismissal()}}
}

// dismissal tells agents to end, and how the job ended.
func (m *machine) dismissal() *pb.ToAgent {
	return &pb.ToAgent{Kind: &pb.ToAgent_Shutdown{Shutdown: &pb.Shutdown{ExitStatus: m.cause.GetExitStatus()}}}
}

// over reports whether nothing of the job runs any more.
func (m *machine) over() bool {
	for _, n := range m.nodes {
		if !n.joined && !m.begun && m.cause != nil {
			continue // never came, and will be told to go if it still does
		}
		if !n.over {
			return false
		}
	}
	return true
}

// conclude makes sure that a job in which every rank ended well also has what it was run for.
func (m *machine) conclude() {
	if m.cause == nil {
		m.cause = m.kept
	}
	if m.cause != nil || !m.job.Session || m.job.ConnectOnly {
		return
	}
	for rank, r := range m.ranks {
		if r.report == nil {
			node := m.job.World.NodeOf(rank)
			m.cause = m.nodeCause(pb.Cause_RANK_EXIT, node, "ended with status 0 but without its report")
			m.cause.Rank = int32(rank)
			m.cause.ExitStatus = stdio.StatusLauncher
			return
		}
	}
}

// states says how far every node and rank came, for time-outs. Ranks of a node that were not started share a line.
func (m *machine) states(now time.Time) string {
	var b strings.Builder
	for _, missing := range m.assembly.Missing() {
		h := m.job.Hosts[missing.Node]
		address := h.Address
		if address == "" {
			address = "address not known here"
		}
		fmt.Fprintf(&b, "\n  %s (node %d, %s): its agent has not said hello for %v",
			h.Name, missing.Node, address, now.Sub(missing.Since).Round(time.Millisecond))
	}
	for rank := 0; rank < len(m.ranks); rank++ {
		r, node := m.ranks[rank], m.job.World.NodeOf(rank)
		numbers := []int{m.job.Number(rank)}
		for r.phase == rankWaiting && rank+1 < len(m.ranks) && m.ranks[rank+1].phase == rankWaiting && m.job.World.NodeOf(rank+1) == node {
			rank++
			numbers = append(numbers, m.job.Number(rank))
		}
		what := "rank"
		if len(numbers) > 1 {
			what = "ranks"
		}
		fmt.Fprintf(&b, "\n  %s %s on %s: %s", what, ranges(numbers), m.job.Hosts[node].Name, r.phase)
		if r.pid != 0 && r.phase != rankExited {
			fmt.Fprintf(&b, " (pid %d)", r.pid)
		}
	}
	return b.String()
}

func (m *machine) nodeCause(kind pb.Cause_Kind, node int, reason string) *pb.Cause {
	return &pb.Cause{
		Kind: kind, Node: int32(node), Host: m.job.Hosts[node].Name, Rank: -1,
		Reason: reason, ExitStatus: stdio.StatusLauncher,
	}
}
