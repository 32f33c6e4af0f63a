//go:build testbed

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// way is one way to run `true` as 16 ranks on the four hosts, or what all ways have to do at least.
type way struct {
	name string
	argv []string // on h1
}

// ways are mkrun's, plain ssh's, and mpirun's if it is installed.
func ways(b *testing.B) []way {
	b.Helper()
	ssh := []string{"ssh", "-F", filepath.Join(bed.dir, "ssh_config")}
	var parallel strings.Builder
	for _, h := range hosts {
		parallel.WriteString(strings.Join(ssh, " ") + " " + h + " true & ")
	}
	mkrun := []string{bed.mkrun, "launch", "--ssh-cmd", strings.Join(ssh, " "), "-H", all + ":4"}
	list := []way{
		{"ssh", []string{"sh", "-c", parallel.String() + "wait"}},
		{"mkrun", append(slices.Clone(mkrun), "--agent", "ssh", "--", "true")},
		{"mkrun-h1-local", append(slices.Clone(mkrun), "--", "true")},
	}
	if _, err := exec.LookPath("mpirun"); err == nil {
		agent := filepath.Join(bed.dir, "mpi-ssh")
		if err := os.WriteFile(agent, []byte("#!/bin/sh\nexec "+strings.Join(ssh, " ")+" \"$@\"\n"), 0o700); err != nil {
			b.Fatal(err)
		}
		list = append(list, way{"mpirun", []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "16", "-H", "h1:4,h2:4,h3:4,h4:4",
			"--mca", "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0", "true"}})
	}
	return list
}

// BenchmarkLaunch runs all ways in turn, so that what else the machine does hits all of them, and reports the median of
// each in seconds, and of its overhead over plain ssh in the same round. Wants -benchtime 15x.
func BenchmarkLaunch(b *testing.B) {
	list := ways(b)
	took := map[string][]float64{}
	for b.Loop() {
		for _, w := range list {
			begun := time.Now()
			if out, err := exec.Command(bed.script, append([]string{"exec", bed.dir, "h1"}, w.argv...)...).CombinedOutput(); err != nil {
				b.Fatalf("%s: %v\n%s", w.name, err, out)
			}
			took[w.name] = append(took[w.name], time.Since(begun).Seconds())
		}
	}
	for _, w := range list {
		over := make([]float64, len(took[w.name]))
		for i, s := range took[w.name] {
			over[i] = s - took["ssh"][i]
		}
		b.ReportMetric(median(took[w.name]), w.name+"-s")
		if w.name != "ssh" {
			b.ReportMetric(median(over), w.name+"-over-ssh-s")
		}
		b.Log(w.name, strconv.Itoa(len(over)), "runs, seconds:", took[w.name])
	}
	b.ReportMetric(0, "ns/op") // a round of all ways means nothing
}

func median(list []float64) float64 {
	s := slices.Clone(list)
	slices.Sort(s)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
