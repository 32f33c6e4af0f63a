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
func (h *Head) admit(hello *pb.Hello, conn *memberConn) (*agentConn, string) {
	if reason := h.examine(hello, conn.id); reason != "" {
		return nil, reason
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	node := int(hello.Node)
	if old := h.agents[node]; old != nil {
		if old.incarnation == hello.Incarnation {
			return nil, fmt.Sprintf("node %d has already said hello on another connection", node)
		}
		return nil, fmt.Sprintf("node %d is already taken by another agent process (host %s, incarnation %016x; yours is %016x)",
			node, old.host, old.incarnation, hello.Incarnation)
	}
	a := &agentConn{
		node:        node,
		incarnation: hello.Incarnation,
		host:        hello.Hostname,
		conn:        conn,
		out:         newOutbox(MaxDown),
		quit:        make(chan struct{}),
	}
	h.agents[node] = a
	return a, ""
}

// examine checks a hello by itself.
func (h *Head) examine(hello *pb.Hello, id Identity) string {
	if hello == nil {
		return "the first message is not a hello"
	}
	if hello.Protocol != h.cfg.protocol {
		return fmt.Sprintf("the agent speaks protocol %d (build %q), the head protocol %d (build %q); install the same mkrun on both hosts",
			hello.Protocol, clip(hello.Build), h.cfg.protocol, h.cfg.Build)
	}
	switch {
	case hello.Job != h.cfg.Job:
		return fmt.Sprintf("this is job %s, not %q", h.cfg.Job, clip(hello.Job))
	case hello.Generation != h.cfg.Generation:
		return fmt.Sprintf("job %s is in generation %d, not %d", h.cfg.Job, h.cfg.Generation, hello.Generation)
	case hello.Node < 0 || int(hello.Node) >= h.cfg.Nodes:
		return fmt.Sprintf("node index %d is outside the job's 0 to %d", hello.Node, h.cfg.Nodes-1)
	case id != Identity{RoleAgent, int(hello.Node)}:
		return fmt.Sprintf("the certificate is that of %v, the hello that of agent %d", id, hello.Node)
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
