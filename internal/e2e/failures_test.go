//go:build testbed

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/e2e/capture"
)

// tableLimit is after what time a launcher is taken to leave its processes for good.
const tableLimit = 20 * time.Second

var notGone = fmt.Sprintf("more than %v", tableLimit)

// contender is a launcher in the failure table.
type contender struct {
	name  string
	begin func(b *testing.B) *contest
	agent string // in the command line of its agents; "": none
}

// contest is a job that runs.
type contest struct {
	head int // pid
	cmds []*exec.Cmd
	said []*capture.Buffer
}

// started runs commands on hosts.
func started(b *testing.B, on []string, argv ...[]string) *contest {
	b.Helper()
	c := &contest{}
	for i, h := range on {
		cmd := exec.Command(bed.script, append([]string{"exec", bed.dir, h}, argv[i]...)...)
		said := &capture.Buffer{}
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, time.Second
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		go func() { _ = cmd.Wait() }()
		c.cmds, c.said = append(c.cmds, cmd), append(c.said, said)
	}
	c.head = c.cmds[0].Process.Pid
	return c
}

func contenders(b *testing.B) []contender {
	b.Helper()
	list := []contender{{
		name: "mkrun", agent: "mkrun agent",
		begin: func(b *testing.B) *contest {
			return started(b, []string{"h1"}, []string{bed.mkrun, "launch", "--ssh-cmd", "ssh -F " + bed.dir + "/ssh_config", "-H", all + ":2", "--", "sleep", "7777"})
		},
	}}
	if openMPI() != "" {
		list = append(list, contender{
			name: "mpirun", agent: "orted",
			begin: func(b *testing.B) *contest {
				return started(b, []string{"h1"}, mpirun(b, "8", "h1:2,h2:2,h3:2,h4:2", "sleep", "7777"))
			},
		})
	}
	if torchrun() != nil {
		list = append(list, contender{
			name: "torchrun", agent: "torch.distributed.run",
			begin: func(b *testing.B) *contest {
				var argv [][]string
				for range hosts {
					argv = append(argv, append(torchrun(), "--nnodes", "4", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "10.77.23.1:29500",
						"--rdzv_id", "e2e", "--no_python", "sleep", "7777"))
				}
				return started(b, hosts, argv...)
			},
		})
	}
	return list
}

// pidsOf are the processes on a host with a word in their command line.
func pidsOf(b *testing.B, host, word string) []int {
	b.Helper()
	out, err := exec.Command(bed.script, "pids", bed.dir, host).Output()
	if err != nil {
		b.Fatal(err)
	}
	var list []int
	for _, field := range strings.Fields(string(out)) {
		line, err := os.ReadFile("/proc/" + field + "/cmdline")
		text := strings.ReplaceAll(string(line), "\x00", " ")
		if err == nil && strings.Contains(text, word) && !strings.Contains(text, bed.script) && !strings.Contains(text, "sshd") {
			var pid int
			if _, err := fmt.Sscan(field, &pid); err == nil {
				list = append(list, pid)
			}
		}
	}
	return list
}

// ranksOn are the pids of a host's ranks: sleep itself, not what was told to start it.
func ranksOn(b *testing.B, host string) []int {
	b.Helper()
	var list []int
	for _, pid := range pidsOf(b, host, "sleep 7777") {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.HasPrefix(string(line), "sleep\x00") {
			list = append(list, pid)
		}
	}
	return list
}

// BenchmarkFailures does the same harm to the same job under each launcher, and says after how many seconds no rank was left
// anywhere and what was said last. Wants -benchtime 1x.
func BenchmarkFailures(b *testing.B) {
	harm := []struct {
		name string
		only string // launcher; "": all
		do   func(b *testing.B, c contender, run *contest)
	}{
		{"a rank is killed", "", func(b *testing.B, _ contender, _ *contest) { strike(b, ranksOn(b, "h3")[:1]) }},
		{"an agent is killed", "", func(b *testing.B, c contender, _ *contest) { strike(b, pidsOf(b, "h3", c.agent)) }},
		{"a keeper is killed", "mkrun", func(b *testing.B, _ contender, _ *contest) { strike(b, pidsOf(b, "h3", "rank-keeper")) }},
		{"the head is killed", "", func(b *testing.B, _ contender, run *contest) { strike(b, []int{run.head}) }},
		{cable, "", func(b *testing.B, _ contender, _ *contest) { tool(b, "cut", "h3") }},
	}
	path := filepath.Join(os.TempDir(), "mkrun-failures.md")
	table := "| | launcher | seconds until no rank is left | on the cut host | last words |\n| --- | --- | --- | --- | --- |\n"
	for _, h := range harm {
		for _, c := range contenders(b) {
			if h.only != "" && h.only != c.name {
				continue
			}
			row := contestRow(b, h.name, c, h.do)
			b.Log(row)
			table += row
			if err := os.WriteFile(path, []byte(table), 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Log("the table is in", path)
}

// contests is how often each harm is done; the medians are told.
const contests = 3

func contestRow(b *testing.B, what string, c contender, do func(*testing.B, contender, *contest)) string {
	b.Helper()
	var others, cut []float64
	said := ""
	for range contests {
		o, x, words := contestOnce(b, what, c, do)
		others, cut, said = append(others, o.Seconds()), append(cut, x.Seconds()), words
	}
	text := func(list []float64) string {
		if m := median(list); m < tableLimit.Seconds() {
			return fmt.Sprintf("%.2f", m)
		}
		return notGone
	}
	alone := ""
	if what == cable {
		alone = text(cut)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", what, c.name, text(others), alone, strings.ReplaceAll(said, "|", "/"))
}

// cable is the harm after which one host is alone.
const cable = "a host is cut"

// contestOnce does a harm once, and says after what time no rank was left on the hosts, on one that is alone, and what was said
// last. What is still there after tableLimit is taken to stay.
func contestOnce(b *testing.B, what string, c contender, do func(*testing.B, contender, *contest)) (others, cut time.Duration, said string) {
	b.Helper()
	run := c.begin(b)
	defer func() {
		tool(b, "heal", "h3")
		for _, host := range hosts { // what the launcher left
			for _, word := range []string{"sleep 7777", "orted", "torch.distributed.run", "rank-keeper", bed.mkrun + " ", "mpirun"} {
				for _, pid := range pidsOf(b, host, word) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	}()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		n := 0
		for _, h := range hosts {
			n += len(ranksOn(b, h))
		}
		if n == 8 {
			break
		}
		if time.Now().After(end) {
			b.Errorf("%s does not come up (%d ranks): %s", c.name, n, run.said[0].String())
			return tableLimit, tableLimit, ""
		}
	}
	at := time.Now()
	do(b, c, run)
	gone := map[string]time.Duration{}
	for time.Since(at) < tableLimit && len(gone) < len(hosts) {
		for _, h := range hosts {
			if _, done := gone[h]; !done && len(ranksOn(b, h)) == 0 {
				gone[h] = time.Since(at)
			}
		}
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && syscall.Kill(run.head, 0) == nil; time.Sleep(10 * time.Millisecond) {
		continue // it may have more to say
	}
	cut = tableLimit
	for _, h := range hosts {
		took, done := gone[h]
		if !done {
			took = tableLimit
		}
		if what == cable && h == "h3" {
			cut = took
		} else {
			others = max(others, took)
		}
	}
	words := strings.Fields(run.said[0].String())
	return others, cut, strings.Join(words[max(0, len(words)-25):], " ")
}

func strike(b *testing.B, pids []int) {
	b.Helper()
	if len(pids) == 0 {
		b.Error("nobody to kill")
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func tool(b *testing.B, args ...string) {
	b.Helper()
	if out, err := exec.Command(bed.script, append([]string{args[0], bed.dir}, args[1:]...)...).CombinedOutput(); err != nil {
		b.Fatalf("testbed %v: %v\n%s", args, err, out)
	}
}

// openMPI is the mpirun of an Open MPI that is installed, or "". Debian calls the mpirun of whichever MPI came last "mpirun".
func openMPI() string {
	for _, name := range []string{"mpirun.openmpi", "mpirun"} {
		if out, err := exec.Command(name, "--version").CombinedOutput(); err == nil && strings.Contains(string(out), "Open MPI") {
			return name
		}
	}
	return ""
}

// mpirun is Open MPI's command line over the test bed's ssh.
func mpirun(b *testing.B, n, on string, program ...string) []string {
	b.Helper()
	agent := filepath.Join(bed.dir, "mpi-ssh")
	if err := os.WriteFile(agent, []byte("#!/bin/sh\nexec ssh -F "+filepath.Join(bed.dir, "ssh_config")+" \"$@\"\n"), 0o700); err != nil {
		b.Fatal(err)
	}
	return append([]string{openMPI(), "--allow-run-as-root", "--oversubscribe", "-n", n, "-H", on, "--mca", "plm_rsh_agent", agent,
		"--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0"}, program...)
}

// torchrun is the command of a PyTorch that is installed, or nil.
func torchrun() []string {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import torch.distributed.run").Run() == nil {
			return []string{python, "-m", "torch.distributed.run", "--redirects", "1", "--tee", "1"} // PyTorch 1.13 on Python 3.11 does without neither
		}
	}
	return nil
}
