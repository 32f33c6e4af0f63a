package topology

import (
	"fmt"
	"slices"
	"strings"
)

// WriteTree writes a node as a tree: NUMA nodes, switches, GPUs and NICs.
func (e *Eval) WriteTree(b *strings.Builder, s Style) {
	uses := e.Uses()
	shape := e.Shape()
	for _, box := range shape {
		line := s.paint(colBold, box.Label)
		if box.Detail != "" {
			line += s.paint(colDim, "  CPUs "+box.Detail)
		}
		b.WriteString(line + "\n")
		e.writeBox(b, s, box, "", uses)
	}
	for _, sw := range e.Node.NVSwitches {
		what := "hidden from the host"
		if sw.Visible {
			what = shortBDF(sw.ID)
		}
		fmt.Fprintf(b, "NVSwitch  %s\n", what)
	}
}

func (e *Eval) writeBox(b *strings.Builder, s Style, box *Box, indent string, uses []Use) {
	tee, corner, bar := "├─ ", "└─ ", "│  "
	if s.ASCII {
		tee, corner, bar = "|- ", "`- ", "|  "
	}
	type item struct {
		text string
		box  *Box
	}
	var items []item
	for _, g := range box.GPUs {
		items = append(items, item{text: e.gpuLine(g, s)})
	}
	for _, n := range box.NICs {
		items = append(items, item{text: e.groupLine(n, s, uses)})
	}
	for _, c := range box.Boxes {
		text := s.paint(colBold, "switch "+c.Label)
		if c.Detail != "" {
			text += s.paint(colDim, "  ("+c.Detail+")")
		}
		items = append(items, item{text, c})
	}
	for i, it := range items {
		branch, next := tee, bar
		if i == len(items)-1 {
			branch, next = corner, "   "
		}
		b.WriteString(indent + branch + it.text + "\n")
		if it.box != nil {
			e.writeBox(b, s, it.box, indent+next, uses)
		}
	}
}

func (e *Eval) gpuLine(i int, s Style) string {
	g := &e.Node.GPUs[i]
	line := s.paint(colGreen, fmt.Sprintf("GPU%d", g.Index))
	for _, part := range []string{shortBDF(g.BDF), g.Name, e.linkText(i)} {
		if part != "" {
			line += "  " + part
		}
	}
	if g.Hidden {
		line += "  hidden here"
	}
	for _, m := range g.MIG {
		line += fmt.Sprintf("  [MIG %s]", m.Name)
	}
	return line
}

func (e *Eval) linkText(i int) string {
	n, ok := e.NVLinks(i)
	if !ok || n == 0 {
		return ""
	}
	down := 0
	for _, l := range e.Node.GPUs[i].Links {
		down += l.Down
	}
	text := fmt.Sprintf("%d NVLinks", n)
	// A chip may have links that its board does not wire.
	if p := productOf(&e.Node.GPUs[i]); down > 0 && (p == nil || !slices.Contains(p.links, n)) {
		text += fmt.Sprintf(" (%d down)", down)
	}
	return text
}

// groupLine is one line for NICs that are alike.
func (e *Eval) groupLine(g NICGroup, s Style, uses []Use) string {
	n := e.Node
	color := colCyan
	if g.Role != RoleRail {
		color = colDim
	}
	first := &n.NICs[g.NICs[0]]
	name := first.Name
	where := shortBDF(first.BDF)
	if len(g.NICs) > 1 {
		last := &n.NICs[g.NICs[len(g.NICs)-1]]
		name = fmt.Sprintf("%d x NIC  %s .. %s", len(g.NICs), first.Name, last.Name)
		where = shortBDF(first.BDF) + " .. " + shortBDF(last.BDF)
	}
	line := s.paint(color, name)
	if where != name {
		line += "  " + where
	}
	if g.Rate > 0 {
		line += fmt.Sprintf("  %d Gb/s", g.Rate/1000)
	}
	if g.Role != RoleRail {
		line += "  " + g.Role
	}
	return line
}
