package topology

import "fmt"

// Near is the set of NICs nearest to a GPU.
type Near struct {
	Level Level // in nvidia-smi's words; LevelUnknown if the source does not tell
	Path  Path  // in NCCL's words
	NICs  []int // all at that distance, in the node's order; empty if there is none
}

// NICLevel is the distance between a GPU and a NIC in nvidia-smi's words, and why.
func (e *Eval) NICLevel(gpu, nic int) (Level, string) {
	w := e.way(gpu, nic)
	return w.level, w.levelWhy
}

// way finds out about a GPU and a NIC once.
func (e *Eval) way(gpu, nic int) *way {
	w := &e.ways[gpu*len(e.Node.NICs)+nic]
	if !w.done {
		w.level, w.levelWhy = e.nicLevel(gpu, nic)
		w.path, w.gbs, w.pathWhy = e.nicPath(gpu, nic, w.level, w.levelWhy)
		w.done = true
	}
	return w
}

func (e *Eval) nicLevel(gpu, nic int) (Level, string) {
	g, c := &e.Node.GPUs[gpu], &e.Node.NICs[nic]
	if m := e.Node.Matrix; m != nil {
		i, ok := e.cells[fmt.Sprintf("GPU%d", g.Index)]
		j, ok2 := e.cells[c.Name]
		if ok && ok2 && m.Level[i][j] != "" {
			return Level(m.Level[i][j]), "as the matrix says"
		}
		return LevelUnknown, "the matrix has no such cell"
	}
	if g.PCI < 0 || c.PCI < 0 {
		return LevelUnknown, "no PCI tree is known"
	}
	return e.smiPCI(g.PCI, c.PCI)
}

// NICPath is the distance between a GPU and a NIC in NCCL's words, without relays, with the bandwidth
// NCCL plans with in GB/s (0 if unknown), and why.
func (e *Eval) NICPath(gpu, nic int) (Path, float64, string) {
	w := e.way(gpu, nic)
	return w.path, w.gbs, w.pathWhy
}

func (e *Eval) nicPath(gpu, nic int, l Level, why string) (Path, float64, string) {
	g, c := &e.Node.GPUs[gpu], &e.Node.NICs[nic]
	if e.Node.Matrix != nil || g.PCI < 0 || c.PCI < 0 {
		return pathOf(l), float64(c.rate()) / 8000, why
	}
	path, bw, why := e.ncclPCI(g.PCI, c.PCI)
	if r := c.rate(); r > 0 {
		bw = min(bw, float64(r)/8000)
	}
	if path == PathPHB && g.C2C != nil {
		path, why = PathP2C, "over C2C and the CPU's own root"
	}
	return path, bw, why
}

// Nearest are the NICs nearest to a GPU among all that could carry data.
func (e *Eval) Nearest(gpu int) Near { return e.nearest(gpu, Role.candidate) }

// distance orders the NICs of a GPU, and the GPUs of a NIC, in the words that the source can tell: NCCL's for a tree of
// switches, else nvidia-smi's. Less is nearer; told is false if the source does not say.
func (e *Eval) distance(gpu, nic int) (rank int, told bool) {
	if e.Node.Tree == TreeSwitches {
		path, _, _ := e.NICPath(gpu, nic)
		return path.rank(), true
	}
	level, _ := e.NICLevel(gpu, nic)
	return level.rank(), level != LevelUnknown
}

func (e *Eval) nearest(gpu int, want func(Role) bool) Near {
	near := Near{Level: LevelUnknown, Path: PathDIS}
	best := 1 << 30
	for i := range e.Node.NICs {
		if !want(e.roles[i]) {
			continue
		}
		rank, told := e.distance(gpu, i)
		if !told {
			continue
		}
		level, _ := e.NICLevel(gpu, i)
		path, _, _ := e.NICPath(gpu, i)
		switch {
		case rank < best:
			best = rank
			near = Near{Level: level, Path: path, NICs: []int{i}}
		case rank == best:
			near.NICs = append(near.NICs, i)
			if level.rank() < near.Level.rank() {
				near.Level = level
			}
		}
	}
	return near
}
