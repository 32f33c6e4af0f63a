package topology

import (
	"fmt"
	"strings"
)

// Eval answers questions about one node. It does not change the node, and must not be used by
// several goroutines at once.
type Eval struct {
	Node *Node
	// up is NCCL's tree: the switch (upstream port) or root above each record; -1 above roots and for
	// records that are not part of that tree.
	up    []int
	cells map[string]int // column of each name in the matrix
	roles []Role
	reach []gpuReach // of each GPU
	nv    [][]int    // links between each pair of GPUs

	// What was answered already: every view asks the same questions.
	ways  []way
	uses  []Use
	local [][]int
	lines []string
}

// way is what is known of the way between a GPU and a NIC.
type way struct {
	done     bool
	level    Level
	levelWhy string
	path     Path
	gbs      float64
	pathWhy  string
}

// Role is what a NIC is good for.
type Role struct {
	Role string // one of the Role constants
	Why  string
}

// NewEval prepares the answers for one node.
func NewEval(n *Node) *Eval {
	e := &Eval{Node: n, cells: map[string]int{}}
	if n.Matrix != nil {
		for i, c := range n.Matrix.Names {
			e.cells[c] = i
		}
	}
	e.up = n.switchTree()
	e.ways = make([]way, len(n.GPUs)*len(n.NICs))
	e.nv = e.links()
	e.roles = e.findRoles()
	return e
}

// switchTree derives NCCL's tree: one record per switch, root ports left out, Broadcom switches in
// base mode flattened.
func (n *Node) switchTree() []int {
	up := n.switches()
	n.flatten(up)
	return up
}

// switches is the same before the flattening.
func (n *Node) switches() []int {
	up := make([]int, len(n.PCI))
	for i := range n.PCI {
		p := n.PCI[i].Parent
		up[i] = p
		if n.Tree != TreeFull || p < 0 || n.PCI[p].Kind == KindRoot {
			continue
		}
		// The port directly above is a switch's downstream port or a root port: skipped.
		up[i] = n.PCI[p].Parent
		if up[i] < 0 {
			up[i] = p
		}
	}
	return up
}

// broadcomGen is the generation of a Broadcom PEX switch in base mode, as NCCL tells them: level 0
// for the switch that absorbs, 1 for the one below it. 0 is any other bridge.
func broadcomGen(d *Device, level int) int {
	if d.Vendor != vendorBroadcom || d.SubVendor != vendorBroadcom {
		return 0
	}
	switch {
	case d.Device == 0xc010 && d.SubDevice&0xf000 == 0xa000:
		return 4
	case d.Device == 0xc030 && d.SubDevice&0xf000 == level*0x1000:
		return 5
	}
	return 0
}

// flatten merges the sub-switches of a Broadcom switch into it, one level at a time in file order: a
// switch that absorbed others absorbs no more, so cascades stay cascades.
func (n *Node) flatten(up []int) {
	gone := make([]bool, len(n.PCI))
	children := make([][]int, len(n.PCI))
	broadcom := false
	for i, p := range up {
		if p >= 0 {
			children[p] = append(children[p], i)
		}
		broadcom = broadcom || n.PCI[i].Vendor == vendorBroadcom
	}
	if !broadcom {
		return
	}
	for s := range n.PCI {
		gen := broadcomGen(&n.PCI[s], 0)
		if gone[s] || gen == 0 || n.PCI[s].Kind != KindBridge || n.Tree == TreeFull && len(children[s]) == 0 {
			continue
		}
		var kept []int
		for _, sub := range children[s] {
			if n.PCI[sub].Kind != KindBridge || broadcomGen(&n.PCI[sub], 1) != gen {
				kept = append(kept, sub)
				continue
			}
			gone[sub] = true
			for _, c := range children[sub] {
				up[c] = s
				kept = append(kept, c)
			}
			children[sub] = nil
		}
		children[s] = kept
	}
}

// chain is a record's ancestors in a tree, nearest first.
func chain(parent func(int) int, i int) []int {
	var c []int
	for i = parent(i); i >= 0 && len(c) <= maxDepth; i = parent(i) {
		c = append(c, i)
	}
	return c
}

// meet finds the lowest common ancestor and how far it is above each.
func meet(a, b []int) (at, da, db int) {
	for i, x := range a {
		for j, y := range b {
			if x == y {
				return x, i, j
			}
		}
	}
	return -1, 0, 0
}

// numaOf is a record's effective NUMA node, -1 if none is known.
func (e *Eval) numaOf(i int) int {
	if m := e.Node.effectiveNUMA(i); m != nil {
		return *m
	}
	return -1
}

// smiPCI is nvidia-smi's word for the way between two PCI records, and why.
func (e *Eval) smiPCI(a, b int) (Level, string) {
	n := e.Node
	if a == b {
		return LevelSelf, "the same function"
	}
	ca := chain(func(i int) int { return n.PCI[i].Parent }, a)
	cb := chain(func(i int) int { return n.PCI[i].Parent }, b)
	at, da, db := meet(ca, cb)
	switch {
	case at >= 0 && n.PCI[at].Kind == KindBridge:
		most := 1
		if n.Tree == TreeSwitches {
			most = 0 // one record stands for both ports of a switch
		}
		if da <= most && db <= most {
			return LevelPIX, "below one switch, " + shortBDF(n.PCI[at].ID)
		}
		return LevelPXB, fmt.Sprintf("common bridge %s, %d and %d bridges below it", shortBDF(n.PCI[at].ID), da, db)
	case at >= 0 && n.Tree == TreeSwitches:
		if slot(n.PCI[a].ID) == slot(n.PCI[b].ID) {
			return LevelPIX, "functions of one card"
		}
		return LevelUnknown, "one NUMA node; the file does not tell PHB from NODE"
	case at >= 0:
		return LevelPHB, "only the host bridge " + n.PCI[at].ID + " in common"
	}
	na, nb := e.numaOf(a), e.numaOf(b)
	switch {
	case na < 0 || nb < 0:
		return LevelSYS, "other root complexes, and no NUMA node is told"
	case na == nb:
		return LevelNODE, fmt.Sprintf("other root complexes of NUMA node %d", na)
	}
	return LevelSYS, fmt.Sprintf("NUMA nodes %d and %d", na, nb)
}

// ncclPCI is NCCL's word for the way between two PCI records without NVLink, its bandwidth in GB/s as
// NCCL plans with it, and why.
func (e *Eval) ncclPCI(a, b int) (Path, float64, string) {
	n := e.Node
	if a == b {
		return PathLOC, 5000, "the same function"
	}
	up := func(i int) int { return e.up[i] }
	ca, cb := chain(up, a), chain(up, b)
	at, da, db := meet(ca, cb)
	bw := min(e.chainGBs(a, ca), e.chainGBs(b, cb))
	if at >= 0 {
		bw = min(e.chainGBs(a, ca[:da]), e.chainGBs(b, cb[:db]))
		if n.PCI[at].Kind == KindBridge {
			if da == 0 && db == 0 {
				return PathPIX, bw, "below one switch, " + shortBDF(n.PCI[at].ID)
			}
			return PathPXB, bw, fmt.Sprintf("%d switches in a row", da+db+1)
		}
	}
	if x, y := e.joined(ca, cb); x >= 0 {
		return PathPXB, bw, fmt.Sprintf("switches %s and %s are joined by a pcilink", shortBDF(n.PCI[x].ID), shortBDF(n.PCI[y].ID))
	}
	na, nb := e.ncclNUMA(a), e.ncclNUMA(b)
	if na == nb {
		if e.intel(na) {
			bw = min(bw, bw*5/6) // peer traffic over an Intel root costs more
		}
		return PathPHB, bw, fmt.Sprintf("through the CPU of NUMA node %d", na)
	}
	return PathSYS, min(bw, e.cpuGBs(na)), fmt.Sprintf("NUMA nodes %d and %d", na, nb)
}

// joined finds two switches, one in each chain, that a card joins inside.
func (e *Eval) joined(a, b []int) (int, int) {
	for _, x := range a {
		for _, target := range e.Node.PCI[x].Links {
			for _, y := range b {
				if e.Node.PCI[y].ID == target {
					return x, y
				}
			}
		}
	}
	for _, y := range b {
		for _, target := range e.Node.PCI[y].Links {
			for _, x := range a {
				if e.Node.PCI[x].ID == target {
					return x, y
				}
			}
		}
	}
	return -1, -1
}

// ncclNUMA is the NUMA node that NCCL sees: that of the topmost device of the chain, or of the root.
func (e *Eval) ncclNUMA(i int) int {
	n := e.Node
	top := i
	for n.PCI[top].Parent >= 0 && n.PCI[n.PCI[top].Parent].Kind != KindRoot {
		top = n.PCI[top].Parent
	}
	if n.PCI[top].NUMA != nil {
		return *n.PCI[top].NUMA
	}
	if p := n.PCI[top].Parent; p >= 0 && n.PCI[p].NUMA != nil {
		return *n.PCI[p].NUMA
	}
	return -1
}

// chainGBs is the least link on the way up from a record through the given ancestors.
func (e *Eval) chainGBs(i int, ancestors []int) float64 {
	bw := e.Node.linkGBs(i)
	for _, p := range ancestors {
		if e.Node.PCI[p].Kind == KindBridge {
			bw = min(bw, e.Node.linkGBs(p))
		}
	}
	return bw
}

// linkGBs is what NCCL takes for the link above a record: width x rate / 80; what is unknown counts
// as Gen3 and x16. The speed is what the link can: an idle GPU runs slower until it is used.
func (n *Node) linkGBs(i int) float64 {
	d := &n.PCI[i]
	if d.GBs > 0 && d.Speed == 0 {
		return d.GBs * 48 / 63 // as the source's raw figure is to NCCL's
	}
	speed, width := d.Speed, d.Width
	speed = max(speed, d.MaxSpeed)
	if width == 0 {
		width = d.MaxWidth
	}
	if width == 0 {
		width = 16
	}
	rate := 60.0
	if speed > 0 && d.Prov.Of("speed") != FromGuess {
		rate = speed * 7.5
	}
	return float64(width) * rate / 80
}

func (e *Eval) numaRecord(id int) *NUMANode {
	for i := range e.Node.NUMA {
		if e.Node.NUMA[i].ID == id {
			return &e.Node.NUMA[i]
		}
	}
	return nil
}

func (e *Eval) intel(id int) bool {
	m := e.numaRecord(id)
	return m != nil && m.Vendor == "GenuineIntel"
}

// cpuGBs is what NCCL plans with between two sockets.
func (e *Eval) cpuGBs(id int) float64 {
	m := e.numaRecord(id)
	switch {
	case m == nil:
		return 10
	case m.Vendor == "AuthenticAMD":
		return 16
	case m.Vendor == "GenuineIntel":
		switch {
		case m.Model >= 0xcf:
			return 40
		case m.Model >= 0x8f:
			return 22
		case m.Model >= 0x55:
			return 10
		}
		return 6
	case strings.HasPrefix(m.Arch, "ppc"):
		return 32
	case strings.HasPrefix(m.Arch, "aarch") || strings.HasPrefix(m.Arch, "arm"):
		return 6
	}
	return 10
}
