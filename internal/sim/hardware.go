package sim

import (
	"fmt"
	"strings"

	"github.com/mkrun/mkrun/internal/plan"
)

// Hardware describes a cluster of like GPUs: what a rank computes and moves, and what each step costs besides.
// All of it is per rank; rates of links are per direction.
type Hardware struct {
	Name string

	SMs          int     // one CTA each
	MatrixTFLOPS float64 // of all SMs together, as achieved by a good matrix product
	TileM, TileN int64   // what one CTA computes at once; what is left over at an edge costs as much
	TileCost     Time    // of filling and draining the pipeline, for each tile

	LinkGBs   float64 // within the node, per rank and direction
	NICGBs    float64 // between nodes, per rank and direction
	MemoryGBs float64

	CopyWorkerGBs   float64 // what one CTA stores into a peer's memory
	ReduceWorkerGBs float64 // what one CTA reads and adds
	// CopySlowdown is how much longer a tile takes whose rank moves bytes through SMs meanwhile.
	CopySlowdown float64

	Launch    Time // from the call to the first CTA at work
	TaskCost  Time // claiming a part of a task, looking at its flags and raising others
	SendCost  Time // from a send CTA's command to the first byte on the wire
	LocalFlag Time // until a flag is seen by another CTA of the same rank
	PeerFlag  Time // ... by another rank of the node
	NICFlag   Time // ... by a rank of another node

	// Workers is the split of the SMs for roles that have tasks; 0 stands for all that the others leave (compute) or 1.
	Workers [plan.NumRoles]int
	// Join says that CTAs whose queue is empty go over to the compute queue.
	Join bool
}

// hardware is the table of named descriptions. Sections are those of "Fused Hopper kernels: engineering reference".
var hardware = []Hardware{{
	Name:         "h200",
	SMs:          132,               // H200 SXM
	MatrixTFLOPS: 760,               // 3.3: P; 10.4: 763-840 for large bf16 products
	TileM:        128,               // 1.3: recommended tile
	TileN:        256,               // 1.3
	TileCost:     1500 * Nanosecond, // fitted to 10.4: 8192x8192 with K = 1024 (618 TFLOP/s) and 2048 (703)
	LinkGBs:      350,               // 3.3: V; 10.1: 346-366 both ways at once
	NICGBs:       48,                // 3.3: R; 3.2: 46-48 of 50
	MemoryGBs:    4000,              // 3.3: H_b

	CopyWorkerGBs:   45,   // 10.1: plain 16-byte stores, 1 CTA (8 CTAs reach 353)
	ReduceWorkerGBs: 51,   // 10.1: reduce-add, 1 CTA
	CopySlowdown:    1.15, // 10.7: 10-20 % while it lasts

	Launch:    4 * Microsecond,   // 1.2: programmatic launch hides 2-4 us of it
	TaskCost:  500 * Nanosecond,  // 2.2: half of a flag's way through memory; no measurement of its own
	SendCost:  3050 * Nanosecond, // 10.2: GPU-CPU-GPU through pinned memory
	LocalFlag: 832 * Nanosecond,  // 2.2: flag through memory between SMs
	PeerFlag:  1250 * Nanosecond, // 10.2: half of the 2.5 us round trip over NVLink
	NICFlag:   5 * Microsecond,   // half of the about 10 us round trip of a ConnectX-7

	Workers: [plan.NumRoles]int{plan.RoleIntra: 8, plan.RoleSend: 1, plan.RoleReduce: 8}, // 3.1: 8-12 CTAs fill the links
	Join:    true,                                                                        // communication CTAs go over to the compute queue
}}

// Named returns a description by its name.
func Named(name string) (Hardware, error) {
	var known []string
	for _, h := range hardware {
		if h.Name == name {
			return h, nil
		}
		known = append(known, h.Name)
	}
	return Hardware{}, fmt.Errorf("no hardware is described as %q; known: %s", name, strings.Join(known, ", "))
}

// validate reports a number that would stop or turn back time.
func (h *Hardware) validate() error {
	for _, n := range []struct {
		name  string
		value float64
	}{
		{"SMs", float64(h.SMs)}, {"MatrixTFLOPS", h.MatrixTFLOPS}, {"TileM", float64(h.TileM)}, {"TileN", float64(h.TileN)},
		{"LinkGBs", h.LinkGBs}, {"NICGBs", h.NICGBs}, {"MemoryGBs", h.MemoryGBs},
		{"CopyWorkerGBs", h.CopyWorkerGBs}, {"ReduceWorkerGBs", h.ReduceWorkerGBs},
	} {
		if !(n.value > 0) {
			return fmt.Errorf("hardware %s: %s is %v, want more than 0", h.Name, n.name, n.value)
		}
	}
	if !(h.CopySlowdown >= 1) {
		return fmt.Errorf("hardware %s: CopySlowdown is %v, want at least 1", h.Name, h.CopySlowdown)
	}
	for _, t := range []Time{h.TileCost, h.Launch, h.TaskCost, h.SendCost, h.LocalFlag, h.PeerFlag, h.NICFlag} {
		if t < 0 {
			return fmt.Errorf("hardware %s: a cost is negative", h.Name)
		}
	}
	return nil
}

// split completes the number of workers of each role: 0 stands for the hardware's own. Roles without a task get none.
func (h *Hardware) split(p *plan.Plan, asked [plan.NumRoles]int) (workers [plan.NumRoles]int, err error) {
	var used [plan.NumRoles]bool
	for rank := range p.Ranks {
		for role, queue := range p.Ranks[rank].Queues {
			used[role] = used[role] || len(queue) > 0
		}
	}
	others := 0
	for role := range workers {
		switch {
		case asked[role] < 0:
			return workers, fmt.Errorf("%d workers for role %v", asked[role], plan.Role(role))
		case !used[role]:
			continue
		case asked[role] > 0:
			workers[role] = asked[role]
		case plan.Role(role) != plan.RoleCompute:
			workers[role] = max(1, h.Workers[role])
		}
		if plan.Role(role) != plan.RoleCompute {
			others += workers[role]
		}
	}
	if used[plan.RoleCompute] && workers[plan.RoleCompute] == 0 {
		workers[plan.RoleCompute] = h.SMs - others
	}
	if all := others + workers[plan.RoleCompute]; all > h.SMs || used[plan.RoleCompute] && workers[plan.RoleCompute] < 1 {
		return workers, fmt.Errorf("a split of %d communication workers and %d that compute does not fit the %d SMs of %s",
			others, workers[plan.RoleCompute], h.SMs, h.Name)
	}
	return workers, nil
}
