package request

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/operator"
)

// Machine says in a few words what the ranks run on: how many GPUs of which kind, or the cores of this host, and what was said
// about the network between nodes.
func (out *Resolved) Machine() string {
	text := out.processors()
	if link := linkText(out.Run.Net); link != "" && out.Run.World.Nodes() > 1 {
		text += ", " + link
	}
	return text
}

// linkText are the flags that say what was asked of the network, but for what carries it; "" if nothing was.
func linkText(n engine.Net) string {
	var words []string
	for _, w := range []struct {
		flag  string
		value any
	}{
		{"devices", n.Devices}, {"provider", n.Provider}, {"qps", n.RDMA.QueuePairs}, {"mtu", n.RDMA.MTU},
		{"traffic-class", n.RDMA.TrafficClass}, {"service-level", n.RDMA.ServiceLevel}, {"dead-peer", n.RDMA.DeadPeer},
		{"retries", n.RDMA.Retries}, {"rnr-retries", n.RDMA.RNRRetries}, {"relaxed", n.RDMA.Relaxed}, {"bandwidth", n.BandwidthGBs},
		{"latency", n.Latency}, {"reorder", n.Reorder}, {"jitter", n.Jitter}, {"drop-after", n.DropAfter},
	} {
		switch {
		case w.value == true:
			words = append(words, "--net-"+w.flag)
		case !reflect.ValueOf(w.value).IsZero():
			words = append(words, fmt.Sprintf("--net-%s %v", w.flag, w.value))
		}
	}
	if n.GID != 0 {
		words = append(words, fmt.Sprintf("--net-gid %d", n.GID-1))
	}
	if n.EmuNICs > 1 {
		words = append(words, fmt.Sprintf("%d emulated NICs", n.EmuNICs))
	}
	return strings.Join(words, " ")
}

func (out *Resolved) processors() string {
	if out.Engine != operator.EngineCPU {
		return out.gpus()
	}
	text := fmt.Sprintf("%d cores", runtime.NumCPU())
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return text
	}
	for line := range strings.Lines(string(data)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return text + ", " + strings.TrimSpace(value)
		}
	}
	return text
}

// gpus counts the GPUs of the ranks by their names.
func (out *Resolved) gpus() string {
	var names []string
	count := make(map[string]int)
	seen := make(map[string]bool)
	for rank, s := range out.chosen.seats {
		at := s.Name
		if out.chosen.library == nil { // each host has its own of that name
			node, _ := out.Run.World.Place(rank)
			at = fmt.Sprint(node, " ", s.Name)
		}
		if seen[at] {
			continue
		}
		seen[at] = true
		name := "GPU of another host"
		if s.Device != nil {
			name = s.Device.Name
		}
		if count[name]++; count[name] == 1 {
			names = append(names, name)
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%d x %s", count[name], name)
	}
	return strings.Join(names, " + ")
}

// SMs is the number of SMs of the smallest GPU; 0 if that is not known here.
func (out *Resolved) SMs() int {
	least := 0
	for _, s := range out.chosen.seats {
		if s.Device != nil && (least == 0 || s.Device.SMs < least) {
			least = s.Device.SMs
		}
	}
	return least
}
