package topology

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
)

// Measures of the picture, in pixels.
const (
	svgLeafW   = 70
	svgLeafH   = 48
	svgGap     = 8
	svgPad     = 16
	svgCPUH    = 34
	svgSwitchH = 30
	svgRow     = 62 // from one row of switches to the next
	svgBarH    = 26
)

// Colours of the picture. Red stands for what is broken and for nothing else.
const (
	svgInk    = "#1f2933"
	svgFaint  = "#52606d"
	svgEdge   = "#9aa5b1"
	svgGPU    = "#e3f4d7"
	svgGPULn  = "#5c9a1c"
	svgNIC    = "#e1ecfb"
	svgNICLn  = "#2f6fc4"
	svgSwitch = "#f1f3f5"
	svgCPU    = "#e4e7eb"
	svgOff    = "#f5f5f5"
	svgBad    = "#d64545"
)

// picture is drawn from left to right: x is where the next leaf goes.
type picture struct {
	b strings.Builder
}

func (p *picture) rect(x, y, w, h, r float64, fill, stroke string, extra string) {
	fmt.Fprintf(&p.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="%.1f" fill="%s" stroke="%s"%s/>`+"\n", x, y, w, h, r, fill, stroke, extra)
}

// text is centred at x.
func (p *picture) text(x, y float64, size int, weight, fill, s string) {
	p.anchored("middle", x, y, size, weight, fill, s)
}

func (p *picture) anchored(anchor string, x, y float64, size int, weight, fill, s string) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" font-size="%d" font-weight="%s" fill="%s" text-anchor="%s">%s</text>`+"\n", x, y, size, weight, fill, anchor, html.EscapeString(s))
}

// wire joins two points with a bent line; its width follows the bandwidth.
func (p *picture) wire(x1, y1, x2, y2, gbs float64, color string) {
	mid := y1 + min(16, (y2-y1)/2) // straight below the upper one: rows in between stay free
	fmt.Fprintf(&p.b, `<path d="M%.1f %.1f V%.1f H%.1f V%.1f" fill="none" stroke="%s" stroke-width="%.1f"/>`+"\n", x1, y1, mid, x2, y2, color, pcieWidth(gbs))
}

func pcieWidth(gbs float64) float64 {
	if gbs <= 0 {
		return 1.5
	}
	return min(5, 1+gbs/16)
}

func nvlinkWidth(gbs float64) float64 { return min(14, 1.5+gbs/60) }

// clip shortens a name to what fits a width at a font size.
func clip(s string, width float64, size int) string {
	most := int(width / (float64(size) * 0.58))
	if r := []rune(s); len(r) > most && most > 1 {
		return string(r[:most-1]) + "…"
	}
	return s
}

// drawing is one node's part of the picture.
type drawing struct {
	*picture
	e      *Eval
	x      float64 // of the next leaf
	leafY  float64
	gpuX   map[int]float64 // middle of each GPU
	rails  map[int]int     // rail number of each NIC
	faulty map[string]string
	depth  int
	wires  strings.Builder
}

// WriteSVG draws nodes: sockets, switches, GPUs, NICs and NVLinks, lines as wide as their bandwidth,
// broken things red. Nodes that are alike are drawn once.
func WriteSVG(w io.Writer, evals []*Eval) error {
	body, width, height := drawNodes(evals)
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="Inter, 'Helvetica Neue', Arial, sans-serif">`+"\n"+
		`<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n%s</svg>\n", width, height, width, height, body)
	return err
}

func drawNodes(evals []*Eval) (body string, width, height float64) {
	p := &picture{}
	y := float64(svgPad)
	railOf := railNumbers(evals)
	for _, group := range alike(evals) {
		e := evals[group[0]]
		d := &drawing{picture: p, e: e, rails: railOf[group[0]], gpuX: map[int]float64{}, faulty: map[string]string{}}
		for _, f := range e.Health() {
			if f.Severity == Degraded {
				d.faulty[f.Where] = f.What
			}
		}
		w, h := d.node(y, len(group))
		width = max(width, w)
		y += h + svgPad
	}
	width = max(width+svgPad, 780)
	p.legend(y)
	return p.b.String(), width, y + 40
}

func (p *picture) legend(y float64) {
	x := float64(svgPad)
	item := func(draw func(x float64), label string) {
		draw(x)
		p.anchored("start", x+36, y+14, 11, "normal", svgFaint, label)
		x += 48 + float64(len(label))*6.2
	}
	line := func(color string, width float64) func(float64) {
		return func(x float64) {
			fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n", x, y+10, x+28, y+10, color, width)
		}
	}
	item(line(svgEdge, pcieWidth(48)), "PCIe, as wide as fast")
	item(line(svgGPULn, nvlinkWidth(450)), "NVLink, as wide as fast")
	item(line(svgBad, 3), "broken or slower than it should be")
	item(func(x float64) { p.rect(x, y+2, 28, 16, 4, svgOff, svgEdge, ` stroke-dasharray="3 2"`) }, "carries no data")
}

// depth is how many switches are below each other in a box.
func (b *Box) depth() int {
	depth := 0
	for _, c := range b.Boxes {
		if c.hasLeaf() {
			depth = max(depth, c.depth()+1)
		}
	}
	return depth
}

// node draws one node with its frame and returns its size.
func (d *drawing) node(top float64, times int) (width, height float64) {
	shape := slices.DeleteFunc(d.e.Shape(), func(b *Box) bool { return !b.hasLeaf() })
	for _, s := range shape {
		d.depth = max(d.depth, s.depth())
	}
	cpuY := top + 44
	d.leafY = cpuY + svgCPUH + float64(d.depth)*svgRow + 34
	left := float64(svgPad)
	d.x = left + svgPad
	frame := d.b
	d.b = strings.Builder{}
	for _, s := range shape {
		d.socket(s, cpuY)
		d.x += 2 * svgGap
	}
	if len(shape) == 0 {
		d.text(left+200, cpuY+30, 12, "normal", svgFaint, "no GPU and no NIC")
		d.x += 400
	}
	bottom := d.nvlinks(d.leafY + svgLeafH)
	inside := d.b
	d.b = frame
	title := d.e.Title(Style{})
	width = max(d.x-2*svgGap+svgPad-left, float64(len(title))*7+2*svgPad)
	if times > 1 {
		title = fmt.Sprintf("%d nodes like %s", times, title)
	}
	height = bottom + svgPad - top
	d.rect(left, top, width, height, 12, "#fbfcfd", "#cbd2d9", "")
	d.anchored("start", left+svgPad, top+26, 15, "600", svgInk, title)
	d.b.WriteString(d.wires.String())
	d.b.WriteString(inside.String())
	return left + width, height
}

// line draws a wire below the boxes.
func (d *drawing) line(x1, y1, x2, y2, gbs float64, bad bool) {
	color := svgEdge
	if bad {
		color = svgBad
	}
	keep := d.b
	d.b = strings.Builder{}
	d.wire(x1, y1, x2, y2, gbs, color)
	d.wires.WriteString(d.b.String())
	d.b = keep
}

func (d *drawing) socket(s *Box, y float64) {
	start := d.x
	middle := make([]link, 0, 8)
	middle = append(middle, d.content(s, y+svgCPUH, 0)...)
	end := max(d.x-svgGap, start+2*svgLeafW)
	d.x = end + svgGap
	d.rect(start, y, end-start, svgCPUH, 6, svgCPU, "#7b8794", "")
	label := s.Label
	d.text((start+end)/2, y+15, 12, "600", svgInk, label)
	if s.Detail != "" {
		d.text((start+end)/2, y+28, 10, "normal", svgFaint, clip("CPUs "+s.Detail, end-start-8, 10))
	}
	for _, l := range middle {
		d.line(l.x, y+svgCPUH, l.x, l.y, l.gbs, l.bad)
	}
}

// hasLeaf says whether anything is drawn below a box: network functions without RDMA are not.
func (b *Box) hasLeaf() bool {
	if len(b.GPUs) > 0 || slices.ContainsFunc(b.NICs, func(n NICGroup) bool { return n.Role != RoleEthernet }) {
		return true
	}
	return slices.ContainsFunc(b.Boxes, (*Box).hasLeaf)
}

// link is where a line from above arrives.
type link struct {
	x, y, gbs float64
	bad       bool
}

// content draws what is below a box, from left to right, and returns where lines to it arrive.
func (d *drawing) content(box *Box, y float64, depth int) []link {
	var arrive []link
	for _, g := range box.GPUs {
		arrive = append(arrive, d.gpu(g))
	}
	for _, n := range box.NICs {
		if n.Role != RoleEthernet {
			arrive = append(arrive, d.nics(n))
		}
	}
	for _, c := range box.Boxes {
		if !c.hasLeaf() {
			continue
		}
		arrive = append(arrive, d.switchBox(c, y+svgRow-svgSwitchH, depth+1))
	}
	return arrive
}

func (d *drawing) switchBox(c *Box, y float64, depth int) link {
	start := d.x
	below := d.content(c, y+svgSwitchH, depth)
	end := d.x - svgGap
	x := (start + end) / 2
	w := min(end-start, max(110, (end-start)*0.62))
	w = max(w, svgLeafW)
	d.rect(x-w/2, y, w, svgSwitchH, 6, svgSwitch, "#7b8794", "")
	label := "switch " + c.Label
	if c.Label == "switch" || w < 100 {
		label = c.Label
	}
	if c.Detail != "" {
		d.text(x, y+13, 10, "600", svgInk, clip(label, w-6, 10))
		d.text(x, y+25, 9, "normal", svgFaint, clip(c.Detail, w-6, 9))
	} else {
		d.text(x, y+19, 11, "600", svgInk, clip(label, w-6, 11))
	}
	most := 0.0
	for _, l := range below {
		d.line(x, y+svgSwitchH, l.x, l.y, l.gbs, l.bad)
		most = max(most, l.gbs)
	}
	return link{x, y, most, false}
}

func (d *drawing) gbsOf(pci int) float64 {
	if pci < 0 {
		return 0
	}
	return d.e.Node.linkGBs(pci)
}

func (d *drawing) gpu(i int) link {
	g := &d.e.Node.GPUs[i]
	x, y := d.x, d.leafY
	d.x += svgLeafW + svgGap
	why, bad := d.faulty[fmt.Sprintf("GPU%d", g.Index)]
	stroke, extra := svgGPULn, ""
	fill := svgGPU
	if g.Hidden {
		fill, extra = svgOff, ` stroke-dasharray="3 2"`
	}
	if bad {
		stroke, extra = svgBad, ` stroke-width="2.5"`
	}
	fmt.Fprintf(&d.b, "<g><title>%s</title>\n", html.EscapeString(strings.TrimSpace(g.Name+" "+g.BDF+" "+why)))
	d.rect(x, y, svgLeafW, svgLeafH, 6, fill, stroke, extra)
	middle := x + svgLeafW/2
	d.text(middle, y+19, 13, "600", svgInk, fmt.Sprintf("GPU%d", g.Index))
	sub := shortBDF(g.BDF)
	if sub == "" && g.NUMA != nil && *g.NUMA >= 0 {
		sub = fmt.Sprintf("NUMA %d", *g.NUMA)
	}
	d.text(middle, y+34, 10, "normal", svgFaint, clip(sub, svgLeafW-4, 10))
	d.b.WriteString("</g>\n")
	d.gpuX[i] = middle
	return link{middle, y, d.gbsOf(g.PCI), false}
}

func (d *drawing) nics(n NICGroup) link {
	x, y := d.x, d.leafY
	d.x += svgLeafW + svgGap
	nodes := d.e.Node.NICs
	first := &nodes[n.NICs[0]]
	fill, stroke, extra := svgNIC, svgNICLn, ""
	bad := n.Role == RoleDown || n.Role == RoleBlocked
	var names []string
	for _, c := range n.NICs {
		names = append(names, nodes[c].Name+" "+nodes[c].BDF)
		if _, broken := d.faulty[nodes[c].Name]; broken {
			bad = true
		}
	}
	if n.Role != RoleRail {
		fill, stroke, extra = svgOff, svgEdge, ` stroke-dasharray="3 2"`
	}
	if bad {
		stroke, extra = svgBad, ` stroke-width="2.5"`
	}
	fmt.Fprintf(&d.b, "<g><title>%s</title>\n", html.EscapeString(strings.Join(names, "\n")))
	if len(n.NICs) > 1 {
		d.rect(x+3, y-3, svgLeafW, svgLeafH, 6, fill, stroke, extra)
	}
	d.rect(x, y, svgLeafW, svgLeafH, 6, fill, stroke, extra)
	middle := x + svgLeafW/2
	title, sub := first.Name, shortBDF(first.BDF)
	if len(n.NICs) > 1 {
		title = fmt.Sprintf("%d NICs", len(n.NICs))
		if isEFA(first.Vendor, first.Device) {
			title = fmt.Sprintf("%d EFA", len(n.NICs))
		}
		sub = shortBDF(first.BDF) + " …"
	}
	if sub == title {
		sub = ""
	}
	if n.Rate > 0 {
		sub = fmt.Sprintf("%d Gb/s", n.Rate/1000)
	}
	size := 12
	if len([]rune(title)) > 9 {
		size = 10
	}
	d.text(middle, y+16, size, "600", svgInk, clip(title, svgLeafW-4, size))
	d.text(middle, y+29, 10, "normal", svgFaint, clip(sub, svgLeafW-4, 10))
	tag := n.Role
	if tag == RoleBridge {
		tag = "NVSwitch mgmt"
	}
	if r, ok := d.rails[n.NICs[0]]; ok && n.Role == RoleRail {
		tag = fmt.Sprintf("rail %d", r)
		if last, ok := d.rails[n.NICs[len(n.NICs)-1]]; ok && last != r {
			tag = fmt.Sprintf("rails %d-%d", r, last)
		}
	}
	color := svgNICLn
	if n.Role != RoleRail {
		color = svgFaint
	}
	d.text(middle, y+42, 9, "normal", color, clip(tag, svgLeafW-2, 9))
	d.b.WriteString("</g>\n")
	return link{middle, y, d.gbsOf(first.PCI), bad}
}
