package topology

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/count"
)

// Use says which NICs a GPU takes, and which rule decided.
type Use struct {
	NICs  []int
	Rule  string
	Relay int // the GPU over which they are reached by NVLink; -1 if directly
	Near  Near
}

// nicKey orders NICs by position: PCI address, else the order of the source.
func (e *Eval) nicOrder(a, b int) int {
	n := e.Node
	if n.NICs[a].PCI >= 0 && n.NICs[b].PCI >= 0 {
		if c := compareBDF(n.NICs[a].BDF, n.NICs[b].BDF); c != 0 {
			return c
		}
	}
	return a - b
}

func (e *Eval) gpuOrder(a, b int) int {
	n := e.Node
	if n.GPUs[a].BDF != "" && n.GPUs[b].BDF != "" {
		if c := compareBDF(n.GPUs[a].BDF, n.GPUs[b].BDF); c != 0 {
			return c
		}
	}
	return n.GPUs[a].Index - n.GPUs[b].Index
}

// compareBDF orders addresses by number: the domain may have any number of digits.
func compareBDF(a, b string) int {
	da, ra, _ := strings.Cut(a, ":")
	db, rb, _ := strings.Cut(b, ":")
	if len(da) != len(db) {
		return len(da) - len(db)
	}
	if c := strings.Compare(da, db); c != 0 {
		return c
	}
	return strings.Compare(ra, rb)
}

// Uses decides for every GPU. GPUs with the same nearest rails form a tie group: both are sorted by
// PCI address, and the i-th of G GPUs takes the rails from i*L/G on, so that all L are used and none
// twice as often as another. A GPU that only reaches rails through a CPU is served over NVLink by a
// peer that has one below its switch.
func (e *Eval) Uses() []Use {
	if e.uses == nil {
		e.uses = e.decide()
	}
	return e.uses
}

func (e *Eval) decide() []Use {
	rail := func(r Role) bool { return r.Role == RoleRail }
	uses := make([]Use, len(e.Node.GPUs))
	groups := map[string][]int{}
	for g := range e.Node.GPUs {
		near := e.nearest(g, rail)
		near.NICs = e.fastest(near.NICs)
		uses[g] = Use{Near: near, Relay: -1}
		key := fmt.Sprint(near.NICs)
		groups[key] = append(groups[key], g)
	}
	for _, gpus := range groups {
		slices.SortFunc(gpus, e.gpuOrder)
		for i, g := range gpus {
			e.share(&uses[g], i, len(gpus))
		}
	}
	e.neighbours(uses)
	for g := range uses {
		e.relay(uses, g)
	}
	return uses
}

// neighbours says which of the rails that a GPU takes are nearer to others: its own is gone, or it never had one.
func (e *Eval) neighbours(uses []Use) {
	owners := e.railOwners(uses, e.bySlot())
	for g := range uses {
		theirs := 0
		for _, c := range uses[g].NICs {
			if !slices.Contains(owners[c], g) {
				theirs++
			}
		}
		switch u := &uses[g]; {
		case theirs == 1 && len(u.NICs) == 1:
			u.Rule += ", which is nearer to another GPU"
		case theirs == 1:
			u.Rule += ", of which 1 is nearer to another GPU"
		case theirs > 1:
			u.Rule += fmt.Sprintf(", of which %d are nearer to other GPUs", theirs)
		}
	}
}

// fastest keeps, among equally near NICs, those with the highest rate.
func (e *Eval) fastest(nics []int) []int {
	best := 0
	for _, c := range nics {
		best = max(best, e.Node.NICs[c].rate())
	}
	var keep []int
	for _, c := range nics {
		if r := e.Node.NICs[c].rate(); r == best || r == 0 {
			keep = append(keep, c)
		}
	}
	return keep
}

// share gives the i-th of n GPUs of a tie group its part of the rails.
func (e *Eval) share(u *Use, i, n int) {
	nics := slices.Clone(u.Near.NICs)
	slices.SortFunc(nics, e.nicOrder)
	l := len(nics)
	switch {
	case l == 0:
		u.Rule = "no rail in this node"
	case l == 1 && n == 1:
		u.NICs, u.Rule = nics, "the only nearest rail"
	case l < n:
		u.NICs = nics[i*l/n : i*l/n+1]
		u.Rule = fmt.Sprintf("%d GPUs share %s: number %d of them by position takes number %d", n, count.Of(l, "rail"), i, i*l/n)
	case n == 1:
		u.NICs, u.Rule = nics, fmt.Sprintf("all %s nearest to it", count.Of(l, "rail"))
	default:
		u.NICs = nics[i*l/n : (i+1)*l/n]
		first, last := i*l/n, (i+1)*l/n-1
		takes := fmt.Sprintf("number %d", first)
		if last > first {
			takes = fmt.Sprintf("numbers %d to %d", first, last)
		}
		u.Rule = fmt.Sprintf("tie of %d rails between %d GPUs: number %d of them by position takes %s", l, n, i, takes)
	}
}

// relay routes a GPU without a rail below its switch over the NVLink peer that has the most links to
// it and a rail below its own.
func (e *Eval) relay(uses []Use, g int) {
	if len(uses[g].NICs) == 0 || e.belowSwitch(uses[g].Near) {
		return
	}
	best, links := -1, 0
	for p := range uses {
		if p != g && e.nv[g][p] > links && e.belowSwitch(uses[p].Near) && uses[p].Relay < 0 && len(uses[p].NICs) > 0 {
			best, links = p, e.nv[g][p]
		}
	}
	if best >= 0 {
		uses[g].Relay = best
		uses[g].NICs = uses[best].NICs
		uses[g].Rule = fmt.Sprintf("its own nearest rail is at %s: over %d NVLinks to GPU %d, which has one at %s", e.nearWord(uses[g].Near), links, e.Node.GPUs[best].Index, e.nearWord(uses[best].Near))
	}
}

func (e *Eval) belowSwitch(n Near) bool {
	return n.Path == PathPIX || n.Path == PathPXB || n.Level == LevelPIX || n.Level == LevelPXB
}

func (e *Eval) nearWord(n Near) string {
	if n.Level == LevelUnknown {
		return string(n.Path)
	}
	return string(n.Level)
}

// NCCLUse is the set of NICs that NCCL would take for a GPU with its default policy: the highest path
// bandwidth first, then the lowest type; ties by the GPU's device number, modulo the GPUs that are
// local to the first of these NICs, bit-reversed if the NICs are a power of two.
func (e *Eval) NCCLUse(gpu int) []int {
	local := e.localNICs(gpu)
	if len(local) == 0 {
		return nil
	}
	gpus := 0
	for g := range e.Node.GPUs {
		if slices.Contains(e.localNICs(g), local[0]) {
			gpus++
		}
	}
	gpus = max(1, gpus)
	l := len(local)
	per := (l + gpus - 1) / gpus
	dev := e.Node.GPUs[gpu].Dev
	start := max(0, dev) % gpus
	if l&(l-1) == 0 && l > 1 {
		start = reverseBits(start%l, l)
	}
	var use []int
	for c := range per {
		use = append(use, local[(start+c%per)%l])
	}
	return use
}

// reverseBits mirrors i within n, a power of two.
func reverseBits(i, n int) int {
	width := bits.Len(uint(n)) - 1
	return int(bits.Reverse64(uint64(i)) >> (64 - width))
}

// localNICs are what NCCL calls a GPU's local NICs. It knows no roles but inactive ports. Every GPU asks for those of all.
func (e *Eval) localNICs(gpu int) []int {
	if e.local == nil {
		e.local = make([][]int, len(e.Node.GPUs))
		for g := range e.local {
			e.local[g] = e.findLocalNICs(g)
		}
	}
	return e.local[gpu]
}

func (e *Eval) findLocalNICs(gpu int) []int {
	var local []int
	bestBW, bestRank := -1.0, 0
	for i := range e.Node.NICs {
		if r := e.roles[i].Role; r == RoleDown || r == RoleEthernet || r == RoleBlocked {
			continue
		}
		path, bw, _ := e.NICPath(gpu, i)
		if path == PathDIS {
			continue
		}
		rank := path.rank()
		switch {
		case bw > bestBW || bw == bestBW && rank < bestRank:
			bestBW, bestRank, local = bw, rank, []int{i}
		case bw == bestBW && rank == bestRank:
			local = append(local, i)
		}
	}
	return local
}
