package sim

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mkrun/mkrun/internal/plan"
)

// Sizes of the picture in px.
const (
	pageWidth  = 1280
	plotLeft   = 118
	plotRight  = pageWidth - 24
	titleAt    = 34
	plotTop    = 108
	rankGap    = 6
	nodeGap    = 14
	legendRow  = 20
	maxDrawn   = 32     // ranks; of a larger world the first are drawn
	mostTold   = 20_000 // tasks; in a larger picture they are not told one by one in tooltips
	charWidth  = 0.6
	fontFamily = "DejaVu Sans, Verdana, sans-serif"
)

// laneHeight is how high the lane of a role is; other roles are as high as a transfer's.
var laneHeight = map[plan.Role]float64{plan.RoleCompute: 22, plan.RoleIntra: 6, plan.RoleSend: 6, plan.RoleReduce: 6}

// WriteSVG draws what was simulated: ranks and their roles from top to bottom, simulated time from left to right.
// A transfer has the colour of the rows it carries, and so have the segments that it feeds (or that feed it). The
// arrows are the chain that ends last.
func (r *Result) WriteSVG(w io.Writer, p *plan.Plan, dtype string) error {
	d := &drawing{r: r, p: p, dtype: dtype, ranks: min(len(p.Ranks), maxDrawn)}
	d.layOut()
	d.draw()
	if _, err := io.WriteString(w, d.String()); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	return nil
}

type drawing struct {
	strings.Builder
	r     *Result
	p     *plan.Plan
	dtype string
	ranks int // drawn
	roles []plan.Role
	top   [][]float64 // of each rank's lanes, by place in roles
	end   float64     // of the last lane
	last  Time        // right edge of the axis
	step  Time        // between its ticks

	arrows int // drawn
}

func (d *drawing) layOut() {
	for role := range plan.NumRoles {
		if d.r.Workers[role] > 0 {
			d.roles = append(d.roles, role)
		}
	}
	// Transfers first, so that what arrives at a node stands above what it feeds.
	slices.SortStableFunc(d.roles, func(a, b plan.Role) int { return cmp.Compare(laneOrder(a), laneOrder(b)) })
	y := float64(plotTop)
	for rank := range d.ranks {
		if rank > 0 && d.p.World.NodeOf(rank) != d.p.World.NodeOf(rank-1) {
			y += nodeGap
		}
		var tops []float64
		for _, role := range d.roles {
			tops = append(tops, y)
			y += d.height(role) + 1
		}
		d.top = append(d.top, tops)
		d.end = y - 1
		y += rankGap
	}
	d.last = max(d.r.Total, 1)
	d.step = ticks(d.last)
}

func laneOrder(role plan.Role) int {
	return slices.Index([]plan.Role{plan.RoleSend, plan.RoleIntra, plan.RoleReduce, plan.RoleCompute}, role)
}

// height of a role's lane: the fewer ranks, the higher.
func (d *drawing) height(role plan.Role) float64 {
	h, ok := laneHeight[role]
	if !ok {
		h = laneHeight[plan.RoleIntra]
	}
	return h * min(2.2, max(1, 24/float64(d.ranks)))
}

// ticks is a round step that gives an axis of about ten.
func ticks(last Time) Time {
	step := Time(1)
	for step*10 < last/10 {
		step *= 10
	}
	for _, f := range []Time{1, 2, 5, 10} {
		if step*f >= last/12 {
			return step * f
		}
	}
	return step * 10
}

func (d *drawing) x(t Time) float64 {
	return plotLeft + float64(t)/float64(d.last)*(plotRight-plotLeft)
}

func (d *drawing) draw() {
	legend := d.end + 46
	height := legend + 2*legendRow + 16
	d.f(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" font-family="%s">`+"\n",
		pageWidth, height, pageWidth, height, fontFamily)
	d.f(`<title>%s</title>`+"\n", escape(d.title()))
	d.f(`<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0,0.5 L8,4 L0,7.5 z" fill="#111"/></marker>` +
		`<pattern id="wait" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="5" height="5" fill="#fafbfc"/><rect width="1.2" height="5" fill="#d5d9df"/></pattern></defs>` + "\n")
	d.f(`<rect width="%d" height="%.0f" fill="#fff"/>`+"\n", pageWidth, height)
	d.heading()
	d.axis()
	d.lanes()
	d.exposed()
	d.path()
	d.legend(legend)
	d.f("</svg>\n")
}

func (d *drawing) f(format string, args ...any) { fmt.Fprintf(&d.Builder, format, args...) }

func (d *drawing) text(x, y, size float64, anchor, fill, more, text string) {
	d.f(`<text x="%.1f" y="%.1f" font-size="%g" text-anchor="%s" fill="%s"%s>%s</text>`+"\n", x, y, size, anchor, fill, more, escape(text))
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // into memory: never fails
	return b.String()
}

func (d *drawing) title() string {
	s := d.r.Options.Shape
	return fmt.Sprintf("%s  M=%d N=%d K=%d %s on %v", d.p.Operator, s.M, s.N, s.K, d.dtype, d.p.World)
}

func (d *drawing) heading() {
	d.text(24, titleAt, 20, "start", "#111", ` font-weight="bold"`, d.title())
	verdict := fmt.Sprintf("%v a call: the product alone %v, %.0f %% exposed", d.r.Call, d.r.Product, 100*d.r.Exposed)
	if d.r.Options.Epochs > 1 {
		verdict = fmt.Sprintf("%d calls, ", d.r.Options.Epochs) + verdict
	}
	d.text(24, titleAt+22, 14, "start", "#111", "", verdict)
	var split []string
	for _, role := range []plan.Role{plan.RoleCompute, plan.RoleIntra, plan.RoleSend, plan.RoleReduce} {
		if n := d.r.Workers[role]; n > 0 {
			split = append(split, fmt.Sprintf("%d %v", n, role))
		}
	}
	note := fmt.Sprintf("Predicted by simulation on %s, not measured; workers per rank: %s", d.r.Options.Hardware.Name, strings.Join(split, ", "))
	if d.p.Algorithm != "" {
		note += "; algorithm " + d.p.Algorithm
	}
	if note += fmt.Sprintf("; %d chunk", d.p.Chunks); d.p.Chunks != 1 {
		note += "s"
	}
	note += " per shard"
	if d.ranks < len(d.p.Ranks) {
		note += fmt.Sprintf("; the first %d of %d ranks", d.ranks, len(d.p.Ranks))
	}
	d.text(24, titleAt+40, 11, "start", "#5b616b", "", note)
}

// axis draws time.
func (d *drawing) axis() {
	top, bottom := float64(plotTop-6), d.end+6
	unit, name := Microsecond, "us"
	if d.step >= Millisecond/10 {
		unit, name = Millisecond, "ms"
	}
	digits := max(0, int(math.Ceil(-math.Log10(float64(d.step)/float64(unit))-1e-9)))
	for t := Time(0); t <= d.last; t += d.step {
		x := d.x(t)
		d.f(`<path class="tick" d="M%.1f,%.1f V%.1f" stroke="#e3e6ea" stroke-width="1"/>`+"\n", x, top, bottom)
		label := fmt.Sprintf("%.*f", digits, float64(t)/float64(unit))
		if t == 0 {
			label = "0 " + name
		}
		d.text(x, bottom+14, 11, "middle", "#5b616b", "", label)
	}
}

// exposed marks the time that is not hidden behind the product.
func (d *drawing) exposed() {
	if !d.exposes() {
		return
	}
	top, bottom := float64(plotTop-6), d.end+6
	x := d.x(d.r.Product)
	d.f(`<rect class="exposed" x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#ea580c" fill-opacity="0.08"/>`+"\n", x, top, d.x(d.r.Total)-x, bottom-top)
	d.f(`<path d="M%.1f,%.1f V%.1f" stroke="#c2410c" stroke-width="1.4" stroke-dasharray="4 3"/>`+"\n", x, top, bottom)
	d.text(min(x, plotRight-60), top-5, 11, "middle", "#c2410c", "", "product alone")
}

func (d *drawing) exposes() bool {
	return d.r.Options.Epochs == 1 && d.r.Product > 0 && d.r.Product < d.r.Total
}

// lanes draws the tasks of each rank and role.
func (d *drawing) lanes() {
	for rank := range d.ranks {
		node, local := d.p.World.Place(rank)
		top := d.top[rank][0]
		if local == 0 {
			last := min(rank+d.p.World.PPN[node], d.ranks) - 1
			bottom := d.top[last][len(d.roles)-1] + d.height(d.roles[len(d.roles)-1])
			middle := (top + bottom) / 2
			d.f(`<path d="M44,%.1f H40 V%.1f H44" fill="none" stroke="#8a9099" stroke-width="1"/>`+"\n", top, bottom)
			if bottom-top >= 48 {
				d.f(`<text x="32" y="%.1f" font-size="12" text-anchor="middle" fill="#111" transform="rotate(-90 32 %.1f)">node %d</text>`+"\n", middle, middle, node)
			} else {
				d.text(36, middle+4, 12, "end", "#111", "", fmt.Sprint(node))
			}
		}
		bottom := d.top[rank][len(d.roles)-1] + d.height(d.roles[len(d.roles)-1])
		d.f(`<rect x="52" y="%.1f" width="9" height="%.1f" fill="%s"/>`+"\n", top, bottom-top, d.colour(rank))
		d.text(66, (top+bottom)/2+4, 11, "start", "#111", "", fmt.Sprintf("rank %d", rank))
		for i, role := range d.roles {
			d.f(`<rect class="lane" x="%d" y="%.1f" width="%d" height="%.1f" fill="#f0f1f4"/>`+"\n", plotLeft, d.top[rank][i], plotRight-plotLeft, d.height(role))
			d.lane(rank, role, d.top[rank][i])
		}
	}
}

// lane draws one role of one rank: its workers from top to bottom. The compute lane has room for all workers, since
// those of other roles join it.
func (d *drawing) lane(rank int, role plan.Role, y float64) {
	first, count := d.workers(role)
	each := d.height(role) / float64(count)
	var waits strings.Builder
	for i := d.from(rank, role); i < len(d.r.Spans) && d.r.Spans[i].Rank == rank && d.r.Spans[i].Role == role; i++ {
		s := &d.r.Spans[i]
		var work strings.Builder
		for _, b := range s.Blocks {
			from, width := d.x(b.From), d.x(b.To)-d.x(b.From)
			top, h := y+float64(b.First-first)*each, float64(b.Last-b.First+1)*each
			switch {
			case !b.Waited:
				box(&work, from, top, width-min(0.5, width/5), h)
			case width >= 1:
				box(&waits, from, top, width, h)
			}
		}
		if work.Len() > 0 {
			title := ""
			if len(d.r.Spans) <= mostTold {
				title = "<title>" + escape(d.tell(*s)) + "</title>"
			}
			d.f(`<path class="%v" fill="%s" d="%s">%s</path>`+"\n", role, d.colourOf(*s), work.String(), title)
		}
	}
	if waits.Len() > 0 {
		d.f(`<path class="wait" fill="url(#wait)" d="%s"/>`+"\n", waits.String())
	}
}

// from is the index of the first span of a role of a rank: they are sorted.
func (d *drawing) from(rank int, role plan.Role) int {
	i, _ := slices.BinarySearchFunc(d.r.Spans, Span{Rank: rank, Role: role}, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Epoch, b.Epoch))
	})
	return i
}

// box adds a rectangle to the data of a path.
func box(b *strings.Builder, x, y, w, h float64) {
	fmt.Fprintf(b, "M%s %sh%sv%sh-%sz", short(x), short(y), short(w), short(h), short(w))
}

// short writes a coordinate to a tenth of a px.
func short(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// workers are those that may have a place in a role's lane.
func (d *drawing) workers(role plan.Role) (first, count int) {
	for r := range role {
		first += d.r.Workers[r]
	}
	if role != plan.RoleCompute || !d.r.Options.Hardware.Join {
		return first, d.r.Workers[role]
	}
	for _, n := range d.r.Workers {
		count += n
	}
	return 0, count
}

// tell says in words what a span is, and what it waited for.
func (d *drawing) tell(s Span) string {
	t := d.p.Ranks[s.Rank].Queues[s.Role][s.Index]
	text := fmt.Sprintf("%v %d: %s, %v to %v", s.Role, s.Index, d.p.Describe(t), s.Begun, s.Ended)
	if s.Waited {
		text += fmt.Sprintf("; from %v waited for %q of rank %d", s.Claimed, d.p.Flags[s.For].Name, d.r.Spans[s.By].Rank)
	}
	return text
}

// colourOf is the colour of the shard that a task's rows are in.
func (d *drawing) colourOf(s Span) string {
	t := &d.p.Ranks[s.Rank].Queues[s.Role][s.Index]
	rows := t.Dst.Rows
	switch {
	case rows.From.Den == 0:
		return "#8a9099"
	case rows.From.Num == 0 && rows.To.Num == rows.To.Den: // rows of all shards: what matters is whose part of the sum it is
		return d.colour(s.Rank)
	}
	return d.colour(int(uint64(rows.From.Num) * uint64(len(d.p.Ranks)) / uint64(rows.From.Den)))
}

// colour of a rank's shard: a hue of its own in a small world; in a larger one a hue for each local rank, lighter on
// every second node.
func (d *drawing) colour(rank int) string {
	hues := [...]float64{212, 28, 150, 340, 265, 50, 185, 0, 95, 310}
	size := len(d.p.Ranks)
	node, local := d.p.World.Place(min(rank, size-1))
	light := [...]float64{0.42, 0.66}[node%2]
	if size <= len(hues) {
		return hsl(hues[rank%len(hues)], 0.62, light)
	}
	turn := 17 * float64(local/len(hues)+node/2)
	return hsl(math.Mod(hues[local%len(hues)]+turn, 360), 0.62, light)
}

// hsl is the colour as #rrggbb.
func hsl(h, s, l float64) string {
	channel := func(n float64) int {
		k := math.Mod(n+h/30, 12)
		return int(math.Round(255 * (l - s*min(l, 1-l)*max(-1, min(k-3, 9-k, 1)))))
	}
	return fmt.Sprintf("#%02x%02x%02x", channel(0), channel(8), channel(4))
}

// path draws the chain that ends last.
func (d *drawing) path() {
	place := func(s Span) (y float64, ok bool) {
		i := slices.Index(d.roles, s.Role)
		if s.Rank >= d.ranks || i < 0 {
			return 0, false
		}
		return d.top[s.Rank][i] + d.height(s.Role)/2, true
	}
	for i := 1; i < len(d.r.Path); i++ {
		from, to := d.r.Spans[d.r.Path[i-1]], d.r.Spans[d.r.Path[i]]
		y0, ok0 := place(from)
		y1, ok1 := place(to)
		if !ok0 || !ok1 || y0 == y1 {
			continue
		}
		d.arrows++
		d.f(`<path class="path" d="M%.1f,%.1f L%.1f,%.1f" stroke="#111" stroke-width="1.3" fill="none" marker-end="url(#arrow)"/>`+"\n",
			d.x(from.Ended), y0, d.x(max(to.Begun, from.Ended)), y1)
	}
}

// legend says what is what.
func (d *drawing) legend(y float64) {
	x := float64(plotLeft)
	d.text(24, y, 12, "start", "#111", ` font-weight="bold"`, "Lanes")
	var names []string
	for _, role := range d.roles {
		names = append(names, map[plan.Role]string{
			plan.RoleCompute: "compute (segments of the product)", plan.RoleIntra: "intra (copies within the node)",
			plan.RoleSend: "send (to other nodes)", plan.RoleReduce: "reduce (sums of partial results)",
		}[role])
	}
	d.text(x, y, 12, "start", "#111", "", "of each rank, from top to bottom: "+strings.Join(names, ", "))
	y += legendRow
	d.text(24, y, 12, "start", "#111", ` font-weight="bold"`, "Colours")
	d.text(x, y, 12, "start", "#111", "", "the rank whose rows they are, in transfers and in the segments that use or make them (of all rows at once: the rank at work); height: how many of the workers")
	y += legendRow
	d.text(24, y, 12, "start", "#111", ` font-weight="bold"`, "Marks")
	mark := func(draw, text string) {
		d.f(draw+"\n", x, y-9)
		d.text(x+28, y, 12, "start", "#111", "", text)
		x += 28 + charWidth*12*float64(len(text)) + 22
	}
	mark(`<rect x="%.1f" y="%.1f" width="22" height="11" fill="url(#wait)" stroke="#c9cdd4" stroke-width="0.6"/>`, "waits for a flag")
	mark(`<rect x="%.1f" y="%.1f" width="22" height="11" fill="#f0f1f4"/>`, "idle")
	if d.exposes() {
		mark(`<rect x="%.1f" y="%.1f" width="22" height="11" fill="#ea580c" fill-opacity="0.12"/>`, "longer than the product alone")
	}
	if d.arrows > 0 {
		mark(`<path transform="translate(%.1f,%.1f)" d="M0,6 H20" stroke="#111" stroke-width="1.3" marker-end="url(#arrow)"/>`, "the chain that ends last")
	}
}
