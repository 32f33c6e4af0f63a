package topology

import "fmt"

// links counts, for each pair of GPUs, the NVLinks between them as NVML does: those that end at the
// other, or, over switches, the fewer of the two GPUs' links to switches. xGMI counts alike.
func (e *Eval) links() [][]int {
	gpus := e.Node.GPUs
	nv := make([][]int, len(gpus))
	at := map[string]int{}
	for i, g := range gpus {
		nv[i] = make([]int, len(gpus))
		if g.BDF != "" {
			at[g.BDF] = i
		} else {
			at[fmt.Sprintf("GPU%d", g.Index)] = i
		}
	}
	for i, g := range gpus {
		for _, l := range g.Links {
			if j, ok := at[l.Target]; ok && l.Peer == PeerGPU && j != i {
				nv[i][j] += l.Count
			}
		}
	}
	for i := range gpus {
		for j := range gpus {
			if i == j {
				continue
			}
			if via := min(switchLinks(&gpus[i]), switchLinks(&gpus[j])); via > 0 && nv[i][j] == 0 && sameFabric(&gpus[i], &gpus[j]) {
				nv[i][j] = via
			}
		}
	}
	return nv
}

// switchLinks are a GPU's links to switches. A link of which only the existence is known ends at a
// switch too: drivers hide the switch of newer boards.
func switchLinks(g *GPU) int {
	sum := 0
	for _, l := range g.Links {
		if l.Peer == PeerSwitch || l.Peer == PeerUnknown && !l.XGMI {
			sum += l.Count
		}
	}
	return sum
}

// sameFabric says whether two GPUs behind switches reach each other: a GPU that its fabric manager
// has not admitted has active links, but no peers.
func sameFabric(a, b *GPU) bool {
	if a.Fabric == nil || b.Fabric == nil {
		return true
	}
	in := func(f *Fabric) bool {
		return f.State == "" || f.State == "not-supported" || f.State == "completed" && f.ok()
	}
	return in(a.Fabric) && in(b.Fabric) && a.Fabric.Cluster == b.Fabric.Cluster && a.Fabric.Clique == b.Fabric.Clique
}

func (f *Fabric) ok() bool { return f.Status == "" || f.Status == "success" }

// NVLinks is the number of active links of a GPU to any peer, and whether the source tells it.
func (e *Eval) NVLinks(gpu int) (int, bool) {
	g := &e.Node.GPUs[gpu]
	sum, xgmi := 0, false
	for _, l := range g.Links {
		if l.XGMI {
			xgmi = true
			continue
		}
		sum += l.Count
	}
	return sum, e.Node.Details.NVLinks && !(xgmi && sum == 0) && !(g.Hidden && len(g.Links) == 0)
}

// GPULevel is the distance between two GPUs in nvidia-smi's words, and why.
func (e *Eval) GPULevel(a, b int) (Level, string) {
	if a == b {
		return LevelSelf, "the same GPU"
	}
	ga, gb := &e.Node.GPUs[a], &e.Node.GPUs[b]
	if n := e.nv[a][b]; n > 0 && !e.xgmi(a) {
		if switchLinks(ga) > 0 {
			return NVLevel(n), fmt.Sprintf("%d NVLinks over switches", n)
		}
		return NVLevel(n), fmt.Sprintf("%d NVLinks, direct", n)
	}
	if m := e.Node.Matrix; m != nil {
		i, ok := e.cells[fmt.Sprintf("GPU%d", ga.Index)]
		j, ok2 := e.cells[fmt.Sprintf("GPU%d", gb.Index)]
		if ok && ok2 && m.Level[i][j] != "" {
			return Level(m.Level[i][j]), "as the matrix says"
		}
		return LevelUnknown, "the matrix has no such cell"
	}
	if ga.PCI < 0 || gb.PCI < 0 {
		return LevelUnknown, "no PCI tree is known"
	}
	return e.smiPCI(ga.PCI, gb.PCI)
}

func (e *Eval) xgmi(gpu int) bool {
	for _, l := range e.Node.GPUs[gpu].Links {
		if l.XGMI {
			return true
		}
	}
	return false
}

// nvlinkPlanGBs is what NCCL plans with per link, one way.
func nvlinkPlanGBs(g *GPU) float64 {
	switch sm := g.SM; {
	case sm >= 100:
		return 40.1
	case sm >= 90:
		return 20.6
	case sm == 86:
		return 12
	case sm == 60 || sm == 61:
		return 18
	}
	return 20
}

// NVLinkGBs is what one link carries one way at best.
func (e *Eval) NVLinkGBs(gpu int) float64 {
	g := &e.Node.GPUs[gpu]
	for _, l := range g.Links {
		if l.GBs > 0 {
			return l.GBs
		}
	}
	switch {
	case g.SM >= 100:
		return 50
	case g.SM == 60:
		return 20
	case g.Device > 0:
		return float64(nvlinkMBs(g)) / 1000
	}
	return 25
}

// GPUPath is the distance between two GPUs in NCCL's words, with the bandwidth NCCL plans with.
func (e *Eval) GPUPath(a, b int) (Path, float64) {
	if a == b {
		return PathLOC, 5000
	}
	if n := e.nv[a][b]; n > 0 {
		return PathNVL, float64(n) * nvlinkPlanGBs(&e.Node.GPUs[a])
	}
	path, bw := PathDIS, 0.0
	if l, _ := e.GPULevel(a, b); e.Node.Matrix != nil {
		path = pathOf(l)
	} else if pa, pb := e.Node.GPUs[a].PCI, e.Node.GPUs[b].PCI; pa >= 0 && pb >= 0 {
		path, bw, _ = e.ncclPCI(pa, pb)
	}
	// Two hops of NVLink over another GPU are better than PCI.
	for m := range e.Node.GPUs {
		if n := min(e.nv[a][m], e.nv[m][b]); n > 0 && path.rank() > PathNVB.rank() {
			return PathNVB, float64(n) * nvlinkPlanGBs(&e.Node.GPUs[a])
		}
	}
	return path, bw
}
