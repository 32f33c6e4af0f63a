package request

import (
	"context"
	"slices"

	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/topology"
)

// bySlot is a host's devices in the order in which ranks take GPUs: NVLink islands first, then NUMA nodes and PCI
// addresses, as 'mkrun topo --ranks' shows it. So the i-th ranks of all nodes are on one rail, and pairs that are joined
// stand next to each other, however CUDA numbers them. Where the host cannot tell, CUDA's order stays.
func bySlot(ctx context.Context, devices []cuda.Device) []cuda.Device {
	if len(devices) < 2 {
		return devices
	}
	node, err := topology.Live(ctx, topology.LiveOptions{})
	if err != nil {
		return devices
	}
	return inOrder(devices, node)
}

func inOrder(devices []cuda.Device, node *topology.Node) []cuda.Device {
	places, err := topology.NewEval(node).LocalPlaces(len(devices), "")
	if err != nil {
		return devices
	}
	at := map[string]int{}
	for i, p := range places {
		if _, known := at[p.Device]; !known {
			at[p.Device] = i
		}
	}
	position := func(d cuda.Device) int {
		if i, known := at[d.UUID]; known {
			return i
		}
		return len(places) // what the host does not know of keeps its order, behind the others
	}
	ordered := slices.Clone(devices)
	slices.SortStableFunc(ordered, func(a, b cuda.Device) int { return position(a) - position(b) })
	return ordered
}
