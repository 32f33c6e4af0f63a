package topology

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
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

	Libfabric []Provider             `json:"libfabric"`
	Xids      map[string]map[int]int `json:"xids"` // null: the kernel's log could not be read
	Vendor    *vendorTopology        `json:"vendor"`
	Addrs     map[string][]string    `json:"addresses"` // of network interfaces
}

// vendorTopology is the part of a vendor's topology file that is laid under what the machine shows.
type vendorTopology struct {
	File   string     `json:"file"`
	Origin Origin     `json:"origin"`
	Tree   TreeStyle  `json:"tree"`
	NUMA   []NUMANode `json:"numa"`
	PCI    []Device   `json:"pci"`
	Notes  []Note     `json:"notes"`
}

func readVendor(file string) (*vendorTopology, error) {
	nodes, err := Load(file)
	if err != nil {
		return nil, err
	}
	n := nodes[0]
	return &vendorTopology{file, n.Origin, n.Tree, n.NUMA, n.PCI, n.Notes}, nil
}

func live(ctx context.Context, f files, o LiveOptions) (*Node, captured, error) {
	c := captured{Schema: snapshotSchema, Env: settings(f)}
	if err := o.Roots.check(); err != nil {
		return nil, c, err
	}
	if o.NoNVML {
		c.NVML.Problem = "not asked"
	} else {
		c.ask(ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, c, err
	}
	vendor := o.Vendor
	if _, err := os.Stat(topologyd); vendor == "" && err == nil && !o.NoNVML && readSysfs(f).Virtual {
		vendor = topologyd
	}
	if vendor != "" {
		var err error
		if c.Vendor, err = readVendor(vendor); err != nil {
			return nil, c, err
		}
	}
	return assemble(f, c), c, nil
}

// ask asks all that is no file, at the same time.
func (c *captured) ask(ctx context.Context) {
	var others sync.WaitGroup
	others.Go(func() { c.Libfabric = askLibfabric(ctx) })
	others.Go(func() {
		if log, ok := kernelLog(); ok {
			c.Xids = countXids(log)
		}
	})
	others.Go(func() { c.Addrs = addresses() })
	c.NVML = askNVML()
	others.Wait()
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
	n.System.Libfabric = c.Libfabric
	n.applyAddresses(c.Addrs)
	n.applyXids(c.Xids)
	n.settle()
	if v := c.Vendor; v != nil {
		n = Merge(n, &Node{Origin: v.Origin, Tree: v.Tree, NUMA: v.NUMA, PCI: v.PCI, Notes: v.Notes}, v.File)
	}
	return n
}

// applyVisible numbers GPUs as CUDA does and hides the others. Only what the driver shows can be chosen; where the driver
// does not answer, numbers are those of the PCI order, and UUIDs may not be known.
func (n *Node) applyVisible(v string) {
	var at []int
	var gpus []GPU
	uuids := false
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.Vendor != vendorAMD && !g.Hidden {
			at, gpus = append(at, i), append(gpus, *g)
			uuids = uuids || g.UUID != ""
		}
	}
	if !uuids && (strings.Contains(v, "GPU-") || strings.Contains(v, "MIG-")) {
		n.note("CUDA_VISIBLE_DEVICES", "%q names UUIDs, but the driver library does not tell any: it is not applied", v)
		return
	}
	order, problem := ResolveVisible(v, gpus)
	if problem != "" {
		n.note("CUDA_VISIBLE_DEVICES", "%s", problem)
	}
	for _, i := range at {
		n.GPUs[i].Hidden, n.GPUs[i].CUDA = true, -1
	}
	for cuda, k := range order {
		g := &n.GPUs[at[k]]
		g.Hidden = false
		if g.CUDA < 0 {
			g.CUDA = cuda
		}
	}
}
