package bench

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// Sizes of the picture in px.
const (
	pageWidth   = 1180
	plotLeft    = 70
	plotRight   = pageWidth - 24
	panelHeight = 220
	panelTop    = 118
	panelGap    = 96
	uprightGap  = 140 // where there are so many rows that their names stand upright
	roomForName = 76  // of a row
)

// series is what is drawn of every row.
type series struct {
	name   string
	colour string
	value  func(*Row) (float64, bool)
}

var colours = map[string]string{"ours": "#1d6fd1", "product": "#9aa3af", "nccl": "#c2701c", "asynctp": "#2f9e68", "best": "#c2701c", "launch": "#6b4bc2"}

// WriteSVG draws TFLOP/s of a rank for every shape, and, beside baselines, how long ours takes over the best of them and
// over the product alone.
func (d *Document) WriteSVG(w io.Writer) error {
	p := picture{d: d, y: panelTop}
	p.draw()
	if _, err := io.WriteString(w, p.finish()); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	return nil
}

type picture struct {
	strings.Builder
	d *Document
	y float64
}

func (p *picture) draw() {
	rate := func(f func(*Row) Figure) func(*Row) (float64, bool) {
		return func(r *Row) (float64, bool) {
			figure := f(r)
			if !figure.ok() {
				return 0, false
			}
			return r.rate(figure), true
		}
	}
	bars := []series{{"ours", colours["ours"], rate(func(r *Row) Figure { return r.Ours })}}
	if len(p.d.Versus) > 0 {
		bars = append(bars, series{"launch", colours["launch"], rate(func(r *Row) Figure { return r.Launch })})
		for _, name := range p.d.Versus {
			bars = append(bars, series{name, colours[name], rate(func(r *Row) Figure { return r.Baselines[name] })})
		}
		bars = append(bars, series{"product", colours["product"], rate(func(r *Row) Figure {
			if r.Product == nil {
				return Figure{}
			}
			return *r.Product
		})})
	}
	p.panel("TFLOP/s of a rank (higher is better)", bars, 0)
	if len(p.d.Versus) == 0 {
		return
	}
	of := func(get func(*Row) *float64) func(*Row) (float64, bool) {
		return func(r *Row) (float64, bool) {
			if v := get(r); v != nil {
				return *v, true
			}
			return 0, false
		}
	}
	p.panel("time of ours, as a ratio (lower is better)", []series{
		{"over the best baseline", colours["best"], of(func(r *Row) *float64 { return r.RatioBest })},
		{"over the product alone", colours["product"], of(func(r *Row) *float64 { return r.RatioGEMM })},
	}, 1)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // into memory: never fails
	return b.String()
}

func (p *picture) text(x, y, size float64, anchor, fill, more, text string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" font-size="%g" text-anchor="%s" fill="%s"%s>%s</text>`+"\n", x, y, size, anchor, fill, more, escape(text))
}

// panel draws a group of bars for each row, with a line across at a value that means something; 0: none.
func (p *picture) panel(title string, list []series, line float64) {
	highest := line * 1.1
	for i := range p.d.Rows {
		for _, s := range list {
			if v, ok := s.value(&p.d.Rows[i]); ok {
				highest = max(highest, v)
			}
		}
	}
	step := tick(highest)
	highest = step * max(1, math.Ceil(highest/step*1.0001))
	top, bottom := p.y, p.y+panelHeight
	at := func(v float64) float64 { return bottom - v/highest*panelHeight }
	p.text(24, top-16, 13, "start", "#111", ` font-weight="bold"`, title)
	x := float64(plotLeft) + 360
	for _, s := range list {
		fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="12" height="12" fill="%s"/>`+"\n", x, top-27, s.colour)
		p.text(x+18, top-16, 12, "start", "#111", "", s.name)
		x += 18 + 7.2*float64(len(s.name)) + 24
	}
	for v := 0.0; v <= highest*1.0001; v += step {
		fmt.Fprintf(p, `<path d="M%d,%.1f H%d" stroke="#e3e6ea"/>`+"\n", plotLeft, at(v), plotRight)
		p.text(plotLeft-8, at(v)+4, 11, "end", "#5b616b", "", fmt.Sprintf("%.4g", v))
	}
	width := p.rowWidth()
	for i := range p.d.Rows {
		r := &p.d.Rows[i]
		left := plotLeft + float64(i)*width
		bar := min(30, width*0.8/float64(len(list)))
		start := left + (width-bar*float64(len(list)))/2
		for j, s := range list {
			v, ok := s.value(r)
			x := start + float64(j)*bar
			if !ok {
				p.text(x+bar/2, bottom-4, 10, "middle", "#b42318", "", "x")
				continue
			}
			label := fmt.Sprintf("%s %s: %.4g", r.sizes(), s.name, v)
			fmt.Fprintf(p, `<rect class="bar" x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"><title>%s</title></rect>`+"\n",
				x+1, at(v), max(1, bar-2), bottom-at(v), s.colour, escape(label))
			if bar >= 22 {
				p.text(x+bar/2, at(v)-4, 9, "middle", "#3a3f47", "", fmt.Sprintf("%.3g", v))
			}
		}
		p.labels(left+width/2, bottom, width, r)
	}
	if line > 0 {
		fmt.Fprintf(p, `<path d="M%d,%.1f H%d" stroke="#b42318" stroke-dasharray="4 3"/>`+"\n", plotLeft, at(line), plotRight)
	}
	p.y = bottom + p.gap()
}

func (p *picture) rowWidth() float64 {
	return float64(plotRight-plotLeft) / float64(max(1, len(p.d.Rows)))
}

// gap is the room under a panel.
func (p *picture) gap() float64 {
	if p.rowWidth() < roomForName {
		return uprightGap
	}
	return panelGap
}

// labels names a row, in as many lines as there is room for; many rows are named upright.
func (p *picture) labels(x, bottom, width float64, r *Row) {
	if width >= roomForName {
		p.text(x, bottom+16, 11, "middle", "#111", "", fmt.Sprintf("M %d", r.Shape.M))
		p.text(x, bottom+30, 11, "middle", "#5b616b", "", fmt.Sprintf("N %d", r.Shape.N))
		p.text(x, bottom+44, 11, "middle", "#5b616b", "", fmt.Sprintf("K %d", r.Shape.K))
		return
	}
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" font-size="9" text-anchor="end" fill="#111" transform="rotate(-60 %.1f %.1f)">%s</text>`+"\n",
		x+3, bottom+12, x+3, bottom+12, escape(fmt.Sprintf("%dx%dx%d", r.Shape.M, r.Shape.N, r.Shape.K)))
}

// tick is a round step that gives an axis of about five.
func tick(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(highest)))
	for _, f := range []float64{0.1, 0.2, 0.5, 1, 2} {
		if highest/(step*f) <= 6 {
			return step * f
		}
	}
	return step * 2
}

// finish puts the head around what was drawn.
func (p *picture) finish() string {
	d := p.d
	height := p.y - 32
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" font-family="DejaVu Sans, Verdana, sans-serif">`+"\n",
		pageWidth, height, pageWidth, height)
	title := fmt.Sprintf("%s %s, %d ranks, engine %s", d.Operator, d.DType, d.World.Size, d.Engine)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"%d\" height=\"%.0f\" fill=\"#fff\"/>\n", escape(title), pageWidth, height)
	head := picture{d: d}
	head.text(24, 34, 20, "start", "#111", ` font-weight="bold"`, title)
	note := fmt.Sprintf("%s; %s; median of %d calls, the slower rank; %s", d.Machine, d.Date, d.Calls, d.Software)
	if len(d.Versus) > 0 {
		note += "; " + loopText(d.Loop)
	}
	head.text(24, 56, 11, "start", "#5b616b", "", note)
	b.WriteString(head.String())
	b.WriteString(p.String())
	b.WriteString("</svg>\n")
	return b.String()
}
