package launch

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var plotDir = flag.String("plot", "", "folder for agents.csv and agents.svg, which BenchmarkSwarm draws")

// swarmPoint is what was measured for one number of nodes: medians.
type swarmPoint struct {
	nodes  int
	roster float64 // seconds
	cpu    float64 // seconds of all cores until then
	memory float64 // KiB for each agent
}

// BenchmarkSwarm takes the time from the command until every agent has the roster, with all agents in this process: on
// two cores, which have to do the work of all hosts.
func BenchmarkSwarm(b *testing.B) {
	var points []swarmPoint
	for _, nodes := range []int{2, 8, 32, 64, 128, 256, 512, 1024} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			var roster, cpu, memory []float64
			for b.Loop() {
				s := runSwarm(b, nodes, 0)
				roster = append(roster, s.roster.Seconds())
				cpu = append(cpu, s.cpu.Seconds())
				memory = append(memory, float64(s.memory)/1024/float64(nodes))
			}
			p := swarmPoint{nodes, middle(roster), middle(cpu), middle(memory)}
			b.ReportMetric(p.roster, "s-to-roster")
			b.ReportMetric(p.cpu, "cpu-s")
			b.ReportMetric(p.memory, "KiB/agent")
			b.ReportMetric(0, "ns/op") // with the end of the job, which a crowded process makes long
			points = append(points, p)
		})
	}
	if *plotDir == "" {
		return
	}
	var csv strings.Builder
	csv.WriteString("nodes,seconds_to_roster,cpu_seconds,kib_per_agent\n")
	for _, p := range points {
		fmt.Fprintf(&csv, "%d,%.3f,%.3f,%.0f\n", p.nodes, p.roster, p.cpu, p.memory)
	}
	for name, text := range map[string]string{"agents.csv": csv.String(), "agents.svg": swarmSVG(points)} {
		if err := os.WriteFile(filepath.Join(*plotDir, name), []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

func middle(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// swarmSVG draws seconds over nodes, both logarithmic.
func swarmSVG(points []swarmPoint) string {
	const width, height, left, bottom, top, right = 640, 400, 70, 50, 40, 20
	x := func(nodes float64) float64 {
		return left + (width-left-right)*math.Log2(nodes/2)/math.Log2(1024.0/2)
	}
	y := func(seconds float64) float64 {
		return height - bottom - (height-top-bottom)*math.Log10(seconds/0.01)/math.Log10(10/0.01)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="DejaVu Sans, sans-serif" font-size="12" role="img">`+"\n", width, height)
	b.WriteString(`<title>Seconds until every agent has the roster, against the number of nodes</title><rect width="100%" height="100%" fill="white"/>` + "\n")
	for _, s := range []float64{0.01, 0.1, 1, 5, 10} {
		colour := "#ddd"
		if s == 5 {
			colour = "#c44"
		}
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s"/><text x="%d" y="%.1f" text-anchor="end">%g s</text>`+"\n",
			left, width-right, y(s), y(s), colour, left-6, y(s)+4, s)
	}
	var line []string
	for _, p := range points {
		px, py := x(float64(p.nodes)), y(p.roster)
		line = append(line, fmt.Sprintf("%.1f,%.1f", px, py))
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text><circle cx="%.1f" cy="%.1f" r="3.5" fill="#26c"/><text x="%.1f" y="%.1f" text-anchor="middle" fill="#26c">%.2f</text>`+"\n",
			px, height-bottom+18, p.nodes, px, py, px, py-9, p.roster)
	}
	fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#26c" stroke-width="2"/>`+"\n", strings.Join(line, " "))
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">nodes, all in one process on two cores</text><text x="%d" y="20" font-size="14">Seconds until every agent has the roster (red: the bound of 5 s at 1,024)</text></svg>`+"\n",
		(width+left)/2, height-10, left)
	return b.String()
}
