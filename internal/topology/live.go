package topology

import (
	"context"
	"os"
	"slices"
	"strings"
)

// LiveOptions say how to look at this machine.
type LiveOptions struct {
	Roots  Roots
	Vendor string // topology file of the vendor of a virtual machine, "" for the usual place if there is one
	NoNVML bool   // do not ask the driver library: the roots are not this machine's
}

// settingsThatDecide are the environment variables that override what is discovered.
var settingsThatDecide = []string{"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL", "NCCL_CROSS_NIC", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}

// topologyd is where NVIDIA's daemon leaves the topology of a virtual machine; NCCL reads it too.
const topologyd = "/var/run/nvidia-topologyd/virtualTopology.xml"

// Live describes this machine. It reads the environment, but never changes it.
func Live(ctx context.Context, o LiveOptions) (*Node, error) {
	n, _, err := live(ctx, osFiles{o.Roots}, o)
	return n, err
}

// captured is all that discovery learnt besides files; a snapshot keeps it.
type captured struct {
	Schema string            `json:"schema"`
	Env    map[string]string `json:"env"`
	NVML   nvmlState         `json:"nvml"`
}

func live(ctx context.Context, f files, o LiveOptions) (*Node, captured, error) {
	c := captured{Schema: snapshotSchema, Env: settings(f)}
	if o.NoNVML {
		c.NVML.Problem = "not asked"
	} else {
		c.NVML = askNVML()
	}
	if err := ctx.Err(); err != nil {
		return nil, c, err
	}
	n := assemble(f, c)
	vendor := o.Vendor
	if vendor == "" && n.Virtual {
		if _, err := os.Stat(topologyd); err == nil {
			vendor = topologyd
		}
	}
	if vendor != "" {
		nodes, err := Load(vendor)
		if err != nil {
			return nil, c, err
		}
		n = Merge(n, nodes[0], vendor)
	}
	return n, c, nil
}

// settings are the variables that decide, from the environment and from NCCL's configuration file.
func settings(f files) map[string]string {
	env := map[string]string{}
	conf, err := f.read("/etc/nccl.conf")
	if err == nil {
		for line := range strings.Lines(conf) {
			k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
			if ok && !strings.HasPrefix(k, "#") {
				for _, known := range settingsThatDecide {
					if k == known {
						env[k] = v
					}
				}
			}
		}
	}
	for _, k := range settingsThatDecide {
		if v, ok := os.LookupEnv(k); ok {
			env[k] = v
		}
	}
	return env
}

// assemble makes a node from files and from what else was learnt.
func assemble(f files, c captured) *Node {
	n := readSysfs(f)
	c.NVML.merge(n)
	slices.SortStableFunc(n.GPUs, func(a, b GPU) int { return a.Index - b.Index })
	n.System.Env = map[string]string{}
	for k, v := range c.Env {
		if k != "CUDA_VISIBLE_DEVICES" {
			n.System.Env[k] = v
		}
	}
	if v, set := c.Env["CUDA_VISIBLE_DEVICES"]; set {
		n.System.Visible = v
		n.applyVisible(v)
	} else {
		cuda := 0
		for i := range n.GPUs {
			if !n.GPUs[i].Hidden && n.GPUs[i].Prov.Of("*") == FromNVML {
				n.GPUs[i].CUDA = cuda
				cuda++
			}
		}
	}
	if n.Host == "" {
		n.Host = "node0"
	}
	n.settle()
	return n
}

// applyVisible numbers GPUs as CUDA does and hides the others.
func (n *Node) applyVisible(v string) {
	order, problem := ResolveVisible(v, n.GPUs)
	if problem != "" {
		n.note("CUDA_VISIBLE_DEVICES", "%s", problem)
	}
	for i := range n.GPUs {
		if n.GPUs[i].Prov.Of("*") == FromNVML {
			n.GPUs[i].Hidden, n.GPUs[i].CUDA = true, -1
		}
	}
	for cuda, i := range order {
		n.GPUs[i].Hidden = false
		if n.GPUs[i].CUDA < 0 {
			n.GPUs[i].CUDA = cuda
		}
	}
}
