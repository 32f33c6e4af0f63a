package launch

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"

	"github.com/mkrun/mkrun/internal/rendezvous"
	"github.com/mkrun/mkrun/internal/session"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// pool is an agent's part in the job's gossip: the second opinion on which nodes are alive.
type pool struct {
	gossip *rendezvous.Gossip
	node   int
	log    *slog.Logger
	joins  sync.WaitGroup
	cancel context.CancelFunc
	dead   map[int]bool // nodes, as this one has told its parent
}

func openPool(cfg AgentConfig, incarnation uint64, secret session.Secret, log *slog.Logger) (*pool, error) {
	key, err := secret.GossipKey(cfg.Job)
	if err != nil {
		return nil, err
	}
	var gossip *rendezvous.Gossip
	err = cfg.Ports.Try(func(port int) (err error) {
		gossip, err = rendezvous.StartGossip(rendezvous.GossipConfig{
			Job: cfg.Job, Node: cfg.Node, Nodes: cfg.Nodes, Incarnation: incarnation, Key: key, Bind: cfg.Address, Port: port, Log: log,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &pool{gossip: gossip, node: cfg.Node, log: log, dead: map[int]bool{}}, nil
}

// addresses are where others can join through this node.
func (p *pool) addresses() []string { return []string{p.gossip.Address()} }

// seeds is the number of members a node joins through, so that none is needed by all.
const seeds = 3

// join brings this node together with some of the roster: the next one, so that all are linked in a
// circle, and two by chance. Nothing waits for it.
func (p *pool) join(ctx context.Context, roster *pb.Roster) {
	n := len(roster.GetNodes())
	if n < 2 {
		return
	}
	picks := []int{(p.node + 1) % n}
	for len(picks) < min(seeds, n-1) {
		picks = append(picks, rand.IntN(n))
	}
	var through []string
	for _, i := range picks {
		if i != p.node {
			through = append(through, roster.GetNodes()[i].GetGossip()...)
		}
	}
	ctx, p.cancel = context.WithCancel(ctx)
	p.joins.Go(func() {
		if _, err := p.gossip.Join(ctx, through); err != nil && ctx.Err() == nil {
			p.log.Warn("gossip is not available; the heartbeat alone watches the nodes", "error", err)
		}
	})
}

// opinions are what gossip thinks of other nodes.
func (p *pool) opinions() <-chan rendezvous.MemberEvent { return p.gossip.Events() }

// message is how an opinion is told to the parent; nil if it is no news there. That a node is alive its own stream
// says; of n nodes each saying so of all others would be n times n messages.
func (p *pool) message(ev rendezvous.MemberEvent) *pb.FromAgent {
	if ev.Alive != p.dead[ev.Node] {
		return nil
	}
	p.dead[ev.Node] = !ev.Alive
	return &pb.FromAgent{Kind: &pb.FromAgent_Member{Member: &pb.MemberEvent{
		Node: int32(ev.Node), Alive: ev.Alive,
	}}}
}

// close leaves the pool. The job is over for this node, so nobody needs to be told.
func (p *pool) close() {
	if p.cancel != nil {
		p.cancel()
	}
	if err := p.gossip.Shutdown(); err != nil {
		p.log.Debug("closing gossip", "error", err)
	}
	p.joins.Wait()
}
