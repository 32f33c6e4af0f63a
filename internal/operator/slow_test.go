package operator

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// pace is how one rank of a job falls behind the others.
type pace int

const (
	even   pace = iota // it does not
	late               // it begins each call when all others have begun theirs
	halts              // it gives way to others, at random, before whatever it does
	slink              // its own links to other nodes are slow
	narrow             // it has one worker per role and small tiles
	paces
)

// crowd is what the ranks of a job know of each other's calls.
type crowd struct {
	mu    sync.Mutex
	size  int
	begun map[int]int // call -> ranks that have begun it
	all   map[int]chan struct{}
}

func newCrowd(size int) *crowd {
	return &crowd{size: size, begun: map[int]int{}, all: map[int]chan struct{}{}}
}

// others returns a channel that is closed when all ranks but one have begun a call. The caller holds the lock.
func (c *crowd) others(call int) chan struct{} {
	if c.all[call] == nil {
		c.all[call] = make(chan struct{})
		if c.size == 1 {
			close(c.all[call])
		}
	}
	return c.all[call]
}

func (c *crowd) begin(call int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begun[call]++; c.begun[call] == c.size-1 {
		close(c.others(call))
	}
}

func (c *crowd) awaitOthers(ctx context.Context, call int) {
	c.mu.Lock()
	others := c.others(call)
	c.mu.Unlock()
	select {
	case <-others:
	case <-ctx.Done():
	}
}

// paced is an engine whose rank keeps a pace. With loose, ranks do not line up before calls, and run ahead of each
// other, on other data, as far as credits let them.
type paced struct {
	engine.Engine
	crowd *crowd
	pace  pace
	loose bool
	seed  uint64
}

func (p paced) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	switch p.pace {
	case slink:
		cfg.Net.Latency += 300 * time.Microsecond
		cfg.Net.BandwidthGBs = 0.05
	case narrow:
		cfg.Workers, cfg.Tile = [plan.NumRoles]int{1, 1, 1, 1}, 3
	}
	in, err := p.Engine.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &pacedRun{Instance: in, paced: p, random: rand.New(rand.NewPCG(p.seed, uint64(cfg.Rank)))}, nil
}

type pacedRun struct {
	engine.Instance
	paced
	random *rand.Rand
	call   int
}

func (p *pacedRun) halt() {
	if p.pace == halts {
		for range p.random.IntN(300) {
			runtime.Gosched()
		}
	}
}

func (p *pacedRun) SetInput(buffer string, bits []uint16) error {
	p.halt()
	return p.Instance.SetInput(buffer, bits)
}

func (p *pacedRun) Poison(buffer string) error {
	p.halt()
	return p.Instance.Poison(buffer)
}

func (p *pacedRun) Output(buffer string) ([]uint16, error) {
	p.halt()
	return p.Instance.Output(buffer)
}

func (p *pacedRun) Sync(ctx context.Context) error {
	p.halt()
	if p.loose {
		return nil
	}
	return p.Instance.Sync(ctx)
}

func (p *pacedRun) Run(ctx context.Context) (engine.Stats, error) {
	p.halt()
	p.call++
	if p.pace == late {
		p.crowd.awaitOthers(ctx, p.call)
	} else {
		p.crowd.begin(p.call)
	}
	return p.Instance.Run(ctx)
}
