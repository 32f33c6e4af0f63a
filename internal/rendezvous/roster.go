package rendezvous

import (
	"fmt"
	"net"
	"slices"
	"time"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// Assembly collects the hellos of a job's nodes and makes the numbered roster from them. Ranks are
// numbered by the order in which the nodes were given, then by local rank; who says hello first does not
// matter. It is used by one goroutine.
type Assembly struct {
	job        string
	generation uint32
	ppn        []int
	hellos     []*pb.Hello
	since      []time.Time // since when a node is missing
	missing    int
}

// NewAssembly starts with all nodes missing since now; ppn has the number of ranks on each node.
func NewAssembly(job string, generation uint32, ppn []int, now time.Time) (*Assembly, error) {
	if len(ppn) == 0 {
		return nil, fmt.Errorf("job %s has no node", job)
	}
	for node, ranks := range ppn {
		if ranks < 1 {
			return nil, fmt.Errorf("node %d of job %s has %d ranks; each node needs at least one", node, job, ranks)
		}
	}
	a := &Assembly{
		job:        job,
		generation: generation,
		ppn:        slices.Clone(ppn),
		hellos:     make([]*pb.Hello, len(ppn)),
		since:      make([]time.Time, len(ppn)),
		missing:    len(ppn),
	}
	for node := range a.since {
		a.since[node] = now
	}
	return a, nil
}

// Hello counts a node in, and reports whether all are here now.
func (a *Assembly) Hello(h *pb.Hello) (complete bool, err error) {
	switch node := int(h.GetNode()); {
	case h.GetJob() != a.job || h.GetGeneration() != a.generation:
		return false, fmt.Errorf("hello for job %q generation %d; this is job %s generation %d", h.GetJob(), h.GetGeneration(), a.job, a.generation)
	case node < 0 || node >= len(a.ppn):
		return false, fmt.Errorf("hello of node %d; job %s has nodes 0 to %d", node, a.job, len(a.ppn)-1)
	case a.hellos[node] != nil:
		return false, fmt.Errorf("second hello of node %d: from %s, after %s", node, h.GetHostname(), a.hellos[node].GetHostname())
	default:
		a.hellos[node] = h
		a.missing--
	}
	return a.Complete(), nil
}

// Lost takes a node out again.
func (a *Assembly) Lost(node int, now time.Time) {
	if node >= 0 && node < len(a.hellos) && a.hellos[node] != nil {
		a.hellos[node] = nil
		a.since[node] = now
		a.missing++
	}
}

// Complete reports whether every node said hello.
func (a *Assembly) Complete() bool { return a.missing == 0 }

// Missing is a node that has not said hello, or is lost, since a moment.
type Missing struct {
	Node  int
	Since time.Time
}

// Missing lists the nodes that are not here, in their order.
func (a *Assembly) Missing() []Missing {
	var list []Missing
	for node, h := range a.hellos {
		if h == nil {
			list = append(list, Missing{node, a.since[node]})
		}
	}
	return list
}

// Roster numbers the ranks. It fails while a node is missing.
func (a *Assembly) Roster() (*pb.Roster, error) {
	if !a.Complete() {
		return nil, fmt.Errorf("%d of the %d nodes of job %s are missing", a.missing, len(a.ppn), a.job)
	}
	r := &pb.Roster{Job: a.job, Generation: a.generation}
	first := int32(0)
	for node, h := range a.hellos {
		n := &pb.Node{
			Index:       int32(node),
			Incarnation: h.GetIncarnation(),
			Hostname:    h.GetHostname(),
			Gossip:      h.GetAddresses(),
			FirstRank:   first,
			Ranks:       int32(a.ppn[node]),
		}
		if len(n.Gossip) > 0 {
			host, _, err := net.SplitHostPort(n.Gossip[0])
			if err != nil {
				return nil, fmt.Errorf("node %d (%s) gave an address that is none: %w", node, n.Hostname, err)
			}
			n.Address = host // ranks listen where the agent is reached
		}
		r.Nodes = append(r.Nodes, n)
		first += n.Ranks
	}
	return r, nil
}
