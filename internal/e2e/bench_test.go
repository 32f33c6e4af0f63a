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

// way is one way to run `true` as 16 ranks, or what all such ways have to do at least.
type way struct {
	name string
	over string // the way that it is compared with, in the same round
	argv []string
	env  []string
}

// onH1 is a command line on the test bed's first host.
func onH1(argv ...string) []string {
	return append([]string{bed.script, "exec", bed.dir, "h1"}, argv...)
}

// ways are over ssh, with standing agents, in a Slurm job, and on one host; each with what it is compared with, if that is
// installed.
func ways(b *testing.B) []way {
	b.Helper()
	ssh := []string{"ssh", "-F", filepath.Join(bed.dir, "ssh_config")}
	var parallel strings.Builder
	for _, h := range hosts {
		parallel.WriteString(strings.Join(ssh, " ") + " " + h + " true & ")
	}
	mkrun := []string{bed.mkrun, "launch", "-H", all + ":4"}
	secret, _ := stand(b, hosts...)
	list := []way{
		{name: "ssh", argv: onH1("sh", "-c", parallel.String()+"wait")},
		{name: "mkrun", over: "ssh", argv: onH1(append(slices.Clone(mkrun), "--agent", "ssh", "--ssh-cmd", strings.Join(ssh, " "), "--", "true")...)},
	}
	ompi := openMPI()
	if ompi != "" {
		list = append(list, way{name: "mpirun", over: "ssh", argv: onH1(mpirun(b, "16", "h1:4,h2:4,h3:4,h4:4", "true")...)})
	}
	list = append(list, way{name: "mkrun-standing", over: "mpirun", argv: onH1(append(slices.Clone(mkrun), "--agent", "standing", "--secret", secret, "--", "true")...)})
	slurmUp(b)
	conf := append(os.Environ(), "SLURM_CONF="+filepath.Join(slurm.dir, "slurm.conf"))
	list = append(list,
		way{name: "srun", argv: []string{"salloc", "--quiet", "-N4", "-n16", "srun", "-n16", "true"}, env: conf},
		way{name: "mkrun-slurm", over: "srun", argv: []string{"salloc", "--quiet", "-N4", "-n16", bed.mkrun, "launch", "--batch", "--", "true"}, env: conf},
		way{name: "mkrun-one-host", over: "mpirun-one-host", argv: []string{bed.mkrun, "launch", "--ppn", "16", "--", "true"}},
		way{name: "mkrun-4-pretended", argv: []string{bed.mkrun, "launch", "--nodes", "4", "--ppn", "4", "--", "true"}},
	)
	if ompi != "" {
		list = append(list, way{name: "mpirun-one-host", argv: []string{ompi, "--allow-run-as-root", "--oversubscribe", "-n", "16", "true"}})
	}
	if torch := torchrun(); torch != nil {
		list = append(list, way{name: "torchrun-one-host", argv: append(torch, "--nproc_per_node", "16", "--no_python", "true")})
	}
	return list
}

// BenchmarkLaunch runs all ways in turn, so that what else the machine does hits all of them, and reports the median of
// each in seconds, and of its difference from and ratio to what it is compared with in the same round. Wants -benchtime 15x.
func BenchmarkLaunch(b *testing.B) {
	list := ways(b)
	took := map[string][]float64{}
	for b.Loop() {
		for _, w := range list {
			cmd := exec.Command(w.argv[0], w.argv[1:]...)
			cmd.Env = w.env
			begun := time.Now()
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%s: %v\n%s", w.name, err, out)
			}
			took[w.name] = append(took[w.name], time.Since(begun).Seconds())
		}
	}
	for _, w := range list {
		b.ReportMetric(median(took[w.name]), w.name+"-s")
		b.Log(w.name, strconv.Itoa(len(took[w.name])), "runs, seconds:", took[w.name])
		other := took[w.over]
		if other == nil {
			continue
		}
		over, ratio := make([]float64, len(other)), make([]float64, len(other))
		for i, s := range took[w.name] {
			over[i], ratio[i] = s-other[i], s/other[i]
		}
		b.ReportMetric(median(over), w.name+"-over-"+w.over+"-s")
		b.ReportMetric(median(ratio), w.name+"-times-"+w.over)
	}
	b.ReportMetric(0, "ns/op") // a round of all ways means nothing
}

func median(list []float64) float64 {
	s := slices.Clone(list)
	slices.Sort(s)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
