package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/count"
)

// column is one or several NICs that are equally far from every GPU.
type column struct {
	head string
	nics []int
}

// manyNICs is from how many NICs on columns that say the same are drawn as one.
const manyNICs = 12

// columns are the NIC columns of the matrix: all that could carry data, and rails that are down.
func (e *Eval) columns() []column {
	var cols []column
	same := func(a, b int) bool {
		for g := range e.Node.GPUs {
			la, _ := e.NICLevel(g, a)
			lb, _ := e.NICLevel(g, b)
			pa, _, _ := e.NICPath(g, a)
			pb, _, _ := e.NICPath(g, b)
			if la != lb || pa != pb {
				return false
			}
		}
		return true
	}
	for i := range e.Node.NICs {
		if !e.roles[i].candidate() && !(e.roles[i].Role == RoleDown && e.near(i)) {
			continue
		}
		if k := len(cols) - 1; k >= 0 && len(e.Node.NICs) > manyNICs && e.roles[cols[k].nics[0]] == e.roles[i] && same(cols[k].nics[0], i) {
			cols[k].nics = append(cols[k].nics, i)
			cols[k].head = fmt.Sprintf("NIC%d-%d", cols[k].nics[0], i)
			continue
		}
		cols = append(cols, column{fmt.Sprintf("NIC%d", i), []int{i}})
	}
	return cols
}

// WriteMatrix writes the distances of one node as an aligned table, then its NICs and what each GPU
// uses.
func (e *Eval) WriteMatrix(b *strings.Builder, s Style) {
	n := e.Node
	cols := e.columns()
	words := map[string]bool{}
	head := []cell{{"", ""}}
	for _, g := range n.GPUs {
		head = append(head, cell{fmt.Sprintf("GPU%d", g.Index), colBold})
	}
	for _, c := range cols {
		head = append(head, cell{c.head, colBold})
	}
	head = append(head, cell{"NUMA", colBold}, cell{"CPUs", colBold})
	rows := [][]cell{head}
	put := func(row []cell, word string) []cell {
		words[word] = true
		return append(row, cell{word, colorOf(word)})
	}
	for i, g := range n.GPUs {
		row := []cell{{fmt.Sprintf("GPU%d", g.Index), colBold}}
		if g.Hidden {
			row[0] = cell{row[0].text + " (hidden)", colDim}
		}
		for j := range n.GPUs {
			row = put(row, e.gpuWord(i, j, s.NCCL))
		}
		for _, c := range cols {
			row = put(row, e.nicWord(i, c.nics[0], s.NCCL))
		}
		numa := "-"
		switch {
		case g.NUMASet != "":
			numa = g.NUMASet
		case g.NUMA != nil && *g.NUMA >= 0:
			numa = fmt.Sprint(*g.NUMA)
		}
		rows = append(rows, append(row, cell{numa, ""}, cell{g.CPUs, ""}))
	}
	if len(n.GPUs) > 0 {
		s.table(b, rows, "  ")
	}
	e.writeNICs(b, s)
	e.writeUses(b, s)
	e.writeLegend(b, s, words)
}

func (e *Eval) gpuWord(i, j int, nccl bool) string {
	if nccl {
		p, _ := e.GPUPath(i, j)
		if i == j {
			return "X"
		}
		return string(p)
	}
	l, _ := e.GPULevel(i, j)
	return string(l)
}

func (e *Eval) nicWord(gpu, nic int, nccl bool) string {
	if nccl {
		p, _, _ := e.NICPath(gpu, nic)
		return string(p)
	}
	l, _ := e.NICLevel(gpu, nic)
	return string(l)
}

// writeNICs lists all NICs, also those that carry no data, with what they are.
func (e *Eval) writeNICs(b *strings.Builder, s Style) {
	n := e.Node
	if len(n.NICs) == 0 {
		if n.Details.NICs {
			if len(n.GPUs) > 0 {
				b.WriteByte('\n')
			}
			b.WriteString("no NIC was found\n")
		}
		return
	}
	if len(n.GPUs) > 0 {
		b.WriteByte('\n')
	}
	var rows [][]cell
	for i := range n.NICs {
		c := &n.NICs[i]
		r := e.roles[i]
		speed := ""
		if rate := c.rate(); rate > 0 {
			speed = fmt.Sprintf("%d Gb/s", rate/1000)
		}
		color := ""
		if r.Role != RoleRail {
			color = colDim
		}
		if r.Role == RoleDown || r.Role == RoleBlocked {
			color = colRed
		}
		name := c.Name
		if c.RDMA != "" && c.RDMA != c.Name {
			name = c.RDMA
		}
		if len(c.Net) > 0 && c.Net[0] != name {
			name += " (" + strings.Join(c.Net, ", ") + ")"
		}
		where := c.BDF
		if where == c.Name {
			where = ""
		}
		rows = append(rows, []cell{{fmt.Sprintf("NIC%d", i), colBold}, {name, ""}, {where, colDim}, {r.Role, color}, {speed, ""}, {c.layer(), ""}, {r.Why, colDim}})
	}
	s.table(b, rows, "  ")
}

// writeUses says for each GPU which NICs it takes and why.
func (e *Eval) writeUses(b *strings.Builder, s Style) {
	n := e.Node
	uses := e.Uses()
	any := false
	for _, u := range uses {
		any = any || len(u.NICs) > 0
	}
	if !any {
		return
	}
	b.WriteByte('\n')
	arrow := "→"
	if s.ASCII {
		arrow = "->"
	}
	var rows [][]cell
	for i, u := range uses {
		var nics []string
		for _, c := range u.NICs {
			nics = append(nics, n.NICs[c].Name)
		}
		to := strings.Join(nics, ", ")
		if u.Relay >= 0 {
			to = fmt.Sprintf("GPU%d %s %s", n.GPUs[u.Relay].Index, arrow, to)
		}
		near := e.nearWord(u.Near)
		if s.NCCL {
			near = string(u.Near.Path)
		}
		gbs := ""
		if v := e.UseGBs(i, u); v > 0 {
			gbs = fmt.Sprintf("%.0f GB/s", v)
		}
		rows = append(rows, []cell{{fmt.Sprintf("GPU%d", n.GPUs[i].Index), colBold}, {arrow + " " + to, ""}, {near, colorOf(near)}, {gbs, ""}, {u.Rule, colDim}})
	}
	s.table(b, rows, "  ")
}

// writeLegend explains the words that occur.
func (e *Eval) writeLegend(b *strings.Builder, s Style, words map[string]bool) {
	rows := [][]cell{{{"", ""}, {"nvidia-smi", colBold}, {"NCCL", colBold}}}
	xgmi := slices.ContainsFunc(e.Node.GPUs, func(g GPU) bool { return slices.ContainsFunc(g.Links, func(l NVLink) bool { return l.XGMI }) })
	for _, l := range Legend {
		smi, nccl, _ := strings.Cut(l[0], " / ")
		if xgmi && nccl == "NVL" {
			l[1], l[2] = "nvidia-smi knows no xGMI", "xGMI, direct; NVB: over one other GPU"
		}
		used := words[smi] || words[nccl]
		for w := range words {
			used = used || smi == "NV#" && strings.HasPrefix(w, "NV") || smi == "SYS" && w == "SOC"
		}
		if used {
			rows = append(rows, []cell{{l[0], colBold}, {l[1], ""}, {l[2], ""}})
		}
	}
	if words[string(LevelUnknown)] {
		rows = append(rows, []cell{{"?", colBold}, {"the source does not tell (PHB or NODE)", ""}, {"--vocabulary nccl shows what it tells", ""}})
	}
	if len(rows) > 1 {
		b.WriteByte('\n')
		s.table(b, rows, "  ")
	}
}

// Title is one line about a node.
func (e *Eval) Title(s Style) string {
	n := e.Node
	parts := []string{s.paint(colBold, n.Host)}
	if n.Product != "" {
		parts = append(parts, n.Product)
	}
	kinds := map[string]int{}
	hidden := 0
	var order []string
	for _, g := range n.GPUs {
		name := g.Name
		if name == "" {
			name = "GPU"
		}
		if kinds[name] == 0 {
			order = append(order, name)
		}
		kinds[name]++
		if g.Hidden {
			hidden++
		}
	}
	for _, name := range order {
		parts = append(parts, fmt.Sprintf("%d x %s", kinds[name], name))
	}
	switch {
	case len(order) == 0:
		parts = append(parts, "no GPU")
	case hidden > 0:
		parts[len(parts)-1] += fmt.Sprintf(" (%d hidden)", hidden)
	}
	rails := 0
	for _, r := range e.roles {
		if r.Role == RoleRail {
			rails++
		}
	}
	parts = append(parts, count.Of(rails, "rail")+" of "+count.Of(len(n.NICs), "NIC"))
	cpus := 0
	for _, m := range n.NUMA {
		if m.HasCPU {
			cpus++
		}
	}
	if cpus > 0 {
		parts = append(parts, count.Of(cpus, "NUMA node")+" with CPUs")
	}
	if n.Virtual {
		parts = append(parts, "virtual: distances may be the hypervisor's invention")
	}
	return strings.Join(parts, s.dot()+" ")
}

// WriteNotes writes what was odd in the input.
func (e *Eval) WriteNotes(b *strings.Builder, s Style) {
	for i, note := range e.Node.Notes {
		if i == 8 {
			fmt.Fprintf(b, "and %d more notes in --json\n", len(e.Node.Notes)-i)
			break
		}
		b.WriteString(s.paint(colYellow, "note") + " " + note.Where + ": " + note.What + "\n")
	}
}

// WriteNodes writes any number of nodes: nodes that are the same are shown once, with their names;
// then the rails over all of them.
func WriteNodes(b *strings.Builder, evals []*Eval, s Style, view func(*Eval, *strings.Builder, Style)) {
	groups := alike(evals)
	for k, group := range groups {
		e := evals[group[0]]
		if k > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.Title(s) + "\n")
		if len(evals) > 1 {
			var hosts []string
			for _, i := range group {
				hosts = append(hosts, evals[i].Node.Host)
			}
			if len(hosts) > 1 {
				fmt.Fprintf(b, "%d nodes alike: %s\n", len(hosts), shorten(hosts))
			}
			if k > 0 {
				first := evals[groups[0][0]]
				for _, d := range Diff(first, e) {
					b.WriteString(s.paint(colRed, "differs") + " from " + first.Node.Host + ": " + d.String() + "\n")
				}
			}
		}
		b.WriteByte('\n')
		view(e, b, s)
		if len(e.Node.Notes) > 0 {
			b.WriteByte('\n')
			e.WriteNotes(b, s)
		}
	}
	if len(evals) > 1 {
		writeRails(b, evals, s)
	}
}

// alike groups nodes of the same build, by position in evals: the largest group first, for what
// differs from it is the odd one out.
func alike(evals []*Eval) [][]int {
	at := map[string]int{}
	var groups [][]int
	for i, e := range evals {
		key := strings.Join(e.canonical(), "\n")
		k, ok := at[key]
		if !ok {
			k = len(groups)
			at[key] = k
			groups = append(groups, nil)
		}
		groups[k] = append(groups[k], i)
	}
	slices.SortStableFunc(groups, func(a, b []int) int { return len(b) - len(a) })
	return groups
}

func writeRails(b *strings.Builder, evals []*Eval, s Style) {
	rails := Rails(evals)
	if len(rails) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%d rails over %d nodes, matched by position\n", len(rails), len(evals))
	var rows [][]cell
	for _, r := range rails {
		names := map[string]bool{}
		for _, m := range r.Members {
			names[m.NIC.Name] = true
		}
		state, color := "alike on all nodes", colGreen
		if len(r.Problems) > 0 {
			state, color = strings.Join(r.Problems, "; "), colRed
		}
		name := ""
		if len(r.Members) > 0 {
			name = r.Members[0].NIC.Name
		}
		if len(names) > 1 {
			name += fmt.Sprintf(" (%d different names)", len(names))
		}
		rows = append(rows, []cell{{fmt.Sprintf("rail %d", r.Rail), colBold}, {name, ""}, {state, color}})
	}
	s.table(b, rows, "  ")
}
