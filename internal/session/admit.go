package session

import (
	"fmt"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

const (
	maxHelloText      = 255 // bytes of each text in a hello
	maxHelloAddresses = 32
)

// admit takes an agent into the job, or gives the reason why not, in words that help its user.
func (p *parent) admit(hello *pb.Hello, conn *memberConn) (*agentConn, string) {
	if reason := p.examine(hello, conn.id, p.cfg.node); reason != "" {
		return nil, reason
	}
	return p.enter(&agentConn{
		node:        int(hello.Node),
		incarnation: hello.Incarnation,
		host:        hello.Hostname,
		conn:        conn,
		out:         newOutbox(MaxDown),
		quit:        make(chan struct{}),
	})
}

// enter gives an agent its node's place, unless another one has it.
func (p *parent) enter(a *agentConn) (*agentConn, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.agents[a.node]; old != nil {
		if old.incarnation == a.incarnation {
			return nil, fmt.Sprintf("node %d has already said hello on another connection", a.node)
		}
		return nil, fmt.Sprintf("node %d is already taken by another agent process (host %s, incarnation %016x; yours is %016x)",
			a.node, old.host, old.incarnation, a.incarnation)
	}
	p.agents[a.node] = a
	return a, ""
}

// examine checks a hello, said to a node or the head by whoever has a certificate, by itself.
func (p *parent) examine(hello *pb.Hello, id Identity, to int) string {
	if hello == nil {
		return "the first message is not a hello"
	}
	if hello.Protocol != p.cfg.protocol {
		return fmt.Sprintf("the agent speaks protocol %d (build %q), the head protocol %d (build %q); install the same mkrun on both hosts",
			hello.Protocol, clip(hello.Build), p.cfg.protocol, p.cfg.build)
	}
	switch {
	case hello.Job != p.cfg.job:
		return fmt.Sprintf("this is job %s, not %q", p.cfg.job, clip(hello.Job))
	case hello.Generation != p.cfg.generation:
		return fmt.Sprintf("job %s is in generation %d, not %d", p.cfg.job, p.cfg.generation, hello.Generation)
	case hello.Node < 0 || int(hello.Node) >= p.cfg.tree.Nodes:
		return fmt.Sprintf("node index %d is outside the job's 0 to %d", hello.Node, p.cfg.tree.Nodes-1)
	case id != Identity{RoleAgent, int(hello.Node)}:
		return fmt.Sprintf("the certificate is that of %v, the hello that of agent %d", id, hello.Node)
	case p.cfg.tree.Parent(int(hello.Node)) != to:
		return fmt.Sprintf("node %d does not report here", hello.Node)
	case hello.Incarnation == 0:
		return "the hello has no incarnation"
	case len(hello.Hostname) > maxHelloText || len(hello.Build) > maxHelloText:
		return "a text in the hello is too long"
	case len(hello.Addresses) > maxHelloAddresses:
		return fmt.Sprintf("the hello has %d addresses; the most is %d", len(hello.Addresses), maxHelloAddresses)
	}
	for _, a := range hello.Addresses {
		if len(a) > maxHelloText {
			return "an address in the hello is too long"
		}
	}
	return ""
}

// clip bounds a stranger's text in a message to people.
func clip(s string) string { return clipTo(s, maxHelloText) }

func clipTo(s string, n int) string { return s[:min(len(s), n)] }
