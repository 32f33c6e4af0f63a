package topology

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Load reads a description of one or more nodes from a file: NCCL topology XML, hwloc (lstopo) XML,
// the text of
// `nvidia-smi topo -m`, mkrun's own JSON, or a snapshot. The format is recognised
// by content, never by name. Errors are *ImportError.
// The path "-" is the standard input.
func Load(path string) ([]*Node, error) { return new(importer).load(path) }

// importer reads files. Several goroutines may use one, and share what the files have in common.
type importer struct {
	lists pciLists
}

func (im *importer) load(path string) ([]*Node, error) {
	if path == "-" {
		return im.loadFrom("stdin", os.Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			return nil, &ImportError{path, 0, p.Err.Error()}
		}
		return nil, &ImportError{path, 0, err.Error()}
	}
	defer f.Close()
	return im.loadFrom(path, f)
}

func (im *importer) loadFrom(path string, in io.Reader) ([]*Node, error) {
	var data bytes.Buffer
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			data.Grow(int(min(info.Size(), maxInput)) + bytes.MinRead) // read in one piece
		}
	}
	if _, err := data.ReadFrom(io.LimitReader(in, maxInput+1)); err != nil {
		return nil, &ImportError{path, 0, "reading it: " + err.Error()}
	}
	if data.Len() > maxInput {
		return nil, &ImportError{path, 0, fmt.Sprintf("larger than %d MiB: not a topology", maxInput>>20)}
	}
	return im.parse(path, data.Bytes())
}

// LoadAll reads several files, as many at once as there are processors, and returns their nodes in the
// files' order. Nodes of one name are told apart. The first file's error, in that order, is returned.
func LoadAll(files []string) ([]*Node, error) {
	var im importer
	lists := make([][]*Node, len(files))
	errs := make([]error, len(files))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, file := range files {
		group.Go(func() error {
			lists[i], errs[i] = im.load(file)
			return nil
		})
	}
	_ = group.Wait() // errors are kept by file
	var nodes []*Node
	for i, list := range lists {
		if errs[i] != nil {
			return nil, errs[i]
		}
		nodes = append(nodes, list...)
	}
	NameApart(nodes)
	return nodes, nil
}

// NameApart gives nodes of one name a number behind it, so that answers can tell them apart.
func NameApart(nodes []*Node) {
	taken := map[string]bool{}
	for i, n := range nodes {
		name := n.Host
		for k := i; taken[n.Host]; k++ {
			n.Host = fmt.Sprintf("%s#%d", name, k)
		}
		taken[n.Host] = true
	}
}

// Parse is Load for content that was read already; name is used in errors.
func Parse(name string, data []byte) ([]*Node, error) { return new(importer).parse(name, data) }

func (im *importer) parse(name string, data []byte) ([]*Node, error) {
	nodes, err := im.recognise(name, data)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		n.Origin.File = name
		if err := n.sizes(); err != nil {
			return nil, &ImportError{name, 0, err.Error()}
		}
		n.settle()
	}
	return nodes, nil
}

// What one node may have: several times what the largest known machines have, so that a mistake costs no hour.
const (
	maxGPUs    = 256
	maxNICs    = 2048
	maxDevices = 1 << 16
)

// sizes refuses what is no node.
func (n *Node) sizes() error {
	for _, c := range []struct {
		what      string
		have, may int
	}{{"GPUs", len(n.GPUs), maxGPUs}, {"NICs", len(n.NICs), maxNICs}, {"PCI devices", len(n.PCI), maxDevices}} {
		if c.have > c.may {
			return fmt.Errorf("%d %s in one node (%s): at most %d are possible", c.have, c.what, n.Host, c.may)
		}
	}
	return nil
}

// recognise reads content by what it looks like.
func (im *importer) recognise(name string, data []byte) ([]*Node, error) {
	if isGzip(data) {
		return im.unpack(name, data)
	}
	text := bytes.TrimSpace(bytes.TrimPrefix(data, []byte("\ufeff")))
	switch {
	case len(text) == 0:
		return nil, &ImportError{name, 0, "the file is empty"}
	case text[0] == '{':
		return parseJSON(name, data, &im.lists)
	case text[0] == '<':
		return parseXMLTopology(name, data)
	case looksLikeMatrix(string(text)):
		return parseSMI(name, data)
	}
	return nil, &ImportError{name, 1, "neither NCCL XML, hwloc XML, the matrix of `nvidia-smi topo -m` (a head line with GPU0 ...) mkrun's JSON, nor a snapshot"}
}

// xmlRefusals are roots of other XML files that people take for a topology.
var xmlRefusals = map[string]string{
	"graphs":  "a NCCL graph (NCCL_GRAPH_FILE: rings and trees), not a topology",
	"graph":   "a NCCL graph, not a topology",
	"html":    "a web page, not a topology",
	"svg":     "a picture, not a topology; the data behind it is needed",
	"distrib": "an hwloc distribution, not a topology",
}

func parseXMLTopology(name string, data []byte) ([]*Node, error) {
	root, err := parseXML(name, data)
	if err != nil {
		return nil, err
	}
	switch root.name {
	case "system":
		return parseNCCL(name, root)
	case "topology":
		return parseHwloc(name, root)
	}
	what := fmt.Sprintf("the root element is <%s>: ", root.name)
	if why, ok := xmlRefusals[root.name]; ok {
		return nil, &ImportError{name, root.line, what + why}
	}
	return nil, &ImportError{name, root.line, what + "a NCCL topology starts with <system>, an hwloc one with <topology>"}
}

// settle fills in what follows for every source: effective NUMA nodes, CPUs near a GPU, and empty
// lists instead of nil ones. Texts are made printable.
func (n *Node) settle() {
	n.printable()
	for i := range n.GPUs {
		g := &n.GPUs[i]
		for k := range g.Links {
			if l := &g.Links[k]; l.Target != "" && l.Target == g.BDF {
				l.Peer = PeerSelf
			}
		}
		if g.NUMA == nil && g.PCI >= 0 {
			g.NUMA = n.effectiveNUMA(g.PCI)
			if g.NUMA != nil {
				g.Prov = g.Prov.with("numa", n.PCI[g.PCI].Prov.Of("numa"))
			}
		}
		if g.CPUs == "" && g.NUMA != nil {
			for _, m := range n.NUMA {
				if m.ID == *g.NUMA {
					g.CPUs = m.CPUs
				}
			}
		}
	}
	for i := range n.NICs {
		if c := &n.NICs[i]; c.NUMA == nil && c.PCI >= 0 {
			c.NUMA = n.effectiveNUMA(c.PCI)
		}
	}
}

// effectiveNUMA is the node of a device: its own, else that of the nearest ancestor which has one. -1
// means that none along the path has one, nil that the source does not tell.
func (n *Node) effectiveNUMA(i int) *int {
	var told *int
	for ; i >= 0; i = n.PCI[i].Parent {
		if m := n.PCI[i].NUMA; m != nil {
			if *m >= 0 {
				return m
			}
			told = m
		}
	}
	if told != nil {
		// One node with CPUs in all: there is no other to be near to.
		var only *int
		for k := range n.NUMA {
			if n.NUMA[k].HasCPU {
				if only != nil {
					return told
				}
				only = &n.NUMA[k].ID
			}
		}
		if only != nil {
			return only
		}
	}
	return told
}

// classText brings a class into the form 0x030200.
func classText(s string) string {
	s = strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "0x")
	if s == "" || !hexDigits(s, 1, 6) {
		return ""
	}
	if len(s) == 4 {
		s += "00"
	}
	return "0x" + pad(s, 6)
}
