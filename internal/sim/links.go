package sim

import (
	"math"
	"slices"
)

// network shares the links among the flows that cross them, max-min fairly: all flows grow alike until a link is
// full or a flow's own workers can do no more; those are fixed, and the others grow on.
type network struct {
	s     *simulation
	links []link
	dirty []int // links whose flows changed since the rates were set
}

type link struct {
	rate  float64 // bytes per second
	flows []*flow

	// of the filling in progress
	round int
	free  float64
	open  int // flows not yet fixed
}

// flow is bytes on their way over up to two links (out of one rank, into another).
type flow struct {
	links []int
	limit float64 // of its own workers, bytes per second
	left  float64 // bytes, as of since
	rate  float64
	since Time
	turn  int // of the last change of the rate: older ends are void
	done  func()

	round int
	fixed bool
	next  float64
}

// start puts bytes on their way; done is called when the last has left.
func (n *network) start(bytes, limit float64, links []int, done func()) {
	f := &flow{links: links, limit: limit, left: bytes, since: n.s.now, done: done}
	for _, l := range links {
		n.links[l].flows = append(n.links[l].flows, f)
	}
	n.dirty = append(n.dirty, links...)
}

// settle sets the rates of all flows that are connected to a change, and when they end.
func (n *network) settle() {
	if len(n.dirty) == 0 {
		return
	}
	n.s.round++
	links, flows := n.connected()
	n.dirty = n.dirty[:0]
	for open := len(flows); open > 0; {
		share := math.Inf(1)
		for _, l := range links {
			if k := &n.links[l]; k.open > 0 {
				share = min(share, k.free/float64(k.open))
			}
		}
		for _, f := range flows {
			if !f.fixed {
				share = min(share, f.limit)
			}
		}
		full := share * (1 + 1e-12)
		var fix []*flow
		for _, f := range flows {
			if !f.fixed && (f.limit <= full || slices.ContainsFunc(f.links, func(l int) bool {
				k := &n.links[l]
				return k.free/float64(k.open) <= full
			})) {
				fix = append(fix, f)
			}
		}
		for _, f := range fix {
			f.fixed, f.next = true, share
			for _, l := range f.links {
				k := &n.links[l]
				k.free, k.open = max(0, k.free-share), k.open-1
			}
		}
		open -= len(fix)
	}
	for _, f := range flows {
		n.turn(f)
	}
}

// connected lists the links and flows that a changed link has to do with.
func (n *network) connected() (links []int, flows []*flow) {
	visit := func(l int) {
		if k := &n.links[l]; k.round != n.s.round {
			k.round, k.free, k.open = n.s.round, k.rate, len(k.flows)
			links = append(links, l)
		}
	}
	for _, l := range n.dirty {
		visit(l)
	}
	for i := 0; i < len(links); i++ {
		for _, f := range n.links[links[i]].flows {
			if f.round == n.s.round {
				continue
			}
			f.round, f.fixed = n.s.round, false
			flows = append(flows, f)
			for _, l := range f.links {
				visit(l)
			}
		}
	}
	return links, flows
}

// turn gives a flow its next rate from now on.
func (n *network) turn(f *flow) {
	if f.turn > 0 && f.next == f.rate {
		return
	}
	f.left = max(0, f.left-f.rate*(n.s.now-f.since).Seconds())
	f.rate, f.since = f.next, n.s.now
	f.turn++
	turn := f.turn
	n.s.after(seconds(f.left/f.rate), func() {
		if f.turn == turn {
			n.end(f)
		}
	})
}

func (n *network) end(f *flow) {
	f.turn++
	for _, l := range f.links {
		k := &n.links[l]
		k.flows = slices.DeleteFunc(k.flows, func(o *flow) bool { return o == f })
	}
	n.dirty = append(n.dirty, f.links...)
	f.done()
}
