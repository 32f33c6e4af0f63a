package session

import (
	"errors"
	"fmt"

	"github.com/mkrun/mkrun/internal/engine"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// store holds, at the head, what ranks have put since the last fence, until the fence hands it out.
type store struct {
	fence *collective
	world world
	puts  []*pb.Put
	bytes []int64 // per rank, this round
	total int64
	limit int64 // of total
}

func newStore(w world, limit int64) *store {
	return &store{fence: newCollective("fence", w.size), world: w, bytes: make([]int64, w.size), limit: limit}
}

// errStoreFull marks data that is valid but too much: the job's fault, not the agent's.
var errStoreFull = errors.New("too much endpoint data")

func (s *store) put(p *pb.Put) error {
	switch {
	case p.To != engine.Everyone && (p.To < 0 || int(p.To) >= s.world.size):
		return fmt.Errorf("rank %d put data for rank %d, but the job has ranks 0 to %d", p.From, p.To, s.world.size-1)
	case len(p.Chunk) > MaxChunk:
		return fmt.Errorf("rank %d put a chunk of %d bytes; the most is %d", p.From, len(p.Chunk), MaxChunk)
	case p.Round != s.fence.done+1 || s.fence.entered[p.From]:
		return fmt.Errorf("rank %d put data for fence %d while fence %d is in progress", p.From, p.Round, s.fence.done+1)
	}
	n := int64(len(p.Chunk))
	if s.bytes[p.From]+n > MaxRankPut {
		return fmt.Errorf("%w: rank %d put more than %d MiB before fence %d", errStoreFull, p.From, MaxRankPut>>20, p.Round)
	}
	if s.total+n > s.limit {
		return fmt.Errorf("%w: all ranks together put more than %d MiB before fence %d", errStoreFull, s.limit>>20, p.Round)
	}
	s.bytes[p.From] += n
	s.total += n
	s.puts = append(s.puts, p)
	return nil
}

// enter counts a rank into the fence. When that completes it, the result has the messages for each
// node: what was put for everyone, or for one of the node's ranks, in pieces of a bounded size.
func (s *store) enter(f *pb.FenceEnter) (out [][]*pb.ToAgent, err error) {
	done, err := s.fence.enter(f.Rank, f.Round)
	if err != nil || !done {
		return nil, err
	}
	out = make([][]*pb.ToAgent, len(s.world.nodes))
	for node := range out {
		out[node] = s.pieces(node, f.Round)
	}
	s.puts, s.total = nil, 0
	clear(s.bytes)
	return out, nil
}

func (s *store) pieces(node int, round uint64) []*pb.ToAgent {
	current := &pb.FenceDone{Round: round}
	messages := []*pb.ToAgent{{Kind: &pb.ToAgent_FenceDone{FenceDone: current}}}
	size := 0
	for _, p := range s.puts {
		if p.To != engine.Everyone && s.world.nodeOf(p.To) != node {
			continue
		}
		const header = 32 // an upper bound of a Put without its chunk
		if size += len(p.Chunk) + header; size > MaxChunk+header && len(current.Blobs) > 0 {
			current.More = true
			current = &pb.FenceDone{Round: round}
			messages = append(messages, &pb.ToAgent{Kind: &pb.ToAgent_FenceDone{FenceDone: current}})
			size = len(p.Chunk) + header
		}
		current.Blobs = append(current.Blobs, p)
	}
	return messages
}

// world is the numbered membership as the collectives need it.
type world struct {
	nodes []*pb.Node
	size  int
	node  []int // by rank
}

// maxRanks bounds the ranks of a node, against a roster that is garbage.
const maxRanks = 1 << 16

// newWorld checks that a roster numbers the ranks node by node without a gap.
func newWorld(r *pb.Roster) (world, error) {
	w := world{nodes: r.GetNodes()}
	for i, n := range w.nodes {
		if int(n.GetIndex()) != i || int(n.GetFirstRank()) != w.size || n.GetRanks() < 1 || n.GetRanks() > maxRanks {
			return world{}, fmt.Errorf("roster: node %d is numbered %d, with %d ranks from %d; expected them from %d", i, n.GetIndex(), n.GetRanks(), n.GetFirstRank(), w.size)
		}
		for range n.Ranks {
			w.node = append(w.node, i)
		}
		w.size += int(n.Ranks)
	}
	if w.size == 0 {
		return world{}, errors.New("roster: it has no rank")
	}
	return w, nil
}

func (w world) nodeOf(rank int32) int { return w.node[rank] }

func (w world) owns(node int, rank int32) bool {
	return rank >= 0 && int(rank) < w.size && w.node[rank] == node
}
