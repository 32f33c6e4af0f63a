package session

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// HeadConfig describes the parent's end of a job's session. Zero durations, limits and loggers get defaults.
type HeadConfig struct {
	Job        string
	Generation uint32
	Secret     Secret
	Nodes      int           // agents to expect, with node indices 0 to Nodes-1
	Radix      int           // of the tree in which agents report; the package's when 0
	Build      string        // of this program; named in refusals
	Heartbeat  time.Duration // DefaultHeartbeat
	Silence    time.Duration // DefaultSilence; of an agent, before it counts as lost
	Excuse     Excuse        // of silent agents; nil: none has one
	StoreLimit int64         // bytes of endpoint data that all ranks together may put between two fences; 512 MiB
	Log        *slog.Logger  // slog.Default()

	protocol uint32 // ProtocolVersion; tests pretend to be another build
}

// Head is the parent of a job's agents: it admits them, hands what they say to its owner as events, runs fences and
// barriers, and notices when an agent is lost. What is said about ranks of another generation than that of the roster
// pushed last is dropped.
type Head struct {
	*parent
	limit  int64 // of the store
	events chan HeadEvent

	// Under the parent's lock:
	current uint32 // generation of the ranks
	world   world  // empty until the roster was pushed
	store   *store
	barrier *collective
	exited  []bool // by rank
}

// HeadEvent is one thing that happened to an agent. Events of one agent keep their order. Exactly one
// of Message, Barrier, Left, Lost and Refused is set.
type HeadEvent struct {
	Node        int    // -1 in a refusal that names no valid node
	Incarnation uint64 // of the agent process

	// Message is what the agent said, or what follows from it (an AbortRequest): a Hello, Facts, RankStarted, RankExited, Output, RankReport,
	// AttachedRank, AbortRequest, MemberEvent, NodeDone or AgentLog.
	Message *pb.FromAgent
	// Barrier is the number, from 1, of a barrier that all ranks have now passed; the node is the last to enter.
	Barrier uint64
	// Left: the agent closed its stream in order, after a Shutdown.
	Left bool
	// Lost says why an agent that should still be there is not.
	Lost *AgentLostError
	// Refused is what was answered to somebody who may not join.
	Refused *Refusal
}

// AgentLostError is the loss of an agent, and with it of its node.
type AgentLostError struct {
	Node   int
	Host   string
	Reason string
	Broke  bool // its connection broke by itself, as when its process ends
}

func (e *AgentLostError) Error() string {
	return fmt.Sprintf("agent of node %d (%s) lost: %s", e.Node, e.Host, e.Reason)
}

// Refusal says who was refused and why.
type Refusal struct {
	Hello  *pb.Hello // nil if there was none
	From   string    // network address
	Reason string
}

// NewHead makes a head. It listens to nobody before Serve.
func NewHead(cfg HeadConfig) (*Head, error) {
	if cfg.Job == "" || cfg.Nodes < 1 {
		return nil, fmt.Errorf("a session needs a job id and at least one node (job %q, %d nodes)", cfg.Job, cfg.Nodes)
	}
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = DefaultHeartbeat
	}
	if cfg.Silence == 0 {
		cfg.Silence = DefaultSilence
	}
	if cfg.StoreLimit == 0 {
		cfg.StoreLimit = 512 << 20
	}
	if cfg.protocol == 0 {
		cfg.protocol = ProtocolVersion
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Silence <= cfg.Heartbeat {
		return nil, fmt.Errorf("the silence bound (%v) must be longer than the heartbeat interval (%v)", cfg.Silence, cfg.Heartbeat)
	}
	config, err := tlsConfig(cfg.Secret, cfg.Job, Identity{RoleHead, -1})
	if err != nil {
		return nil, err
	}
	h := &Head{events: make(chan HeadEvent, 64), limit: cfg.StoreLimit, current: cfg.Generation}
	h.parent = newParent(parentConfig{
		node: theHead, tree: Tree{cfg.Radix, cfg.Nodes}, job: cfg.Job, generation: cfg.Generation, build: cfg.Build,
		heartbeat: cfg.Heartbeat, silence: cfg.Silence, excuse: cfg.Excuse, protocol: cfg.protocol,
	}, h, config, cfg.Log.With("job", cfg.Job, "role", "head"))
	return h, nil
}

// Events delivers what happens, until the head is closed. An owner that does not read holds the
// agents' output back, and nothing else goes wrong.
func (h *Head) Events() <-chan HeadEvent { return h.events }

// Send queues a message for one agent and returns at once. An agent that does not take its messages
// for as long as the silence bound, or lets too many wait, is lost.
func (h *Head) Send(node int, m *pb.ToAgent) error {
	makeValid(m)
	size, err := checkDown(m)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if node < 0 || node >= len(h.agents) {
		return fmt.Errorf("no node %d in a job of %d nodes", node, len(h.agents))
	}
	a := h.agents[node]
	if a == nil {
		return fmt.Errorf("the agent of node %d has not said hello", node)
	}
	return a.post(m, size)
}

// Broadcast queues a message for every agent that is connected.
func (h *Head) Broadcast(m *pb.ToAgent) error {
	makeValid(m)
	size, err := checkDown(m)
	if err == nil {
		h.broadcast(m, size)
	}
	return err
}

// PushRoster tells every agent the numbered membership, once for each generation, and opens the fences and barriers of
// its ranks. Those of the generation before are forgotten: the owner has seen all of its ranks end.
func (h *Head) PushRoster(r *pb.Roster) error {
	w, err := newWorld(r)
	if err != nil {
		return err
	}
	if err := h.openWorld(r, w); err != nil {
		return err
	}
	return h.Broadcast(&pb.ToAgent{Generation: r.Generation, Kind: &pb.ToAgent_Roster{Roster: r}})
}

func (h *Head) openWorld(r *pb.Roster, w world) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := h.current
	if h.world.size != 0 {
		next++
	}
	if r.Job != h.cfg.job || r.Generation != next || len(w.nodes) != h.cfg.tree.Nodes {
		return fmt.Errorf("roster of job %s generation %d with %d nodes; the next of this session is job %s generation %d with %d nodes",
			r.Job, r.Generation, len(w.nodes), h.cfg.job, next, h.cfg.tree.Nodes)
	}
	h.current, h.world = next, w
	h.store = newStore(w, h.limit)
	h.barrier = newCollective("barrier", w.size)
	h.exited = make([]bool, w.size)
	return nil
}

// Waiting tells which ranks the others are waiting for, in the fence and in the barrier in progress.
func (h *Head) Waiting() (fence, barrier []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.world.size == 0 {
		return nil, nil
	}
	return h.store.fence.missing(), h.barrier.missing()
}

// Serve accepts agents on the listeners, which it closes in the end. It returns nil after Close, and
// after the context is done, which closes the head at once.
func (h *Head) Serve(ctx context.Context, listeners ...net.Listener) error {
	return h.serve(ctx, h.Close, listeners)
}

// Close stops listening and waits for agents to close their streams (they do after a Shutdown); once
// ctx is done it cuts the rest off. The owner reads events meanwhile; they end when Close returns.
func (h *Head) Close(ctx context.Context) {
	h.end(ctx, func() { close(h.events) })
}

// emit hands an event to the owner. While the owner does not read, the agent's silence does not count.
func (h *Head) emit(ev HeadEvent, w *watchdog.Watchdog) {
	select {
	case h.events <- ev:
		return
	default:
	}
	if w != nil {
		w.Pause()
		defer w.Resume()
	}
	select {
	case h.events <- ev:
	case <-h.stop:
	}
}
