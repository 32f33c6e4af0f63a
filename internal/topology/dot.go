package topology

import (
	"fmt"
	"io"
	"strings"
)

// WriteDOT writes nodes as a Graphviz graph: clusters by node and NUMA node, switches, GPUs, NICs,
// NVLinks. Nodes that are alike are drawn once.
func WriteDOT(w io.Writer, evals []*Eval) error {
	var b strings.Builder
	b.WriteString("graph topology {\n  rankdir=TB; compound=true; fontname=\"sans-serif\";\n  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\", fontsize=10, fillcolor=white];\n  edge [color=\"#607080\"];\n")
	for _, group := range alike(evals) {
		d := &dotNode{e: evals[group[0]], b: &b, id: fmt.Sprintf("n%d", group[0])}
		d.write(len(group))
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// dotText makes a name safe inside quotes.
var dotText = strings.NewReplacer(`"`, "'", `\`, "/", "\n", " ").Replace

type dotNode struct {
	e    *Eval
	b    *strings.Builder
	id   string
	next int
}

func (d *dotNode) line(depth int, format string, args ...any) {
	d.b.WriteString(strings.Repeat("  ", depth))
	fmt.Fprintf(d.b, format+"\n", args...)
}

func (d *dotNode) write(times int) {
	title := d.e.Node.Host
	if times > 1 {
		title += fmt.Sprintf(" and %d nodes like it", times-1)
	}
	d.line(1, "subgraph cluster_%s {", d.id)
	d.line(2, "label=%q; style=rounded;", title)
	for k, socket := range d.e.Shape() {
		d.line(2, "subgraph cluster_%s_%d {", d.id, k)
		d.line(3, "label=%q; style=\"rounded,dashed\";", socket.Label)
		cpu := fmt.Sprintf("%s_cpu%d", d.id, k)
		d.line(3, "%s [label=%q, fillcolor=\"#dde3ea\"];", cpu, "CPUs "+socket.Detail)
		d.box(socket, cpu)
		d.line(2, "}")
	}
	d.nvlinks()
	d.line(1, "}")
}

func (d *dotNode) box(box *Box, parent string) {
	n := d.e.Node
	for _, g := range box.GPUs {
		gpu := &n.GPUs[g]
		d.line(3, "%s_gpu%d [label=\"GPU%d\\n%s\", fillcolor=\"#cfe8c6\"];", d.id, g, gpu.Index, dotText(shortBDF(gpu.BDF)))
		d.line(3, "%s -- %s_gpu%d;", parent, d.id, g)
	}
	for _, group := range box.NICs {
		first := &n.NICs[group.NICs[0]]
		label := dotText(first.Name)
		if len(group.NICs) > 1 {
			label = fmt.Sprintf("%d x NIC\\n%s ...", len(group.NICs), dotText(first.Name))
		}
		color := "#cfe0f5"
		if group.Role != RoleRail {
			label += "\\n" + group.Role
			color = "#eeeeee"
		}
		if group.Role == RoleDown {
			color = "#f6c6c6"
		}
		d.line(3, "%s_nic%d [label=\"%s\", fillcolor=%q];", d.id, group.NICs[0], label, color)
		d.line(3, "%s -- %s_nic%d;", parent, d.id, group.NICs[0])
	}
	for _, c := range box.Boxes {
		d.next++
		id := fmt.Sprintf("%s_sw%d", d.id, d.next)
		label := "switch\\n" + dotText(c.Label)
		if c.Detail != "" {
			label += "\\n" + c.Detail
		}
		d.line(3, "%s [label=\"%s\", shape=ellipse, fillcolor=\"#eceff3\"];", id, label)
		d.line(3, "%s -- %s;", parent, id)
		d.box(c, id)
	}
}

func (d *dotNode) nvlinks() {
	n := d.e.Node
	hub := false
	for i := range n.GPUs {
		if k := switchLinks(&n.GPUs[i]); k > 0 {
			if !hub {
				d.line(2, "%s_nvswitch [label=\"NVSwitch\", shape=ellipse, fillcolor=\"#e6f2c9\"];", d.id)
				hub = true
			}
			d.line(2, "%s_gpu%d -- %s_nvswitch [color=\"#76a32e\", penwidth=%.1f, constraint=false];", d.id, i, d.id, 1+float64(k)/6)
		}
		for j := range i {
			if k := d.e.nv[i][j]; k > 0 && switchLinks(&n.GPUs[i]) == 0 {
				d.line(2, "%s_gpu%d -- %s_gpu%d [color=\"#76a32e\", penwidth=%.1f, label=\"%d\", constraint=false];", d.id, j, d.id, i, 1+float64(k)/2, k)
			}
		}
	}
}
