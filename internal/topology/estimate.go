package topology

import "math"

// PeerGBs estimates what one direction between two GPUs carries, in GB/s, and by which route: nvlink,
// pcie (peer to peer below the CPUs) or host (through a CPU: staged where peer-to-peer is off). 0 is
// unknown.
func (e *Eval) PeerGBs(a, b int) (gbs float64, route string) {
	if n := e.nv[a][b]; n > 0 {
		return round1(float64(n) * e.NVLinkGBs(a)), "nvlink"
	}
	path, bw := e.GPUPath(a, b)
	switch path {
	case PathNVB:
		return round1(bw), "nvlink"
	case PathPIX, PathPXB:
		return round1(bw), "pcie"
	}
	return round1(bw), "host"
}

// UseGBs estimates what the NICs that a GPU uses carry together, one way.
func (e *Eval) UseGBs(gpu int, u Use) float64 {
	from := gpu
	if u.Relay >= 0 {
		from = u.Relay
	}
	sum := 0.0
	for _, c := range u.NICs {
		_, bw, _ := e.NICPath(from, c)
		sum += bw
	}
	if p := e.Node.GPUs[from].PCI; p >= 0 && sum > 0 {
		sum = min(sum, e.Node.linkGBs(p)) // all of them come through the GPU's own link
	}
	return round1(sum)
}

func round1(v float64) float64 { return math.Round(v*10) / 10 }
