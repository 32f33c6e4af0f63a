package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// GossipConfig describes one node of a gossip pool.
type GossipConfig struct {
	Job         string
	Node, Nodes int    // this node's index, and how many there are
	Incarnation uint64 // of this agent process
	Key         []byte // 32 bytes: AES-256, derived from the job's secret
	Bind        string // IP address to listen on
	Advertise   string // IP address at which peers reach this node; Bind when empty
	Port        int    // UDP and TCP; 0 picks one
	Log         *slog.Logger

	transport memberlist.Transport // tests run without sockets
}

// Member is one agent process as gossip sees it.
type Member struct {
	Node        int
	Incarnation uint64
	Address     string // host:port
}

// MemberEvent is gossip's opinion of another node: it is alive, or it is dead or has left (memberlist
// does not tell which). It is an opinion: an overloaded host looks dead to it.
type MemberEvent struct {
	Member
	Alive bool
}

// Gossip is a node's membership in its job's pool. The pool is closed: who lacks the key or the job's
// label is not understood, and only the job's node indices are let in.
type Gossip struct {
	cfg    GossipConfig
	log    *slog.Logger
	list   *memberlist.Memberlist
	events *eventQueue
	joins  sync.WaitGroup

	shutdownOnce sync.Once
	shutdownErr  error
}

// joinLimit bounds a join, in all and of one address.
const joinLimit = 2 * time.Second

// StartGossip opens the node's pool of one; Join brings it together with others.
func StartGossip(cfg GossipConfig) (*Gossip, error) {
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Bind
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	bind, err := netip.ParseAddr(cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip: address to listen on: %w", err)
	}
	advertise, err := netip.ParseAddr(cfg.Advertise)
	if err != nil {
		return nil, fmt.Errorf("gossip: address for peers: %w", err)
	}
	switch {
	case advertise.IsUnspecified():
		return nil, fmt.Errorf("gossip: no peer can reach %s; the address for peers must be a host's own", advertise)
	case cfg.Node < 0 || cfg.Node >= cfg.Nodes:
		return nil, fmt.Errorf("gossip: node %d of %d", cfg.Node, cfg.Nodes)
	case len(cfg.Key) != 32:
		return nil, fmt.Errorf("gossip: a key of %d bytes; it must have 32", len(cfg.Key))
	case cfg.Job == "" || len(memberName(cfg.Job, cfg.Node, cfg.Incarnation)) > 200:
		return nil, fmt.Errorf("gossip: job id of %d bytes", len(cfg.Job))
	}
	g := &Gossip{cfg: cfg, log: cfg.Log.With("part", "gossip"), events: newEventQueue()}
	conf := poolConfig(cfg.Nodes)
	conf.Name = memberName(cfg.Job, cfg.Node, cfg.Incarnation)
	conf.Label = cfg.Job
	conf.SecretKey = cfg.Key
	conf.BindAddr, conf.BindPort = bind.String(), cfg.Port
	conf.AdvertiseAddr, conf.AdvertisePort = advertise.String(), cfg.Port
	if advertise.Is6() {
		conf.UDPBufferSize = 1200 // tunnels, and IPv6's smallest MTU
	}
	conf.Transport = cfg.transport
	conf.Logger = log.New(debugLines{g.log}, "", 0)
	conf.Events = (*eventDelegate)(g)
	conf.Alive = (*aliveDelegate)(g)
	conf.Conflict = (*conflictDelegate)(g)
	if g.list, err = memberlist.Create(conf); err != nil {
		g.events.close()
		if strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) { // which memberlist tells in words only
			err = fmt.Errorf("%w: %w", syscall.EADDRINUSE, err)
		}
		return nil, fmt.Errorf("gossip: opening %s port %d: %w", cfg.Bind, cfg.Port, err)
	}
	return g, nil
}

// poolConfig has the timing for a pool of n nodes: news spreads in well under a second, and a silent
// node is told dead after some three to four seconds. memberlist repeats a piece of news
// RetransmitMult*log10(n) times and lets random exchanges do the rest, which at its defaults leaves a
// node uninformed for half a minute now and then.
func poolConfig(n int) *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.GossipNodes = 4
	c.GossipInterval = 50 * time.Millisecond
	c.RetransmitMult = 12
	c.ProbeInterval = 500 * time.Millisecond
	c.ProbeTimeout = 200 * time.Millisecond
	c.SuspicionMult = 4
	c.PushPullInterval = 5 * time.Second
	if n > 256 { // less traffic per node; there are many more to carry the news
		c.GossipInterval = 100 * time.Millisecond
		c.RetransmitMult = 6
		c.ProbeInterval = time.Second
		c.PushPullInterval = 15 * time.Second
	}
	c.TCPTimeout = joinLimit
	c.EnableCompression = false
	c.UDPBufferSize = 1400
	c.HandoffQueueDepth = max(4096, 4*n)
	c.DeadNodeReclaimTime = 0
	return c
}

// Address is where peers reach this node: host:port.
func (g *Gossip) Address() string { return g.list.LocalNode().Address() }

// Join connects to the pool through any of the given members (IP address and port), all at the same
// time and for two seconds at most. It returns how many answered, and an error only if none did.
func (g *Gossip) Join(ctx context.Context, addresses []string) (int, error) {
	if len(addresses) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	results := make(chan error, len(addresses))
	for _, address := range addresses {
		if _, err := netip.ParseAddrPort(address); err != nil { // names would be looked up without a bound
			results <- fmt.Errorf("%q: %w", address, err)
			continue
		}
		g.joins.Go(func() {
			_, err := g.list.Join([]string{address})
			if err != nil {
				err = fmt.Errorf("%s: %w", address, err)
			}
			results <- err
		})
	}
	joined := 0
	var failures []error
	for range addresses {
		select {
		case err := <-results:
			if err == nil {
				joined++
			} else {
				failures = append(failures, err)
			}
		case <-ctx.Done():
			failures = append(failures, fmt.Errorf("no answer: %w", ctx.Err()))
			if joined > 0 {
				return joined, nil
			}
			return 0, fmt.Errorf("gossip: joining: %w", errors.Join(failures...))
		}
	}
	if joined == 0 {
		return 0, fmt.Errorf("gossip: joining: %w", errors.Join(failures...))
	}
	return joined, nil
}

// Members lists the nodes that are alive in gossip's opinion, this one included.
func (g *Gossip) Members() []Member {
	var members []Member
	for _, n := range g.list.Members() {
		if m, err := g.parse(n); err == nil {
			members = append(members, m)
		}
	}
	return members
}

// Events delivers opinions of other nodes in the order they were formed, and is closed by Shutdown.
func (g *Gossip) Events() <-chan MemberEvent { return g.events.out }

// Leave tells the others that this node goes, and returns when that is on its way or ctx is done.
func (g *Gossip) Leave(ctx context.Context) error {
	limit := joinLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = max(min(limit, time.Until(deadline)), time.Millisecond)
	}
	if err := g.list.Leave(limit); err != nil {
		return fmt.Errorf("gossip: leaving: %w", err)
	}
	return nil
}

// Shutdown closes the sockets without a word to the others.
func (g *Gossip) Shutdown() error {
	g.shutdownOnce.Do(func() {
		g.shutdownErr = g.list.Shutdown()
		g.joins.Wait()
		g.events.close()
	})
	return g.shutdownErr
}

// memberName makes every agent process its own member, so that one which comes back is never taken
// for its predecessor.
func memberName(job string, node int, incarnation uint64) string {
	return fmt.Sprintf("%s/%d/%016x", job, node, incarnation)
}

// parse reads a member's name; the error says why it may not be in the pool.
func (g *Gossip) parse(n *memberlist.Node) (Member, error) {
	prefix := g.cfg.Job + "/"
	if len(n.Name) < len(prefix) || n.Name[:len(prefix)] != prefix {
		return Member{}, fmt.Errorf("%q is not a node of job %s", n.Name, g.cfg.Job)
	}
	var m Member
	if _, err := fmt.Sscanf(n.Name[len(prefix):], "%d/%x", &m.Node, &m.Incarnation); err != nil || memberName(g.cfg.Job, m.Node, m.Incarnation) != n.Name {
		return Member{}, fmt.Errorf("%q is not the name of a node", n.Name)
	}
	if m.Node < 0 || m.Node >= g.cfg.Nodes {
		return Member{}, fmt.Errorf("job %s has no node %d", g.cfg.Job, m.Node)
	}
	m.Address = net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
	return m, nil
}

// The delegates are types of their own to keep memberlist's methods out of Gossip's.
type (
	eventDelegate    Gossip
	aliveDelegate    Gossip
	conflictDelegate Gossip
)

func (d *eventDelegate) NotifyJoin(n *memberlist.Node)  { d.note(n, true) }
func (d *eventDelegate) NotifyLeave(n *memberlist.Node) { d.note(n, false) }

// NotifyUpdate has nothing to tell: nodes carry no metadata.
func (d *eventDelegate) NotifyUpdate(*memberlist.Node) {}

func (d *eventDelegate) note(n *memberlist.Node, alive bool) {
	g := (*Gossip)(d)
	m, err := g.parse(n)
	if err != nil || (m.Node == g.cfg.Node && m.Incarnation == g.cfg.Incarnation) {
		return
	}
	g.events.put(MemberEvent{m, alive})
}

// NotifyAlive refuses whoever is not of this job.
func (d *aliveDelegate) NotifyAlive(n *memberlist.Node) error {
	g := (*Gossip)(d)
	_, err := g.parse(n)
	if err != nil {
		g.log.Warn("kept a stranger out of the pool", "name", n.Name, "address", n.Address(), "error", err)
	}
	return err
}

func (d *conflictDelegate) NotifyConflict(existing, other *memberlist.Node) {
	d.log.Warn("two addresses claim to be the same agent process", "name", existing.Name,
		"known", existing.Address(), "other", other.Address())
}

// debugLines turns memberlist's log lines into records of our own.
type debugLines struct{ log *slog.Logger }

func (d debugLines) Write(line []byte) (int, error) {
	text := line
	for len(text) > 0 && text[len(text)-1] == '\n' {
		text = text[:len(text)-1]
	}
	d.log.Debug(string(text))
	return len(line), nil
}
