package plan

import "fmt"

// places is a world with its ranks' places in tables, and what makers of plans ask about them again and again.
type places struct {
	World
	first []int // first rank of each node
	node  []int // of each rank
	local []int // of each rank
}

func newPlaces(w World) places {
	p := places{World: w}
	for node, ppn := range w.PPN {
		p.first = append(p.first, len(p.node))
		for local := range ppn {
			p.node = append(p.node, node)
			p.local = append(p.local, local)
		}
	}
	return p
}

// gateway is the rank of a node that is on the rail of a rank of another node.
func (p *places) gateway(rank, node int) int {
	return p.first[node] + p.local[rank]%p.PPN[node]
}

// shardRows is a chunk's part of the M rows of one rank's shard.
func (p *places) shardRows(shard, chunk, chunks int) Span {
	return Part(DimM, shard*chunks+chunk, len(p.node)*chunks)
}

// checkSize refuses worlds and chunks of which a plan cannot be made; tasks is the most there are per chunk.
func checkSize(operator string, w World, chunks int, tasks func(size int64) int64) error {
	if err := w.Validate(); err != nil {
		return fmt.Errorf("planning %s: %w", operator, err)
	}
	if chunks < 1 || chunks > maxTasks {
		return fmt.Errorf("planning %s: a shard cannot travel in %d chunks; give a number from 1 to %d", operator, chunks, maxTasks)
	}
	size := int64(w.Size())
	if tasks(size) > maxTasks/int64(chunks) {
		return fmt.Errorf("planning %s: %d ranks with %d chunks per shard make more than %d segments; use fewer chunks", operator, size, chunks, maxTasks)
	}
	return nil
}

// flagFamily adds flags for i of n and c of chunks to a plan, unless they are of no use, and returns the first.
func (p *Plan) flagFamily(used bool, kind FlagKind, format string, n, chunks int) FlagID {
	id := FlagID(len(p.Flags))
	if used {
		for i := range n {
			for c := range chunks {
				p.Flags = append(p.Flags, Flag{Name: fmt.Sprintf(format, i, c), Kind: kind})
			}
		}
	}
	return id
}

// maker is what making any plan needs at hand.
type maker struct {
	places
	plan    *Plan
	chunks  int
	waits   slab[Wait]
	signals slab[Signal]
}

// flag is the member of a family for i and a chunk.
func (m *maker) flag(family FlagID, i, chunk int) FlagID {
	return family + FlagID(i*m.chunks+chunk)
}

func (m *maker) add(rank int, role Role, t Task) {
	q := &m.plan.Ranks[rank].Queues[role]
	*q = append(*q, t)
}
