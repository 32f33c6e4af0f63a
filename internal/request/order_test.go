package request

import (
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/topology"
)

func devicesNamed(uuids string) []cuda.Device {
	var list []cuda.Device
	for i, u := range strings.Fields(uuids) {
		list = append(list, cuda.Device{Ordinal: i, UUID: u})
	}
	return list
}

func names(devices []cuda.Device) string {
	var list []string
	for _, d := range devices {
		list = append(list, d.UUID)
	}
	return strings.Join(list, " ")
}

func TestRanksTakeGPUsInTheOrderOfTheirSlots(t *testing.T) {
	// Four GPUs, joined in pairs across the order of their numbers: 0 with 2, 1 with 3; NUMA node 0 has 1 and 3.
	n := &topology.Node{Tree: topology.TreeNone, Details: topology.Details{NVLinks: true}}
	for i, g := range []struct {
		numa int
		peer string
	}{{1, "0000:30:00.0"}, {0, "0000:40:00.0"}, {1, "0000:10:00.0"}, {0, "0000:20:00.0"}} {
		numa := g.numa
		n.GPUs = append(n.GPUs, topology.GPU{
			Index: i, Dev: i, CUDA: i, PCI: -1, UUID: "GPU-" + string(rune('a'+i)), BDF: "0000:" + string(rune('1'+i)) + "0:00.0", NUMA: &numa,
			Links: []topology.NVLink{{Target: g.peer, Peer: topology.PeerGPU, Count: 18}},
		})
	}
	for given, want := range map[string]string{
		"GPU-a GPU-b GPU-c GPU-d":   "GPU-b GPU-d GPU-a GPU-c",
		"GPU-d GPU-c GPU-b GPU-a":   "GPU-b GPU-d GPU-a GPU-c",
		"GPU-c GPU-b GPU-d":         "GPU-b GPU-d GPU-c",
		"GPU-x GPU-a GPU-b GPU-y":   "GPU-b GPU-a GPU-x GPU-y",
		"GPU-host-one GPU-host-two": "GPU-host-one GPU-host-two",
	} {
		if got := names(inOrder(devicesNamed(given), n)); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
	}
	if got := names(inOrder(devicesNamed("GPU-b GPU-a"), &topology.Node{})); got != "GPU-b GPU-a" {
		t.Errorf("a host that cannot tell: %s", got)
	}
	if got := names(bySlot(t.Context(), devicesNamed("GPU-b GPU-a"))); got != "GPU-b GPU-a" {
		t.Errorf("here: %s", got)
	}
}
