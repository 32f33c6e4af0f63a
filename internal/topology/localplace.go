package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// LocalPlaces says where each of a number of ranks (1 or more) of one node goes: which GPU it takes, which NICs with
// it, and which CPUs it is bound to. Position is the local rank; Rank is the same number, for the caller to replace.
//
// visible is CUDA_VISIBLE_DEVICES as the ranks will have it: its order is that of the local ranks, and a MIG instance
// counts as a GPU. "" stands for all GPUs that this process may use, in the order of Place. With more ranks than GPUs
// neighbours share one; with fewer the last GPUs are left over. Without any GPU (GPU is then -1) the ranks are spread
// over the NUMA nodes that have CPUs this process may use, and over the rails there.
//
// CPUs are a list such as "0-15,64-79", already cut to what this process may use; "" means: do not bind, for the
// reason in Bind. Ranks near the same NUMA node have the same list. Device is what names the GPU to CUDA: its UUID,
// that of the MIG instance, or its number where no UUID is known.
func (e *Eval) LocalPlaces(ranks int, visible string) ([]RankPlace, error) {
	if ranks < 1 {
		return nil, fmt.Errorf("placing %d ranks on %s: 1 or more", ranks, e.Node.Host)
	}
	seats, err := e.seats(visible)
	if err != nil {
		return nil, err
	}
	if len(seats) == 0 {
		return e.placeOnCPUs(ranks), nil
	}
	places := make([]RankPlace, ranks)
	uses := e.Uses()
	rails := e.RailNumbers()
	for local := range places {
		at := local
		if ranks > len(seats) {
			at = local * len(seats) / ranks
		}
		s := seats[at]
		gpu := &e.Node.GPUs[s.gpu]
		p := RankPlace{Rank: local, Host: e.Node.Host, LocalRank: local, GPU: gpu.Index, BDF: gpu.BDF, Device: s.device, NUMA: gpu.NUMA,
			NICs: e.refs(uses[s.gpu].NICs), NICRule: uses[s.gpu].Rule, Rails: numbersOf(rails, uses[s.gpu].NICs), Island: s.island}
		p.CPUs, p.Bind = e.binding(gpu)
		places[local] = p
	}
	return places, nil
}

// seat is what one rank can take: a GPU, or an instance of one.
type seat struct {
	gpu, island int
	device      string
}

// seats lists a node's seats in the order in which ranks take them.
func (e *Eval) seats(visible string) ([]seat, error) {
	gpus, island := e.order()
	var seats []seat
	if visible == "" {
		for _, g := range gpus {
			seats = append(seats, seat{g, island[g], e.Node.GPUs[g].device()})
		}
		return seats, nil
	}
	order, problem := ResolveVisible(visible, e.Node.GPUs)
	if problem != "" {
		return nil, fmt.Errorf("the GPUs of %s: %s", e.Node.Host, problem)
	}
	parts := strings.Split(visible, ",")
	for i, g := range order {
		device := e.Node.GPUs[g].device()
		if len(order) <= len(parts) && strings.HasPrefix(strings.TrimSpace(parts[i]), "MIG-") {
			device = strings.TrimSpace(parts[i])
		}
		seats = append(seats, seat{g, island[g], device})
	}
	return seats, nil
}

// device is what names a GPU to CUDA, whatever the order of its numbers.
func (g *GPU) device() string {
	if g.UUID != "" {
		return g.UUID
	}
	return strconv.Itoa(g.Index)
}

// placeOnCPUs spreads ranks over NUMA nodes in blocks, and the ranks of a NUMA node over the rails that are near it,
// else over all.
func (e *Eval) placeOnCPUs(ranks int) []RankPlace {
	type site struct {
		id   int
		cpus CPUSet
		all  string
	}
	allowed, _ := ParseCPUList(e.Node.System.Allowed)
	var sites []site
	for _, m := range e.Node.NUMA {
		cpus, err := ParseCPUList(m.CPUs)
		if err != nil || len(cpus) == 0 {
			continue
		}
		if len(allowed) > 0 {
			cpus = cpus.intersect(allowed)
		}
		if len(cpus) > 0 {
			sites = append(sites, site{m.ID, cpus, m.CPUs})
		}
	}
	places := make([]RankPlace, ranks)
	groups := map[int][]int{} // local ranks by position in sites; -1: unknown
	for local := range places {
		p := RankPlace{Rank: local, Host: e.Node.Host, LocalRank: local, GPU: -1, NICs: []NICRef{}, Island: -1, Bind: "no NUMA node is known: not bound"}
		at := -1
		if len(sites) > 0 {
			at = local * len(sites) / ranks
			if ranks < len(sites) {
				at = local
			}
			s := sites[at]
			p.NUMA, p.CPUs, p.Bind = intp(s.id), s.cpus.String(), fmt.Sprintf("CPUs of NUMA node %d", s.id)
			if p.CPUs != s.all {
				p.Bind += fmt.Sprintf(" that may be used (ideal: %s)", s.all)
			}
		}
		places[local] = p
		groups[at] = append(groups[at], local)
	}
	numbers := e.RailNumbers()
	for at, locals := range groups {
		rule := "rails of no known distance"
		if at >= 0 {
			rule = fmt.Sprintf("rails of NUMA node %d", sites[at].id)
		}
		near := func(c *NIC) bool { return at >= 0 && c.NUMA != nil && *c.NUMA == sites[at].id }
		rails := e.railsWhere(near)
		if len(rails) == 0 {
			rails = e.railsWhere(func(*NIC) bool { return true })
			if at >= 0 {
				rule = fmt.Sprintf("no rail is on NUMA node %d: rails of the whole node", sites[at].id)
			}
		}
		for i, local := range locals {
			u := Use{Near: Near{NICs: rails}}
			e.share(&u, i, len(locals))
			places[local].NICs, places[local].Rails = e.refs(u.NICs), numbersOf(numbers, u.NICs)
			switch {
			case len(rails) == 0:
				places[local].NICRule = u.Rule
			case len(locals) == 1:
				places[local].NICRule = fmt.Sprintf("%s: all %d", rule, len(rails))
			default:
				places[local].NICRule = fmt.Sprintf("%s: %d for %d ranks, number %d of them takes %d", rule, len(rails), len(locals), i, len(u.NICs))
			}
		}
	}
	return places
}

// railsWhere lists the rails of a node that fit, by position.
func (e *Eval) railsWhere(fits func(*NIC) bool) []int {
	var rails []int
	for c := range e.Node.NICs {
		if e.roles[c].Role == RoleRail && fits(&e.Node.NICs[c]) {
			rails = append(rails, c)
		}
	}
	slices.SortFunc(rails, e.nicOrder)
	return rails
}

// intersect is what two sets share.
func (c CPUSet) intersect(d CPUSet) CPUSet {
	var both CPUSet
	for i, j := 0, 0; i < len(c) && j < len(d); {
		switch {
		case c[i] == d[j]:
			both = append(both, c[i])
			i++
			j++
		case c[i] < d[j]:
			i++
		default:
			j++
		}
	}
	return both
}
