package session

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// RelayConfig says for whom an agent passes messages on.
type RelayConfig struct {
	Job        string
	Generation uint32
	Secret     Secret
	Node       int
	Tree       Tree
	Build      string
	Excuse     Excuse       // of silent agents; nil: none has one
	Log        *slog.Logger // slog.Default()

	protocol uint32
}

// Relay is an agent's part as the parent of others: it lets them in and watches them as the head does those that
// report to it, and passes on what is said between them and the head.
type Relay struct {
	*parent
	up *AgentLink
}

// NewRelay makes the relay of an agent whose own link stands. It listens to nobody before Serve.
func NewRelay(cfg RelayConfig, up *AgentLink) (*Relay, error) {
	if cfg.protocol == 0 {
		cfg.protocol = ProtocolVersion
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	config, err := tlsConfig(cfg.Secret, cfg.Job, Identity{RoleAgent, cfg.Node})
	if err != nil {
		return nil, err
	}
	r := &Relay{up: up}
	heartbeat, silence := up.Bounds()
	r.parent = newParent(parentConfig{
		node: cfg.Node, tree: cfg.Tree, job: cfg.Job, generation: cfg.Generation, build: cfg.Build,
		heartbeat: heartbeat, silence: silence, excuse: cfg.Excuse, protocol: cfg.protocol,
	}, r, config, cfg.Log.With("job", cfg.Job, "relay", cfg.Node))
	return r, nil
}

// Serve accepts agents on the listeners, which it closes in the end. It returns nil after Close.
func (r *Relay) Serve(ctx context.Context, listeners ...net.Listener) error {
	return r.serve(ctx, r.Close, listeners)
}

// Close stops listening and waits for agents to close their streams (they do after a Shutdown); once ctx is done it cuts
// the rest off.
func (r *Relay) Close(ctx context.Context) { r.end(ctx, func() {}) }

// Pass sends a message of the parent's on to those it is for, and reports whether this agent is among them.
func (r *Relay) Pass(m *pb.ToAgent) (mine bool) {
	switch m.To {
	case 0, toNode(r.cfg.node):
		return true
	case toAll:
		r.broadcast(m, 0) // as large as what the head lets wait
		return true
	}
	node := int(m.To) - 1
	child, ok := r.cfg.tree.toward(r.cfg.node, node)
	if !ok {
		r.log.Warn("the parent sent a message for a node that does not report here", "node", node)
		return false
	}
	r.mu.Lock()
	a := r.agents[child]
	r.mu.Unlock()
	if a == nil {
		r.log.Warn("the parent sent a message for a node that is not there", "node", node)
		return false
	}
	if child == node {
		a.expect(m)
	}
	_ = a.post(m, 0) // its loss is told by itself
	return false
}

// hear passes a message on. While the parent takes none, the agent's silence does not count.
func (r *Relay) hear(a *agentConn, m *pb.FromAgent) error {
	if m.Kind == nil || m.GetHeartbeat() != nil {
		return nil
	}
	if m.Origin == 0 {
		m.Origin = toNode(a.node)
	} else if child, ok := r.cfg.tree.toward(r.cfg.node, int(m.Origin)-1); !ok || child != a.node {
		return fmt.Errorf("it passes on a word of node %d, which does not report to it", m.Origin-1)
	}
	a.watch.Pause()
	r.tell(m)
	a.watch.Resume()
	return nil
}

// tell sends a message up. The end of the link is the end of this agent, and so no concern here.
func (r *Relay) tell(m *pb.FromAgent) {
	if err := r.up.Send(context.Background(), m); err != nil {
		r.log.Debug("passing a message on", "error", err)
	}
}

func (r *Relay) left(a *agentConn) {
	r.tell(&pb.FromAgent{Origin: toNode(a.node), Kind: &pb.FromAgent_Gone{Gone: &pb.Gone{InOrder: true}}})
}

func (r *Relay) lost(a *agentConn, reason string) {
	r.tell(&pb.FromAgent{Origin: toNode(a.node), Kind: &pb.FromAgent_Gone{Gone: &pb.Gone{Reason: reason}}})
}

func (r *Relay) refused(hello *pb.Hello, from, reason string) {
	away := &pb.TurnedAway{Hello: hello, From: from, Reason: reason}
	first, _ := r.cfg.tree.Children(r.cfg.node)
	r.tell(&pb.FromAgent{Origin: toNode(first), Kind: &pb.FromAgent_TurnedAway{TurnedAway: away}})
}
