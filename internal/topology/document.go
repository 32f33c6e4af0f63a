package topology

import (
	"encoding/json"
	"io"
	"slices"
)

// Schema names the layout of Document. Keys are only ever added under the same name.
const Schema = "mkrun.topo/1"

// Document is what `mkrun topo --json` writes and `--from` reads: for every node what was read about
// it and what follows from that. On reading, only the former is taken.
type Document struct {
	Schema   string    `json:"schema"`
	Nodes    []NodeDoc `json:"nodes"`
	Rails    []Rail    `json:"rails"`     // over all nodes, matched by position
	Placing  *Placing  `json:"placement"` // of the asked number of ranks; null if none was asked for
	Findings []Finding `json:"findings"`  // of the health check
	Healthy  bool      `json:"healthy"`
}

// NodeDoc is a node with its answers.
type NodeDoc struct {
	Node
	GPUs     []GPUDoc `json:"gpus"`
	NICs     []NICDoc `json:"nics"`
	CPUNodes int      `json:"cpu_nodes"` // NUMA nodes that have CPUs
	Islands  [][]int  `json:"islands"`   // GPUs joined by NVLink, by index
}

// GPUDoc is a GPU with its answers.
type GPUDoc struct {
	GPU
	NVLinks *int        `json:"nvlinks"` // active links; null if the source does not tell
	Peers   []PeerDoc   `json:"peers"`
	Nearest *NearestDoc `json:"nearest"` // null if the source tells of no NIC
	Use     *UseDoc     `json:"use"`
	NCCL    []string    `json:"nccl_use"` // NICs that NCCL takes by its default policy
}

// PeerDoc is the way to another GPU of the node. GBs is an estimate of what one direction carries.
type PeerDoc struct {
	GPU   int     `json:"gpu"`
	Level Level   `json:"level"`
	NCCL  Path    `json:"nccl"`
	GBs   float64 `json:"gbs"`
	Route string  `json:"route"` // nvlink, pcie, host
}

// NearestDoc lists all NICs at the best distance. A level that the source cannot tell is null.
type NearestDoc struct {
	SMI  *Level   `json:"smi"`
	NCCL *Path    `json:"nccl"`
	NICs []NICRef `json:"nics"`
}

// NICRef names a NIC.
type NICRef struct {
	Name string `json:"name"`
	BDF  string `json:"bdf"`
}

// UseDoc says which NICs a GPU takes, and by which rule.
type UseDoc struct {
	NICs  []NICRef `json:"nics"`
	Rule  string   `json:"rule"`
	Relay *int     `json:"relay"` // index of the GPU in between; null if direct
	GBs   float64  `json:"gbs"`   // estimate, one way, all of them together; 0 if unknown
}

// NICDoc is a NIC with its answers.
type NICDoc struct {
	NIC
	Role string `json:"role"`
	Why  string `json:"why"`
	Rate int    `json:"rate"` // Mb/s of its active ports together; 0 if unknown
	GPUs []int  `json:"gpus"` // that use it, by index
}

// NewDocument answers for nodes. ranks is how many are to be placed, 0 for none.
func NewDocument(nodes []*Node, ranks int) (*Document, error) {
	evals := make([]*Eval, len(nodes))
	for i, n := range nodes {
		evals[i] = NewEval(n)
	}
	return DocumentOf(evals, ranks)
}

// DocumentOf is NewDocument for nodes whose answers were prepared already.
func DocumentOf(evals []*Eval, ranks int) (*Document, error) {
	d := &Document{Schema: Schema, Nodes: []NodeDoc{}, Rails: []Rail{}, Findings: []Finding{}, Healthy: true}
	for _, e := range evals {
		d.Nodes = append(d.Nodes, e.document())
	}
	d.Rails = Rails(evals)
	if ranks > 0 {
		p, err := Place(evals, ranks)
		if err != nil {
			return nil, err
		}
		d.Placing = p
	}
	return d, nil
}

func (e *Eval) document() NodeDoc {
	n := e.Node
	doc := NodeDoc{Node: *n, GPUs: []GPUDoc{}, NICs: []NICDoc{}, Islands: e.Islands()}
	doc.Notes = orEmpty(n.Notes)
	doc.NUMA, doc.PCI, doc.NVSwitches = orEmpty(n.NUMA), orEmpty(n.PCI), orEmpty(n.NVSwitches)
	for _, m := range n.NUMA {
		if m.HasCPU {
			doc.CPUNodes++
		}
	}
	uses := e.Uses()
	for i := range n.GPUs {
		doc.GPUs = append(doc.GPUs, e.gpuDocument(i, uses[i]))
	}
	for i := range n.NICs {
		c := NICDoc{NIC: n.NICs[i], Role: e.roles[i].Role, Why: e.roles[i].Why, Rate: n.NICs[i].rate(), GPUs: []int{}}
		for g := range uses {
			if slices.Contains(uses[g].NICs, i) {
				c.GPUs = append(c.GPUs, n.GPUs[g].Index)
			}
		}
		doc.NICs = append(doc.NICs, c)
	}
	return doc
}

func (e *Eval) gpuDocument(i int, use Use) GPUDoc {
	n := e.Node
	g := GPUDoc{GPU: n.GPUs[i], Peers: []PeerDoc{}, NCCL: []string{}}
	g.Links, g.MIG = orEmpty(g.Links), orEmpty(g.MIG)
	if links, ok := e.NVLinks(i); ok {
		g.NVLinks = &links
	}
	for j := range n.GPUs {
		if j == i {
			continue
		}
		level, _ := e.GPULevel(i, j)
		path, _ := e.GPUPath(i, j)
		gbs, route := e.PeerGBs(i, j)
		g.Peers = append(g.Peers, PeerDoc{GPU: n.GPUs[j].Index, Level: level, NCCL: path, GBs: gbs, Route: route})
	}
	if !n.Details.NICs {
		return g
	}
	near := e.Nearest(i)
	g.Nearest = &NearestDoc{NICs: e.refs(near.NICs)}
	if len(near.NICs) > 0 {
		if near.Level != LevelUnknown {
			g.Nearest.SMI = &near.Level
		}
		g.Nearest.NCCL = &near.Path
	}
	g.Use = &UseDoc{NICs: e.refs(use.NICs), Rule: use.Rule, GBs: e.UseGBs(i, use)}
	if use.Relay >= 0 {
		g.Use.Relay = intp(n.GPUs[use.Relay].Index)
	}
	for _, c := range e.NCCLUse(i) {
		g.NCCL = append(g.NCCL, n.NICs[c].Name)
	}
	return g
}

func (e *Eval) refs(nics []int) []NICRef {
	refs := []NICRef{}
	for _, i := range nics {
		refs = append(refs, NICRef{e.Node.NICs[i].Name, e.Node.NICs[i].BDF})
	}
	return refs
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// Write writes the document as indented JSON.
func (d *Document) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(d)
}
