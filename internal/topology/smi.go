package topology

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/pattern"
)

var (
	escapes    = pattern.Of("\x1b\\[[0-9;?]*[A-Za-z]")
	columnName = pattern.Of(`GPU\d+|NIC\d+|mlx\w*?\d+(?:_bond)?(?:_\d+)*|[a-z][\w.]*\d`)
	gpuName    = pattern.Of(`^GPU(\d+)$`)
	levelWord  = pattern.Of(`^(X|NV\d+|C2C|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|DR|U)$`)
	legendName = pattern.Of(`^(NIC\d+):\s*(\S+)$`)
)

// looksLikeMatrix says whether a text may be the output of nvidia-smi topo.
func looksLikeMatrix(text string) bool {
	for line := range strings.SplitSeq(escapes().ReplaceAllString(text, ""), "\n") {
		f := strings.Fields(line)
		if len(f) > 0 && gpuName().MatchString(f[0]) || len(f) > 1 && f[0] == "CPU" && f[1] == "Affinity" {
			return true
		}
	}
	return false
}

// smiTable is the matrix while it is read.
type smiTable struct {
	file      string
	node      *Node
	columns   []string
	hasCPU    bool
	hasNUMA   bool
	hasGPUMem bool
	rows      map[string]bool
}

// parseSMI reads the text of `nvidia-smi topo -m` (or -mp): any of its four head lines, with tabs or
// blanks, with or without terminal escapes, with text around it.
func parseSMI(file string, data []byte) ([]*Node, error) {
	t := &smiTable{file: file, node: &Node{Host: "node0", Origin: Origin{Kind: FromSMI}, Tree: TreeNone}, rows: map[string]bool{}}
	headed := false
	for i, raw := range strings.Split(strings.ReplaceAll(string(data), "\r", ""), "\n") {
		line := escapes().ReplaceAllString(raw, "")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case !headed:
			if t.head(line) {
				headed = true
			} else if gpuName().MatchString(fields[0]) && len(fields) > 1 {
				return nil, &ImportError{file, i + 1, fmt.Sprintf("a row of %s before the head line with the columns (GPU0 ... CPU Affinity)", fields[0])}
			}
		case legendName().MatchString(strings.TrimSpace(line)):
			m := legendName().FindStringSubmatch(strings.TrimSpace(line))
			t.legend(m[1], m[2])
		case t.isRow(fields):
			if err := t.row(i+1, line, fields); err != nil {
				return nil, err
			}
		}
	}
	if len(t.node.GPUs) == 0 {
		return nil, &ImportError{file, 0, "no row of a GPU in it"}
	}
	t.finish()
	return []*Node{t.node}, nil
}

// head reads the head line: the columns' names, then the titles of the affinity columns.
func (t *smiTable) head(line string) bool {
	at := strings.Index(line, "CPU Affinity")
	names := line
	if at >= 0 {
		names = line[:at]
	}
	first := strings.Fields(names)
	if at < 0 && (len(first) == 0 || !strings.HasPrefix(first[0], "GPU")) {
		return false
	}
	if len(first) > 1 && levelWord().MatchString(first[1]) {
		return false // a row
	}
	for _, f := range first {
		// Names glued together by a hand copy are taken apart; anything else is one name.
		if parts := columnName().FindAllString(f, -1); len(parts) > 1 && strings.Join(parts, "") == f {
			t.columns = append(t.columns, parts...)
		} else {
			t.columns = append(t.columns, f)
		}
	}
	if at >= 0 {
		rest := line[at:]
		t.hasCPU = true
		t.hasNUMA = strings.Contains(rest, "NUMA Affinity")
		t.hasGPUMem = strings.Contains(rest, "GPU NUMA ID")
	}
	for _, c := range t.columns {
		if !gpuName().MatchString(c) {
			t.node.Details.NICs = true
		}
	}
	n := len(t.columns)
	t.node.Matrix = &Matrix{Names: t.columns, Level: make([][]string, n)}
	for i := range n {
		t.node.Matrix.Level[i] = make([]string, n)
	}
	return true
}

func (t *smiTable) isRow(fields []string) bool {
	if gpuName().MatchString(fields[0]) {
		return true
	}
	for _, c := range t.columns {
		if c == fields[0] && len(fields) > 1 && levelWord().MatchString(fields[1]) {
			return true
		}
	}
	return false
}

func (t *smiTable) row(number int, line string, fields []string) error {
	name := fields[0]
	if t.rows[name] {
		t.node.note(fmt.Sprintf("%s:%d", t.file, number), "a second row of %s was left out (a second matrix?)", name)
		return nil
	}
	t.rows[name] = true
	cells := fields[1:]
	n := len(t.columns)
	if len(cells) < n {
		return &ImportError{t.file, number, fmt.Sprintf("the row of %s has %d cells, the head line names %d columns", name, len(cells), n)}
	}
	self := -1
	for i, c := range t.columns {
		if c == name {
			self = i
		}
	}
	for i, level := range cells[:n] {
		if !levelWord().MatchString(level) {
			return &ImportError{t.file, number, fmt.Sprintf("%q (row %s, column %s) is none of X, NV#, PIX, PXB, PHB, NODE, SYS", level, name, t.columns[i])}
		}
		if self >= 0 {
			t.node.Matrix.Level[self][i] = level
		}
	}
	if self < 0 && n > 0 {
		return &ImportError{t.file, number, fmt.Sprintf("the row of %s has no column in the head line", name)}
	}
	if m := gpuName().FindStringSubmatch(name); m != nil {
		index, err := strconv.Atoi(m[1])
		if err != nil || index > 4096 {
			return &ImportError{t.file, number, fmt.Sprintf("%q is no GPU's number", name)}
		}
		g := GPU{Index: index, Dev: index, PCI: -1, CUDA: -1, Module: -1, Vendor: vendorNVIDIA, Prov: Provenance{"*": FromSMI}}
		t.affinity(&g, t.rest(line, cells[n:]))
		t.node.GPUs = append(t.node.GPUs, g)
	}
	return nil
}

// rest are the affinity columns of a row. With tabs a column can be empty, with blanks it cannot.
func (t *smiTable) rest(line string, words []string) []string {
	if !strings.Contains(line, "\t") {
		return words
	}
	fields := strings.Split(line, "\t")
	skip := len(t.columns) + 1
	if len(fields) < skip+1 || strings.Contains(fields[skip-1], "\t") {
		return words
	}
	for _, f := range fields[1:skip] {
		if !levelWord().MatchString(strings.TrimSpace(f)) {
			return words // tabs were doubled or mixed with blanks by hand
		}
	}
	var out []string
	for _, f := range fields[skip:] {
		out = append(out, strings.TrimSpace(f))
	}
	// The driver writes an empty field in front of the last column.
	if t.hasGPUMem && len(out) == 4 && out[2] == "" {
		out = []string{out[0], out[1], out[3]}
	}
	return out
}

func (t *smiTable) affinity(g *GPU, rest []string) {
	take := func() string {
		if len(rest) == 0 {
			return ""
		}
		s := rest[0]
		rest = rest[1:]
		return s
	}
	if t.hasCPU {
		s := take()
		if set, err := ParseCPUList(s); err == nil && len(set) > 0 {
			g.CPUs = set.String()
		}
	}
	if t.hasNUMA {
		s := take()
		if set, err := ParseCPUList(s); err == nil && len(set) > 0 {
			if len(set) == 1 {
				g.NUMA = intp(set[0])
			} else {
				g.NUMA, g.NUMASet = intp(-1), set.String()
			}
		}
	}
	if t.hasGPUMem {
		if v, err := strconv.Atoi(take()); err == nil && v >= 0 {
			g.MemNode = intp(v)
		}
	}
}

// legend gives a column's device name.
func (t *smiTable) legend(column, device string) {
	for i := range t.node.NICs {
		if t.node.NICs[i].Name == column {
			t.node.NICs[i].RDMA = device
			return
		}
	}
	t.node.NICs = append(t.node.NICs, NIC{Name: column, RDMA: device})
}

// finish makes the NICs from the columns and completes cells that only one direction has.
func (t *smiTable) finish() {
	n := t.node
	known := map[string]string{}
	for _, c := range n.NICs {
		known[c.Name] = c.RDMA
	}
	n.NICs = nil
	for _, c := range t.columns {
		if gpuName().MatchString(c) {
			continue
		}
		rdma, ok := known[c]
		if !ok && !strings.HasPrefix(c, "NIC") {
			rdma = c
		}
		nic := NIC{Name: c, RDMA: rdma, BDF: c, PCI: -1, Prov: Provenance{"*": FromSMI}}
		n.NICs = append(n.NICs, nic)
	}
	m := n.Matrix
	for i := range m.Names {
		for j := range m.Names {
			a, b := m.Level[i][j], m.Level[j][i]
			isGPU := gpuName().MatchString(m.Names[i]) && gpuName().MatchString(m.Names[j])
			switch {
			case a == "":
				m.Level[i][j] = b
			case b != "" && a != b && i < j:
				n.note(t.file, "%s-%s is %s in one row and %s in the other", m.Names[i], m.Names[j], a, b)
			}
			// Some drivers repeat the row's NV# in the columns of the NICs: it says nothing there.
			if !isGPU && strings.HasPrefix(m.Level[i][j], "NV") {
				m.Level[i][j] = ""
				if !strings.HasPrefix(b, "NV") {
					m.Level[i][j] = b
				}
			}
			if isGPU && strings.HasPrefix(m.Level[i][j], "NV") {
				n.Details.NVLinks = true
			}
		}
	}
	t.disagreements()
	t.links()
}

// disagreements names GPUs that the matrix calls SYS although the same NUMA node is near to both:
// some drivers and boards print SYS inside a socket.
func (t *smiTable) disagreements() {
	n := t.node
	at := map[string]*GPU{}
	for i := range n.GPUs {
		at[fmt.Sprintf("GPU%d", n.GPUs[i].Index)] = &n.GPUs[i]
	}
	var pairs []string
	for i, a := range n.Matrix.Names {
		for j, b := range n.Matrix.Names[:i] {
			ga, gb := at[a], at[b]
			if l := Level(n.Matrix.Level[i][j]); ga != nil && gb != nil && l.rank() == LevelSYS.rank() && ga.NUMA != nil && gb.NUMA != nil && *ga.NUMA >= 0 && *ga.NUMA == *gb.NUMA {
				pairs = append(pairs, b+"-"+a)
			}
		}
	}
	if len(pairs) > 0 {
		n.note(t.file, "%s: SYS in the matrix, but the same NUMA node is near to both: the driver prints SYS inside a socket", shorten(pairs))
	}
}

// links turns the NV# cells into links. NVML counts, towards a peer behind NVSwitches, all links of
// the GPU; between wired peers only those that lead there. If the sum over the peers is more than a
// chip has, there must be switches.
func (t *smiTable) links() {
	n := t.node
	column := map[string]int{}
	for i, c := range n.Matrix.Names {
		column[c] = i
	}
	const mostLinks = 18
	for k := range n.GPUs {
		g := &n.GPUs[k]
		i, ok := column[fmt.Sprintf("GPU%d", g.Index)]
		if !ok {
			continue
		}
		var links []NVLink
		sum, most := 0, 0
		for _, p := range n.GPUs {
			j, ok := column[fmt.Sprintf("GPU%d", p.Index)]
			if !ok || j == i {
				continue
			}
			count, err := strconv.Atoi(strings.TrimPrefix(n.Matrix.Level[i][j], "NV"))
			if err != nil || count == 0 {
				continue
			}
			links = append(links, NVLink{Peer: PeerGPU, Target: fmt.Sprintf("GPU%d", p.Index), Count: count})
			sum += count
			most = max(most, count)
		}
		if sum > mostLinks && len(links) > 1 {
			links = []NVLink{{Peer: PeerSwitch, Target: "", Count: most}}
			if len(n.NVSwitches) == 0 {
				n.NVSwitches = []NVSwitch{{ID: "nvswitch"}}
			}
		}
		g.Links = links
	}
}
