package topology

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Measured are the figures of one node's links as they were found, not as they are known to be. Bandwidths are one way,
// in GB/s (10^9 bytes); times in microseconds; 0 is what could not be measured.
type Measured struct {
	Paths []MeasuredPath `json:"paths"`
	Hosts []MeasuredHost `json:"hosts"`
	Fans  []MeasuredFan  `json:"fans"` // of all GPUs together

	FanProblem string `json:"fan_problem"` // why they were not measured, "" if they were
}

// MeasuredPath is from the memory of one GPU to that of another, by the node's indices.
type MeasuredPath struct {
	From       int     `json:"from"`
	To         int     `json:"to"`
	Direct     bool    `json:"direct"`    // kernels reach the memory; else the driver copies over the host
	CopyGBs    float64 `json:"copy_gbs"`  // copy engine, this direction alone
	BothGBs    float64 `json:"both_gbs"`  // this direction's share while both are busy
	StoreGBs   float64 `json:"store_gbs"` // a kernel that stores
	LoadUS     float64 `json:"load_us"`   // one load of a word that the other holds
	SignalUS   float64 `json:"signal_us"` // from a store until the other's kernel sees it
	Words      uint64  `json:"words"`     // of 8 bytes, checked in each of the transfers below
	WrongCopy  uint64  `json:"wrong_copy"`
	WrongStore uint64  `json:"wrong_store"`
	WrongLoad  uint64  `json:"wrong_load"`
	Problem    string  `json:"problem"` // why it was not measured, "" if it was
}

// MeasuredHost is between a GPU and pinned memory of the NUMA node near it.
type MeasuredHost struct {
	GPU             int     `json:"gpu"`
	ToDeviceGBs     float64 `json:"to_device_gbs"`
	ToHostGBs       float64 `json:"to_host_gbs"`
	BothToDeviceGBs float64 `json:"both_to_device_gbs"`
	BothToHostGBs   float64 `json:"both_to_host_gbs"`
	SignalUS        float64 `json:"signal_us"` // GPU to CPU and back, the whole round trip
	Words           uint64  `json:"words"`
	WrongToDevice   uint64  `json:"wrong_to_device"`
	WrongToHost     uint64  `json:"wrong_to_host"`
	Problem         string  `json:"problem"`
}

// wrong is the number of words that did not arrive as they were sent.
func (p *MeasuredPath) wrong() uint64 { return p.WrongCopy + p.WrongStore + p.WrongLoad }
func (h *MeasuredHost) wrong() uint64 { return h.WrongToDevice + h.WrongToHost }

// Meter measures GPUs, which it numbers as CUDA shows them to this process.
type Meter interface {
	UUIDs() ([]string, error)               // by number
	Pair(a, b int) ([2]MeasuredPath, error) // from a to b, and back; From and To are the caller's to fill in
	HostLink(gpu int) (MeasuredHost, error) // with memory near the calling thread; GPU is the caller's to fill in

	// FanOut fills in the figures of cases: the first of the GPUs push, each to those that follow it.
	FanOut(gpus []int, cases []MeasuredFan) ([]MeasuredFan, error)
}

// Measure measures every GPU's host link, every pair of GPUs that this process may use, one after the other, and all of them
// at once, and keeps the figures in the node. A link that cannot be measured keeps the reason; an error is only returned if none could
// be tried, or when ctx ends.
func (n *Node) Measure(ctx context.Context, m Meter) error {
	uuids, err := m.UUIDs()
	if err != nil {
		return fmt.Errorf("measuring %s: %w", n.Host, err)
	}
	var at []int // position in n.GPUs by CUDA's number; -1: a GPU instance, or unknown
	for _, uuid := range uuids {
		at = append(at, slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == uuid && uuid != "" }))
	}
	found := &Measured{Paths: []MeasuredPath{}, Hosts: []MeasuredHost{}, Fans: []MeasuredFan{}}
	var known []int // CUDA's numbers of GPUs of this node
	for cuda, g := range at {
		if g < 0 {
			n.note(uuids[cuda], "is not measured: it is no whole GPU of this node")
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		known = append(known, cuda)
		found.Hosts = append(found.Hosts, n.measureHost(m, cuda, &n.GPUs[g]))
	}
	if len(found.Hosts) == 0 {
		return fmt.Errorf("measuring %s: CUDA shows no GPU of it", n.Host)
	}
	for a := range at {
		for b := a + 1; b < len(at); b++ {
			if at[a] < 0 || at[b] < 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			paths, err := m.Pair(a, b)
			for k, way := range [2][2]int{{a, b}, {b, a}} {
				paths[k].From, paths[k].To = n.GPUs[at[way[0]]].Index, n.GPUs[at[way[1]]].Index
				if err != nil {
					paths[k].Problem = err.Error()
				}
			}
			found.Paths = append(found.Paths, paths[:]...)
		}
	}
	found.measureFans(m, known)
	slices.SortFunc(found.Hosts, func(a, b MeasuredHost) int { return a.GPU - b.GPU })
	slices.SortFunc(found.Paths, func(a, b MeasuredPath) int {
		if a.From != b.From {
			return a.From - b.From
		}
		return a.To - b.To
	})
	n.Measured = found
	return nil
}

// measureHost measures from a CPU that is near the GPU, so that the pinned memory is on its NUMA node.
func (n *Node) measureHost(m Meter, cuda int, g *GPU) MeasuredHost {
	back, err := moveNear(g)
	if err != nil {
		n.note(fmt.Sprintf("GPU%d", g.Index), "its host link was measured from any CPU: %v", err)
	}
	h, err := m.HostLink(cuda)
	if err != nil {
		h.Problem = err.Error()
	}
	back()
	h.GPU = g.Index
	return h
}

// moveNear binds the calling goroutine's thread to the CPUs near a GPU until back is called.
func moveNear(g *GPU) (back func(), err error) {
	nothing := func() {}
	near, err := ParseCPUList(g.CPUs)
	if err != nil || len(near) == 0 {
		return nothing, errors.New("no CPUs are known to be near")
	}
	var before, want, both unix.CPUSet
	runtime.LockOSThread()
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return nothing, fmt.Errorf("asking for the CPUs of this thread: %w", err)
	}
	for _, c := range near {
		want.Set(c)
	}
	for c := range len(before) * 64 {
		if before.IsSet(c) && want.IsSet(c) {
			both.Set(c)
		}
	}
	if both.Count() == 0 {
		runtime.UnlockOSThread()
		return nothing, fmt.Errorf("none of the CPUs near it (%s) may be used", g.CPUs)
	}
	if err := unix.SchedSetaffinity(0, &both); err != nil {
		runtime.UnlockOSThread()
		return nothing, fmt.Errorf("moving near it: %w", err)
	}
	return func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			return // the thread stays bound, and locked: it ends with its goroutine
		}
		runtime.UnlockOSThread()
	}, nil
}
