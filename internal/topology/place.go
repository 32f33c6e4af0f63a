package topology

import (
	"fmt"
	"strings"

	"github.com/mkrun/mkrun/internal/count"
)

// Placing is where ranks go.
type Placing struct {
	Ranks []RankPlace `json:"ranks"`
	Rule  string      `json:"rule"`
}

// RankPlace is one rank's place. CPUs is the set to bind to; "" means do not bind.
type RankPlace struct {
	Rank      int      `json:"rank"`
	Host      string   `json:"host"`
	LocalRank int      `json:"local_rank"`
	GPU       int      `json:"gpu"` // NVML's number; -1: none
	BDF       string   `json:"bdf"`
	Device    string   `json:"device"` // what names it to CUDA: the UUID of the GPU or of a MIG instance, else its number
	NUMA      *int     `json:"numa"`
	CPUs      string   `json:"cpus"`
	Bind      string   `json:"bind"` // why these CPUs, or why none
	NICs      []NICRef `json:"nics"`
	NICRule   string   `json:"nic_rule"` // why these NICs
	Rails     []int    `json:"-"`        // of the NICs, as RailNumbers counts them
	Island    int      `json:"island"`   // NVLink island within the node; -1: no GPU
}

// order are a node's usable GPUs in the order in which ranks take them: NVLink islands, larger first,
// each in the order of NUMA node and address; GPUs joined in pairs stand next to each other.
func (e *Eval) order() (gpus []int, island map[int]int) {
	at := map[int]int{}
	for i, g := range e.Node.GPUs {
		at[g.Index] = i
	}
	islands := e.Islands()
	island = map[int]int{}
	slot := map[int]int{}
	for k, g := range e.bySlot() {
		slot[g] = k
	}
	for size := len(e.Node.GPUs); size > 0; size-- {
		for k, members := range islands {
			if len(members) != size {
				continue
			}
			for _, index := range members {
				g := at[index]
				island[g] = k
				if !e.Node.GPUs[g].Hidden {
					gpus = append(gpus, g)
				}
			}
		}
	}
	if len(islands) == 1 { // one island: plain slot order
		gpus = gpus[:0]
		for _, g := range e.bySlot() {
			if !e.Node.GPUs[g].Hidden {
				gpus = append(gpus, g)
			}
		}
	}
	return gpus, island
}

// Place gives ranks to GPUs: nodes in order, as many ranks on each as it has GPUs, so that an NVLink
// domain is full before the next begins. A number that no node divides is fine.
func Place(evals []*Eval, ranks int) (*Placing, error) {
	p := &Placing{Ranks: []RankPlace{}, Rule: "fill one node's largest NVLink island first, then its next, then the next node; within an island by NUMA node and PCI address"}
	total := 0
	for _, e := range evals {
		gpus, _ := e.order()
		total += len(gpus)
		here := min(len(gpus), ranks-len(p.Ranks))
		if here == 0 {
			continue
		}
		places, err := e.LocalPlaces(here, "")
		if err != nil {
			return nil, err
		}
		for _, r := range places {
			r.Rank = len(p.Ranks)
			p.Ranks = append(p.Ranks, r)
		}
	}
	if len(p.Ranks) < ranks {
		return nil, fmt.Errorf("%s do not fit: %s in %s, one rank each", count.Of(ranks, "rank"), count.Of(total, "GPU"), count.Of(len(evals), "node"))
	}
	return p, nil
}

// binding are the CPUs near a GPU, cut to those that the process may use.
func (e *Eval) binding(g *GPU) (cpus, why string) {
	if g.NUMA == nil || *g.NUMA < 0 || g.CPUs == "" {
		return "", "no NUMA node is known to be near: not bound"
	}
	near, err := ParseCPUList(g.CPUs)
	if err != nil {
		return "", "its CPU list cannot be read: not bound"
	}
	allowed, err := ParseCPUList(e.Node.System.Allowed)
	if err != nil || len(allowed) == 0 {
		return near.String(), fmt.Sprintf("CPUs of NUMA node %d", *g.NUMA)
	}
	both := near.intersect(allowed)
	if len(both) == 0 {
		return "", fmt.Sprintf("ideal are %s (NUMA node %d), but only %s may be used: not bound", near, *g.NUMA, allowed)
	}
	if len(both) == len(near) {
		return near.String(), fmt.Sprintf("CPUs of NUMA node %d", *g.NUMA)
	}
	return both.String(), fmt.Sprintf("CPUs of NUMA node %d that may be used (ideal: %s)", *g.NUMA, near)
}

// Write writes the placement as a table.
func (p *Placing) Write(b *strings.Builder, s Style) {
	rows := [][]cell{{{"rank", colBold}, {"host", colBold}, {"GPU", colBold}, {"NUMA", colBold}, {"bind to", colBold}, {"NICs", colBold}}}
	for _, r := range p.Ranks {
		numa := "-"
		if r.NUMA != nil && *r.NUMA >= 0 {
			numa = fmt.Sprint(*r.NUMA)
		}
		var nics []string
		for _, c := range r.NICs {
			nics = append(nics, c.Name)
		}
		cpus := r.CPUs
		if cpus == "" {
			cpus = r.Bind
		}
		rows = append(rows, []cell{{fmt.Sprint(r.Rank), ""}, {r.Host, ""}, {fmt.Sprintf("GPU%d", r.GPU), ""}, {numa, ""}, {cpus, ""}, {strings.Join(nics, ", "), ""}})
	}
	s.table(b, rows, "  ")
	b.WriteString(s.paint(colDim, p.Rule) + "\n")
}
