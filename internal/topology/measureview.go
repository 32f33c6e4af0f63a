package topology

import (
	"fmt"
	"slices"
	"strings"
)

// heat is the colour of a figure beside the best of its kind.
func heat(value, best float64) string {
	switch {
	case value <= 0 || best <= 0:
		return colDim
	case value >= 0.9*best:
		return colGreen
	case value >= slowShare*best:
		return colYellow
	}
	return colRed
}

// WriteMeasured writes the figures as heat maps: a row is where bytes come from, a column where they go.
func (e *Eval) WriteMeasured(b *strings.Builder, s Style) {
	m := e.Node.Measured
	if m == nil {
		return
	}
	paths := map[[2]int]*MeasuredPath{}
	var gpus []int
	for i := range m.Paths {
		p := &m.Paths[i]
		paths[[2]int{p.From, p.To}] = p
		gpus = append(gpus, p.From, p.To)
	}
	slices.Sort(gpus)
	gpus = slices.Compact(gpus)
	if len(paths) > 0 {
		for _, h := range heatMaps {
			if h.skip(m) {
				continue
			}
			b.WriteString(s.paint(colBold, h.title) + "\n")
			s.table(b, h.rows(gpus, paths), "  ")
			b.WriteByte('\n')
		}
	}
	m.writeFans(b, s)
	if len(m.Hosts) > 0 {
		e.writeHostLinks(b, s)
	}
	b.WriteString(s.paint(colDim, dataVerdict(m)) + "\n")
}

// heatMap is one figure of all pairs.
type heatMap struct {
	title  string
	format string
	value  func(*MeasuredPath) float64
	least  bool // the smallest is the best
}

var heatMaps = []heatMap{
	{"GB/s by copy engine, one direction alone", "%.0f", func(p *MeasuredPath) float64 { return p.CopyGBs }, false},
	{"GB/s by copy engine, each of both directions at once", "%.0f", func(p *MeasuredPath) float64 { return p.BothGBs }, false},
	{"GB/s by a kernel that stores", "%.0f", func(p *MeasuredPath) float64 { return p.StoreGBs }, false},
	{"microseconds until a stored word is seen", "%.2f", func(p *MeasuredPath) float64 { return p.SignalUS }, true},
	{"microseconds to load a word", "%.2f", func(p *MeasuredPath) float64 { return p.LoadUS }, true},
}

func (h *heatMap) skip(m *Measured) bool {
	return !slices.ContainsFunc(m.Paths, func(p MeasuredPath) bool { return h.value(&p) > 0 })
}

func (h *heatMap) rows(gpus []int, paths map[[2]int]*MeasuredPath) [][]cell {
	best := 0.0
	for _, p := range paths {
		if v := h.value(p); v > 0 && (best == 0 || h.least && v < best || !h.least && v > best) {
			best = v
		}
	}
	head := []cell{{"", ""}}
	for _, g := range gpus {
		head = append(head, cell{fmt.Sprintf("GPU%d", g), colBold})
	}
	rows := [][]cell{head}
	for _, from := range gpus {
		row := []cell{{fmt.Sprintf("GPU%d", from), colBold}}
		for _, to := range gpus {
			row = append(row, h.cell(paths[[2]int{from, to}], from == to, best))
		}
		rows = append(rows, row)
	}
	return rows
}

func (h *heatMap) cell(p *MeasuredPath, self bool, best float64) cell {
	switch {
	case self:
		return cell{"X", colDim}
	case p == nil:
		return cell{"-", colDim}
	case p.Problem != "":
		return cell{"failed", colRed}
	}
	v := h.value(p)
	if v <= 0 {
		return cell{"-", colDim}
	}
	text := fmt.Sprintf(h.format, v)
	if p.wrong() > 0 {
		return cell{text + " WRONG", colRed}
	}
	if h.least {
		return cell{text, heat(best, v)}
	}
	return cell{text, heat(v, best)}
}

func (e *Eval) writeHostLinks(b *strings.Builder, s Style) {
	hosts := e.Node.Measured.Hosts
	best := MeasuredHost{}
	for _, h := range hosts {
		best.ToDeviceGBs, best.ToHostGBs = max(best.ToDeviceGBs, h.ToDeviceGBs), max(best.ToHostGBs, h.ToHostGBs)
		if h.SignalUS > 0 && (best.SignalUS == 0 || h.SignalUS < best.SignalUS) {
			best.SignalUS = h.SignalUS
		}
	}
	b.WriteString(s.paint(colBold, "host memory: GB/s by copy engine, and microseconds of a signal from the GPU to the CPU and back") + "\n")
	rows := [][]cell{{{"", ""}, {"to GPU", colBold}, {"to host", colBold}, {"both at once", colBold}, {"signal", colBold}}}
	for _, h := range hosts {
		name := cell{fmt.Sprintf("GPU%d", h.GPU), colBold}
		if h.Problem != "" {
			rows = append(rows, []cell{name, {"failed", colRed}})
			continue
		}
		signal := cell{fmt.Sprintf("%.2f", h.SignalUS), heat(best.SignalUS, h.SignalUS)}
		if h.wrong() > 0 {
			signal = cell{signal.text + " WRONG", colRed}
		}
		rows = append(rows, []cell{name,
			{fmt.Sprintf("%.1f", h.ToDeviceGBs), heat(h.ToDeviceGBs, best.ToDeviceGBs)}, {fmt.Sprintf("%.1f", h.ToHostGBs), heat(h.ToHostGBs, best.ToHostGBs)},
			{fmt.Sprintf("%.1f + %.1f", h.BothToDeviceGBs, h.BothToHostGBs), ""}, signal})
	}
	s.table(b, rows, "  ")
}

// dataVerdict says how much data was checked, and whether it was right.
func dataVerdict(m *Measured) string {
	var words, wrong uint64
	transfers, failed := 0, 0
	for i := range m.Paths {
		p := &m.Paths[i]
		n := 1
		if p.Direct {
			n = 3
		}
		if p.Problem != "" {
			failed++
			continue
		}
		transfers += n
		words += uint64(n) * p.Words
		wrong += p.wrong()
	}
	for i := range m.Fans {
		transfers++
		words += m.Fans[i].Words
		wrong += m.Fans[i].Wrong
	}
	for i := range m.Hosts {
		h := &m.Hosts[i]
		if h.Problem != "" {
			failed++
			continue
		}
		transfers += 2
		words += 2 * h.Words
		wrong += h.wrong()
	}
	text := fmt.Sprintf("%d transfers, %.1f GB, were read back and compared: ", transfers, float64(words)*8/1e9)
	if wrong > 0 {
		text += fmt.Sprintf("%d words are WRONG", wrong)
	} else {
		text += "all right"
	}
	if failed > 0 {
		text += fmt.Sprintf("; %d links could not be measured", failed)
	}
	return text
}
