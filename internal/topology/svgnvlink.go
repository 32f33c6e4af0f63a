package topology

import (
	"fmt"
	"slices"
)

// nvlinks draws the NVLinks below the GPUs: a bar for GPUs that all reach each other alike, arcs for
// any other plan. It returns the lowest point.
func (d *drawing) nvlinks(y float64) float64 {
	bottom := y
	rowY := y + 30
	for _, island := range d.islands() {
		if len(island) < 2 && switchLinks(&d.e.Node.GPUs[island[0]]) == 0 {
			continue
		}
		if d.uniform(island) {
			d.bar(island, y, rowY)
			bottom = max(bottom, rowY+svgBarH)
			rowY += svgBarH + 12
			if !d.overlaps(island) {
				rowY -= svgBarH + 12
			}
			continue
		}
		bottom = max(bottom, d.arcs(island, y))
	}
	return bottom
}

// islands are positions of GPUs, those without links included when others have some.
func (d *drawing) islands() [][]int {
	at := map[int]int{}
	linked := false
	for i, g := range d.e.Node.GPUs {
		at[g.Index] = i
		linked = linked || len(g.Links) > 0
	}
	if !linked {
		return nil
	}
	var list [][]int
	for _, island := range d.e.Islands() {
		var positions []int
		for _, index := range island {
			if _, drawn := d.gpuX[at[index]]; drawn {
				positions = append(positions, at[index])
			}
		}
		if len(positions) > 0 {
			list = append(list, positions)
		}
	}
	return list
}

// overlaps says whether another island's GPUs stand between those of this one.
func (d *drawing) overlaps(island []int) bool {
	lo, hi := d.span(island)
	for i, x := range d.gpuX {
		if x > lo && x < hi && !slices.Contains(island, i) {
			return true
		}
	}
	return false
}

func (d *drawing) span(island []int) (lo, hi float64) {
	lo, hi = d.gpuX[island[0]], d.gpuX[island[0]]
	for _, i := range island {
		lo, hi = min(lo, d.gpuX[i]), max(hi, d.gpuX[i])
	}
	return lo, hi
}

// uniform says whether an island is better drawn as a bar: over switches, or all to all with more
// links than an eye can follow.
func (d *drawing) uniform(island []int) bool {
	if switchLinks(&d.e.Node.GPUs[island[0]]) > 0 {
		return true
	}
	if len(island) < 5 {
		return false
	}
	first := d.e.nv[island[0]][island[1]]
	for _, i := range island {
		for _, j := range island {
			if i != j && (d.e.nv[i][j] != first || first == 0) {
				return false
			}
		}
	}
	return true
}

func (d *drawing) bar(island []int, y, barY float64) {
	lo, hi := d.span(island)
	lo, hi = lo-svgLeafW/2, hi+svgLeafW/2
	best, usual, gbs := 0, 0, 0.0
	counts := map[int]int{}
	total := func(i int) int {
		sum := 0
		for _, l := range d.e.Node.GPUs[i].Links {
			sum += l.Count
		}
		return sum
	}
	for _, i := range island {
		counts[total(i)]++
		best = max(best, total(i))
	}
	for n, times := range counts {
		if times > counts[usual] || times == counts[usual] && n > usual {
			usual = n
		}
	}
	for _, i := range island {
		n := total(i)
		per := d.e.NVLinkGBs(i)
		gbs = max(gbs, float64(n)*per)
		color := svgGPULn
		_, bad := d.faulty[fmt.Sprintf("GPU%d", d.e.Node.GPUs[i].Index)]
		if n < usual || bad && n < best {
			color = svgBad
		}
		fmt.Fprintf(&d.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n", d.gpuX[i], y, d.gpuX[i], barY, color, nvlinkWidth(float64(n)*per))
		if n < usual {
			d.anchored("start", d.gpuX[i]+8, y+18, 10, "600", svgBad, fmt.Sprintf("%d of %d", n, usual))
		}
	}
	d.rect(lo, barY, hi-lo, svgBarH, 6, "#d3ecb4", svgGPULn, "")
	first := &d.e.Node.GPUs[island[0]]
	name := "NVSwitch"
	switch {
	case switchLinks(first) == 0 && d.e.xgmi(island[0]):
		name = "xGMI, all to all"
	case switchLinks(first) == 0:
		name = "NVLink, all to all"
	default:
		if n := len(d.e.Node.NVSwitches); n > 1 {
			name = fmt.Sprintf("%d NVSwitches", n)
		}
	}
	label := fmt.Sprintf("%s: %d links per GPU", name, usual)
	if !d.e.xgmi(island[0]) {
		label += fmt.Sprintf(", %.0f GB/s each way", gbs)
	}
	d.text((lo+hi)/2, barY+17, 12, "600", "#2f5d0a", clip(label, hi-lo-8, 12))
}

// arcs draws one bow for each pair, as deep as the two are apart.
func (d *drawing) arcs(island []int, y float64) float64 {
	bottom := y
	for k, i := range island {
		for _, j := range island[:k] {
			n := d.e.nv[i][j]
			if n == 0 {
				continue
			}
			x1, x2 := d.gpuX[j], d.gpuX[i]
			if x1 > x2 {
				x1, x2 = x2, x1
			}
			depth := min(120, 16+(x2-x1)*0.16)
			gbs := float64(n) * d.e.NVLinkGBs(i)
			fmt.Fprintf(&d.b, `<path d="M%.1f %.1f C%.1f %.1f %.1f %.1f %.1f %.1f" fill="none" stroke="%s" stroke-opacity="0.75" stroke-width="%.1f"><title>%d NVLinks</title></path>`+"\n",
				x1, y, x1, y+depth, x2, y+depth, x2, y, svgGPULn, nvlinkWidth(gbs), n)
			d.text((x1+x2)/2, y+depth*0.75+4, 10, "600", "#2f5d0a", fmt.Sprint(n))
			bottom = max(bottom, y+depth*0.75+8)
		}
	}
	return bottom
}
