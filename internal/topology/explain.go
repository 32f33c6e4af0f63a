package topology

import (
	"fmt"
	"strings"
)

// Explain says for one GPU, by index, how each answer about it came about.
func (e *Eval) Explain(b *strings.Builder, index int, s Style) error {
	n := e.Node
	at := -1
	for i := range n.GPUs {
		if n.GPUs[i].Index == index {
			at = i
		}
	}
	if at < 0 {
		return fmt.Errorf("%s has no GPU %d: it has %d GPUs", n.Host, index, len(n.GPUs))
	}
	g := &n.GPUs[at]
	fmt.Fprintf(b, "%s of %s\n", s.paint(colBold, fmt.Sprintf("GPU%d", index)), n.Host)
	rows := [][]cell{}
	say := func(key, value string, from Source) {
		if value == "" {
			value = "not told by the source"
		}
		rows = append(rows, []cell{{"  " + key, ""}, {value, ""}, {string(from), colDim}})
	}
	say("PCI address", g.BDF, g.Prov.Of("bdf"))
	if g.Name != "" {
		say("product", g.Name, g.Prov.Of("name"))
	}
	if g.PCI >= 0 {
		var way []string
		for _, p := range chain(func(i int) int { return n.PCI[i].Parent }, g.PCI) {
			way = append(way, shortBDF(n.PCI[p].ID))
		}
		say("way up", strings.Join(way, " < "), n.PCI[g.PCI].Prov.Of("parent"))
	}
	numa := ""
	switch {
	case g.NUMASet != "":
		numa = g.NUMASet + " (several: none is chosen, nothing is bound)"
	case g.NUMA != nil && *g.NUMA < 0:
		numa = "none (-1 all the way up): nothing is bound"
	case g.NUMA != nil:
		numa = fmt.Sprint(*g.NUMA)
	}
	say("NUMA node", numa, g.Prov.Of("numa"))
	cpus, why := e.binding(g)
	if cpus == "" {
		cpus = "-"
	}
	say("CPUs to bind to", cpus+": "+why, g.Prov.Of("cpus"))
	if links, ok := e.NVLinks(at); ok {
		var to []string
		for _, l := range g.Links {
			target := l.Target
			if target == "" {
				target = "a hidden target"
			}
			to = append(to, fmt.Sprintf("%d to %s %s", l.Count, l.Peer, shortBDF(target)))
		}
		say("NVLinks", strings.TrimSuffix(fmt.Sprintf("%d: %s", links, strings.Join(to, ", ")), ": "), g.Prov.Of("links"))
	} else {
		say("NVLinks", "", FromNobody)
	}
	s.table(b, rows, "  ")

	fmt.Fprintf(b, "\n  to the GPUs\n")
	rows = rows[:0]
	for j := range n.GPUs {
		if j == at {
			continue
		}
		l, why := e.GPULevel(at, j)
		p, _ := e.GPUPath(at, j)
		gbs, route := e.PeerGBs(at, j)
		est := ""
		if gbs > 0 {
			est = fmt.Sprintf("about %.0f GB/s by %s", gbs, route)
		}
		rows = append(rows, []cell{{fmt.Sprintf("  GPU%d", n.GPUs[j].Index), ""}, {string(l), colorOf(string(l))}, {string(p), colorOf(string(p))}, {est, ""}, {why, colDim}})
	}
	s.table(b, rows, "  ")
	e.explainNICs(b, at, s)
	return nil
}

func (e *Eval) explainNICs(b *strings.Builder, at int, s Style) {
	n := e.Node
	if len(n.NICs) == 0 {
		return
	}
	fmt.Fprintf(b, "\n  to the NICs\n")
	var rows [][]cell
	for i := range n.NICs {
		l, why := e.NICLevel(at, i)
		p, bw, nccl := e.NICPath(at, i)
		if nccl != why {
			why += "; NCCL: " + nccl
		}
		gbs := "speed not told"
		if bw > 0 {
			gbs = fmt.Sprintf("%.0f GB/s", bw)
		}
		r := e.roles[i]
		if r.Why != "" {
			why = r.Why + "; " + why
		}
		rows = append(rows, []cell{{"  " + n.NICs[i].Name, ""}, {string(l), colorOf(string(l))}, {string(p), colorOf(string(p))}, {gbs, ""}, {r.Role, ""}, {why, colDim}})
	}
	s.table(b, rows, "  ")
	u := e.Uses()[at]
	fmt.Fprintf(b, "\n  takes     %s\n  because   %s\n", nameList(n, u.NICs), u.Rule)
	fmt.Fprintf(b, "  NCCL      %s (highest bandwidth first, then the shortest path; ties by device number %d)\n", nameList(n, e.NCCLUse(at)), n.GPUs[at].Dev)
}

func nameList(n *Node, nics []int) string {
	if len(nics) == 0 {
		return "nothing"
	}
	var names []string
	for _, c := range nics {
		names = append(names, n.NICs[c].Name)
	}
	return strings.Join(names, ", ")
}
