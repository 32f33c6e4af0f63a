package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// BenchmarkStart measures from the command to the first barrier that all ranks have passed: agents, keepers, ranks,
// gossip, roster and sessions. The median over the runs is reported as start-ms.
func BenchmarkStart(b *testing.B) {
	for _, world := range []struct{ nodes, ppn int }{{2, 2}, {8, 2}} {
		b.Run(fmt.Sprintf("%dx%d", world.nodes, world.ppn), func(b *testing.B) {
			var starts []float64
			for b.Loop() {
				out, err := exec.CommandContext(b.Context(), filepath.Join(binaryDir, "mkrun"), "launch", "--json",
					"--nodes", fmt.Sprint(world.nodes), "--ppn", fmt.Sprint(world.ppn), "--iters", "1", "--warmup", "0",
					"ag_gemm", "--m", "64", "--n", "64", "--k", "64").Output()
				if err != nil {
					b.Fatal(err)
				}
				var doc struct {
					StartMS float64 `json:"start_ms"`
				}
				if err := json.Unmarshal(out, &doc); err != nil {
					b.Fatal(err)
				}
				starts = append(starts, doc.StartMS)
			}
			slices.Sort(starts)
			b.ReportMetric(starts[len(starts)/2], "start-ms")
		})
	}
}
