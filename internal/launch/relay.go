package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/version"
)

// sshFlat is the largest number of nodes of which all are started over ssh by the launcher. In larger jobs the agents
// that others report to start those: a thousand ssh at once are more than one host bears.
const sshFlat = 64

// relayWord tells agents that report to another one where that is. It follows the configuration on their stdin, when
// it is known; some that it does not concern may read it too.
type relayWord struct {
	Node    int      `json:"node"`
	Parents []string `json:"parents"`
}

func (w relayWord) write(to io.Writer) error {
	if err := writeFrame(to, w); err != nil {
		return fmt.Errorf("saying where node %d is: %w", w.Node, err)
	}
	return nil
}

// awaitRelay reads where the parent is of an agent that does not report to the head.
func awaitRelay(r io.Reader, cfg *AgentConfig) error {
	parent := cfg.tree().Parent(cfg.Node)
	for parent >= 0 {
		var w relayWord
		if err := readFrame(r, maxAgentConfig, &w); err != nil {
			return fmt.Errorf("waiting for the address of node %d: %w", parent, err)
		}
		if w.Node == parent {
			cfg.Parents = w.Parents
			return nil
		}
	}
	return nil
}

// belowOrder is what an agent is told about those it starts.
type belowOrder struct {
	SSH    SSH           `json:"ssh"`
	Agents []AgentConfig `json:"agents"`
	Target []string      `json:"targets"` // by agent
}

// relay is an agent's part as the parent of others.
type relay struct {
	*session.Relay
	addresses []string // where they reach it
	secret    session.Secret
	served    chan error

	starts  context.CancelFunc
	working sync.WaitGroup // on starting them
	mu      sync.Mutex
	started []*agentProcess
}

// openRelay makes the relay of an agent to which others report; nil if none do.
func (a *agent) openRelay(ctx context.Context, secret session.Secret) error {
	if first, end := a.cfg.tree().Children(a.cfg.Node); first == end {
		return nil
	}
	listener, err := a.cfg.Ports.Listen(ctx, a.cfg.Address)
	if err != nil {
		return fmt.Errorf("listening for agents: %w", err)
	}
	r := &relay{addresses: []string{listener.Addr().String()}, secret: secret, served: make(chan error, 1), starts: func() {}}
	var excuse session.Excuse
	if a.cfg.Here {
		excuse = func(hello *pb.Hello) func() bool { return keeper.EffortOf(int(hello.GetPid())).Works }
	}
	r.Relay, err = session.NewRelay(session.RelayConfig{
		Job: a.cfg.Job, Generation: a.cfg.Generation, Secret: secret, Node: a.cfg.Node, Tree: a.cfg.tree(), Excuse: excuse, Build: version.Get().BuildID(), Log: a.log,
	}, a.link)
	if err != nil {
		_ = listener.Close()
		return err
	}
	go func() { r.served <- r.Serve(context.WithoutCancel(ctx), listener) }()
	a.relay = r
	return nil
}

// startBelow starts the agents that report to this one.
func (a *agent) startBelow(ctx context.Context, m *pb.StartBelow) error {
	var o belowOrder
	if err := json.Unmarshal(m.GetJson(), &o); err != nil || a.relay == nil || len(o.Target) != len(o.Agents) {
		return fmt.Errorf("the parent broke the protocol: an order to start agents that cannot be followed (%w)", err)
	}
	r := a.relay
	ctx, r.starts = context.WithCancel(ctx)
	tell := func(node int, text string, again bool) {
		a.send(ctx, &pb.FromAgent{Kind: &pb.FromAgent_Below{Below: &pb.Below{Node: int32(node), Text: text, Again: again}}})
	}
	targets := map[int]string{}
	for i, cfg := range o.Agents {
		targets[cfg.Node] = o.Target[i]
	}
	starter := newSSHStarter(o.SSH, targets, nil, func(node int, text string) { tell(node, text, true) })
	for _, cfg := range o.Agents {
		r.working.Go(func() {
			below, err := starter.start(ctx, cfg, r.secret)
			if err == nil {
				err = relayWord{a.cfg.Node, r.addresses}.write(below.stdin)
				r.mu.Lock()
				r.started = append(r.started, below)
				r.mu.Unlock()
			}
			if err == nil {
				select {
				case <-below.exited:
					err = errors.New("it ended before it joined the job (" + below.gone() + ")")
				case <-ctx.Done():
				}
			}
			if err != nil && ctx.Err() == nil {
				tell(cfg.Node, err.Error(), false)
			}
		})
	}
	return nil
}

// end waits for the agents that report here, which have been dismissed if this one was, until ctx is done.
func (r *relay) end(ctx context.Context) error {
	r.starts()
	r.working.Wait()
	r.Close(ctx)
	for _, p := range r.started {
		p.end(ctx)
	}
	return <-r.served
}

// tree is that of the job's agents.
func (c AgentConfig) tree() session.Tree { return session.Tree{Radix: c.Radix, Nodes: c.Nodes} }

// tree is that of the job's agents.
func (j *Job) tree() session.Tree { return session.Tree{Radix: j.Radix, Nodes: len(j.Hosts)} }

// below reports whether a node's agent is started by the one that it reports to.
func (j *Job) below(node int) bool {
	return j.Hosts[node].By == ReachSSH && len(j.Hosts) > sshFlat && j.tree().Parent(node) >= 0
}

// relayIs takes note of where an agent is to which others report, and brings those in.
func (l *launcher) relayIs(node int, at []string) {
	if len(at) == 0 || l.relays[node] != nil {
		return
	}
	l.relays[node] = at
	first, end := l.job.tree().Children(node)
	o := belowOrder{SSH: l.job.SSH}
	for child := first; child < end; child++ {
		if l.job.below(child) {
			o.Agents = append(o.Agents, l.agentConfig(child))
			o.Target = append(o.Target, l.job.Hosts[child].Target)
		} else {
			l.tellRelay(child)
		}
	}
	if len(o.Agents) == 0 {
		return
	}
	text, err := json.Marshal(o)
	if err == nil {
		err = l.head.Send(node, &pb.ToAgent{Generation: l.machine.generation, Kind: &pb.ToAgent_StartBelow{StartBelow: &pb.StartBelow{Json: text}}})
	}
	if err != nil {
		l.opts.Log.Warn("ordering an agent to start others", "node", node, "error", err)
	}
}

// tellRelay tells an agent where the one is that it reports to, if both are there.
func (l *launcher) tellRelay(node int) {
	parent := l.job.tree().Parent(node)
	a := l.agents[node]
	if parent < 0 || a == nil || l.relays[parent] == nil {
		return
	}
	if l.job.Hosts[node].By == ReachSrun { // all read the same
		if l.toldAll[parent] {
			return
		}
		l.toldAll[parent] = true
	}
	word := relayWord{parent, l.relays[parent]}
	go func() { // it may have stopped reading
		if err := word.write(a.stdin); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			l.opts.Log.Debug("telling an agent about its parent", "node", node, "error", err)
		}
	}()
}

// below acts on what an agent says about starting one that reports to it.
func (l *launcher) below(by int, b *pb.Below) []order {
	node := int(b.GetNode())
	if node < 0 || node >= len(l.job.Hosts) || l.job.tree().Parent(node) != by {
		return l.machine.fail(l.machine.nodeCause(pb.Cause_LAUNCHER, by, fmt.Sprintf("it speaks of starting node %d, which does not report to it", node)))
	}
	if l.machine.nodes[node].joined {
		return nil // its stream tells the rest
	}
	if b.GetAgain() {
		l.notice(node, b.GetText())
		return nil
	}
	return l.machine.fail(l.machine.nodeCause(pb.Cause_LAUNCHER, node, fmt.Sprintf("started by %s (node %d): %s", l.job.Hosts[by].Name, by, b.GetText())))
}

// notice tells the user something about a node.
func (l *launcher) notice(node int, text string) {
	fmt.Fprintf(l.notices, "mkrun: %s (node %d): %s\n", l.job.Hosts[node].Name, node, text)
}
