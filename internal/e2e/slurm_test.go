//go:build testbed

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// slurmNodes are nodes of a real Slurm, which are all this machine.
var slurmNodes = []string{"n1", "n2", "n3", "n4"}

var slurm struct {
	once sync.Once
	dir  string
	out  []byte
	err  error
}

// slurmUp starts Slurm for the first test that wants it; testMain ends it.
func slurmUp(tb testing.TB) {
	tb.Helper()
	slurm.once.Do(func() {
		slurm.dir = filepath.Join(filepath.Dir(bed.dir), "slurm")
		script := filepath.Join(filepath.Dir(bed.script), "slurm.sh")
		slurm.out, slurm.err = exec.Command(script, "up", slurm.dir, strconv.Itoa(len(slurmNodes))).CombinedOutput()
	})
	if slurm.err != nil {
		tb.Fatalf("starting Slurm (root and `scripts/setup.sh testbed` are needed): %v\n%s", slurm.err, slurm.out)
	}
}

func slurmDown() ([]byte, error) {
	if slurm.dir == "" {
		return nil, nil
	}
	return exec.Command(filepath.Join(filepath.Dir(bed.script), "slurm.sh"), "down", slurm.dir).CombinedOutput()
}

// inSlurm is a command line in a Slurm job of its own.
func inSlurm(tb testing.TB, ntasks int, argv ...string) (env, command []string) {
	tb.Helper()
	slurmUp(tb)
	n := len(slurmNodes)
	return append(os.Environ(), "SLURM_CONF="+filepath.Join(slurm.dir, "slurm.conf"), mark(tb)),
		append([]string{"salloc", "--quiet", fmt.Sprintf("-N%d", n), fmt.Sprintf("-n%d", ntasks)}, argv...)
}

// mark is what all processes of a test have in their environment.
func mark(tb testing.TB) string { return fmt.Sprintf("E2E_MARK=%s-%d", tb.Name(), os.Getpid()) }

// beginInSlurm starts a command in a Slurm job.
func beginInSlurm(t *testing.T, ntasks int, argv ...string) *job {
	t.Helper()
	env, command := inSlurm(t, ntasks, argv...)
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = env
	j := start(t, cmd)
	t.Cleanup(func() {
		for pid := range marked(t, "") { // of a test that failed
			kill(t, pid, syscall.SIGKILL)
		}
	})
	return j
}

// marked lists the processes that have a test's mark in their environment and a command line that begins so.
func marked(t *testing.T, prefix string) map[int]string {
	t.Helper()
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), mark(t)) {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if line := strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " ")); err == nil && line != "" && strings.HasPrefix(line, prefix) {
			found[pid] = line
		}
	}
	return found
}

// waitForMarked waits until a number of processes with a command line that begins so run.
func waitForMarked(t *testing.T, prefix string, n int) map[int]string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if found := marked(t, prefix); len(found) == n {
			return found
		} else if time.Now().After(end) {
			t.Fatalf("%d processes with %q, want %d: %v", len(found), prefix, n, found)
		}
	}
}

// Hosts come from the Slurm job, agents are started by srun: four of them on one machine, told apart by their index.
func TestSlurmStartsAgents(t *testing.T) {
	j := beginInSlurm(t, 8, bed.mkrun, "launch", "--batch", "--tag", "none", "--", "sh", "-c", "echo $RANK $LOCAL_RANK $MKRUN_NODE_RANK $SLURMD_NODENAME $SLURM_PROCID")
	j.want(t, 0)
	var want []string
	for rank := range 8 {
		want = append(want, fmt.Sprintf("%d %d %d %s", rank, rank%2, rank/2, slurmNodes[rank/2]))
	}
	if got := lines(j.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q (and no variables of Slurm's own ranks)", got, want)
	}
	waitForMarked(t, "", 0)
}

// Options that the job's owner set for the program are not taken for the agents: each must see the whole node.
func TestSlurmOptionsOfTheJob(t *testing.T) {
	for name, value := range map[string]string{
		"SLURM_CPUS_PER_TASK": "8", "SLURM_NTASKS_PER_NODE": "2", "SLURM_CPU_BIND": "cores", "SLURM_DISTRIBUTION": "cyclic",
		"SLURM_KILL_BAD_EXIT": "1", "SLURM_MEM_PER_CPU": "10", "SRUN_CPUS_PER_TASK": "8", "SLURM_LABELIO": "1",
	} {
		t.Setenv(name, value)
	}
	j := beginInSlurm(t, 4, "env", "SLURM_LABELIO=1", "SLURM_CPUS_PER_TASK=8", "SLURM_NTASKS_PER_NODE=3", bed.mkrun,
		"launch", "--batch", "--ppn", "1", "--tag", "none", "--", "echo", "here")
	j.want(t, 0)
	if got := j.stdout.String(); got != strings.Repeat("here\n", 4) {
		t.Errorf("ranks say %q", got)
	}
}

// P23, P31: the first failure ends all ranks of a Slurm job, with the rank's status.
func TestP31SlurmFirstFailure(t *testing.T) {
	j := beginInSlurm(t, 4, bed.mkrun, "launch", "--batch", "--ppn", "1", "--", "sh", "-c", "[ $RANK = 2 ] && exit 7; exec sleep 7777")
	j.want(t, 7, "rank 2 on n3 (node 2): ")
	waitForMarked(t, "", 0)
}

// P17: an agent that Slurm started is killed; its node is named, all ranks end.
func TestP17SlurmAgentIsKilled(t *testing.T) {
	j := beginInSlurm(t, 4, bed.mkrun, "launch", "--batch", "--ppn", "1", "--", "sleep", "7777")
	waitForMarked(t, "sleep 7777", 4)
	for pid := range waitForMarked(t, bed.mkrun+" agent", 4) {
		if environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err == nil && strings.Contains(string(environ), "SLURMD_NODENAME=n2") {
			kill(t, pid, syscall.SIGKILL)
		}
	}
	j.want(t, 125, "n2 (node 1): ")
	waitForMarked(t, "", 0)
}

// P17: the launcher of a Slurm job is killed with -9: no agent, rank or srun is left.
func TestP17SlurmLauncherIsKilled(t *testing.T) {
	j := beginInSlurm(t, 4, bed.mkrun, "launch", "--batch", "--ppn", "1", "--", "sleep", "7777")
	waitForMarked(t, "sleep 7777", 4)
	for pid := range waitForMarked(t, bed.mkrun+" launch", 1) {
		kill(t, pid, syscall.SIGKILL)
	}
	<-j.done
	waitForMarked(t, "", 0)
}

// P37, P38: scancel, like a time limit, signals all processes of a job, agents and keepers among them. Ranks have their grace
// all the same, and the message says what ended the job.
func TestP37SlurmEndsTheJob(t *testing.T) {
	for name, flags := range map[string][]string{
		"job": {}, "steps": {"--signal=TERM"}, "batch": {"--signal=TERM", "--batch"}, "full": {"--signal=TERM", "--full"},
	} {
		t.Run(name, func(t *testing.T) {
			slurmUp(t)
			t.Setenv("SLURM_CONF", filepath.Join(slurm.dir, "slurm.conf"))
			dir := t.TempDir()
			rank := filepath.Join(dir, "rank.sh")
			batch := filepath.Join(dir, "job.sh")
			said := filepath.Join(dir, "said")
			for path, text := range map[string]string{
				rank:  "trap 'sleep 1; touch saved.$RANK; exit 0' TERM\ntouch up.$RANK\nwhile :; do sleep 0.1; done\n",
				batch: fmt.Sprintf("#!/bin/sh\nexec %s launch --batch -- sh rank.sh >%s 2>&1\n", bed.mkrun, said),
			} {
				if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("sbatch", "--parsable", "-N4", "-n4", "--output="+filepath.Join(dir, "out"), "--chdir="+dir, batch)
			cmd.Env = append(os.Environ(), mark(t))
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("sbatch: %v", err)
			}
			id := strings.TrimSpace(string(out))
			t.Cleanup(func() {
				_ = exec.Command("scancel", "--signal=KILL", "--full", id).Run()
				for pid := range marked(t, "") { // of a test that failed
					kill(t, pid, syscall.SIGKILL)
				}
				if text, err := os.ReadFile(said); err == nil && t.Failed() {
					t.Logf("it said:\n%s", text)
				}
			})
			waitForFiles(t, filepath.Join(dir, "up.*"), 4)
			if out, err := exec.Command("scancel", append(flags, id)...).CombinedOutput(); err != nil {
				t.Fatalf("scancel: %v\n%s", err, out)
			}
			waitForFiles(t, filepath.Join(dir, "saved.*"), 4)
			waitForMarked(t, "", 0)
			text, err := os.ReadFile(said)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), "terminated") || strings.Contains(string(text), "its agent is gone") {
				t.Errorf("it does not say what ended the job")
			}
		})
	}
}

// The same for a job of salloc, which tells mkrun of it by SIGHUP: ranks that have been told to end are not told again.
func TestP37SlurmEndsAnAllocation(t *testing.T) {
	dir := t.TempDir()
	j := beginInSlurm(t, 4, bed.mkrun, "launch", "--batch", "--tag", "none", "--", "sh", "-c",
		"cd "+dir+"; trap 'sleep 1; touch saved.$RANK; exit 0' TERM; touch up.$RANK; while :; do sleep 0.1; done")
	waitForFiles(t, filepath.Join(dir, "up.*"), 4)
	out, err := exec.Command("env", "SLURM_CONF="+filepath.Join(slurm.dir, "slurm.conf"), "squeue", "-h", "-t", "R", "-o", "%i").Output()
	if err != nil {
		t.Fatal(err)
	}
	scancel := exec.Command("scancel", strings.Fields(string(out))...)
	scancel.Env = append(os.Environ(), "SLURM_CONF="+filepath.Join(slurm.dir, "slurm.conf"))
	if out, err := scancel.CombinedOutput(); err != nil {
		t.Fatalf("scancel: %v\n%s", err, out)
	}
	<-j.done
	waitForFiles(t, filepath.Join(dir, "saved.*"), 4)
	if !strings.Contains(j.stderr.String(), "terminated") || strings.Contains(j.stderr.String(), "its agent is gone") {
		t.Error("it does not say what ended the job")
	}
	waitForMarked(t, "", 0)
}

// Nodes of the job that are named go by srun, in the order in which they are; so do the job's inside one of its steps.
func TestSlurmNamedHostsAndSteps(t *testing.T) {
	const say = "echo $RANK $SLURMD_NODENAME"
	for name, c := range map[string]struct {
		command []string
		want    []string
	}{
		"named":   {[]string{bed.mkrun, "launch", "-H", "n4,n2:2"}, []string{"0 n4", "1 n2", "2 n2"}},
		"in step": {[]string{"srun", "-N1", "-n1", "--overlap", bed.mkrun, "launch", "--batch", "--ppn", "1"}, []string{"0 n1", "1 n2", "2 n3", "3 n4"}},
		"unnamed": {[]string{bed.mkrun, "launch"}, []string{"0"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := beginInSlurm(t, 8, append(slices.Clone(c.command), "--tag", "none", "--", "sh", "-c", say)...)
			j.want(t, 0)
			if got := lines(j.stdout.String()); !slices.Equal(got, c.want) {
				t.Errorf("ranks say %q, want %q", got, c.want)
			}
			if told := strings.Contains(j.stderr.String(), "only this host is used"); told != (name == "unnamed") {
				t.Errorf("it says %q", j.stderr.String())
			}
		})
	}
	j := beginInSlurm(t, 4, "srun", "-N4", "-n4", bed.mkrun, "launch", "--batch", "--", "true")
	j.want(t, 2, "this is one of 4 processes that srun started")
	waitForMarked(t, "", 0)
}

// waitForFiles waits until a number of files match.
func waitForFiles(t *testing.T, pattern string, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d files %s", len(found), n, pattern)
		}
	}
}

// The same command on every node, started by srun: the first launches, the others are its agents.
func TestSlurmJoin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meet")
	for range 2 { // the second finds no trace of the first
		j := beginInSlurm(t, 4, "srun", "--ntasks-per-node=1", "-N4", "-n4", bed.mkrun, "launch", "--join", file, "--ppn", "2", "--tag", "none",
			"--", "sh", "-c", "echo $RANK $MKRUN_NODE_RANK $WORLD_SIZE")
		j.want(t, 0)
		var want []string
		for rank := range 8 {
			want = append(want, fmt.Sprintf("%d %d 8", rank, rank/2))
		}
		if got := lines(j.stdout.String()); !slices.Equal(got, want) {
			t.Errorf("ranks say %q, want %q", got, want)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("the file is left: %v", err)
		}
	}
	// A file that a killed launch left is not taken for one's own.
	if err := os.WriteFile(file, []byte(`{"start":"1.0","secret":"00","addresses":["127.0.0.1:1"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	beginInSlurm(t, 4, "srun", "-N4", "-n4", bed.mkrun, "launch", "--join", file, "--", "true").want(t, 0)
}

// Where MUNGE runs the file is sealed: nothing of it can be read but by this user, on nodes that have the cluster's key.
func TestSlurmJoinIsSealed(t *testing.T) {
	slurmUp(t)
	dir := t.TempDir()
	for _, program := range []string{"munge", "unmunge"} { // those of this machine speak with its own service
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("#!/bin/sh\nexec %s --socket=%s/munge.sock \"$@\"\n", path, slurm.dir)
		if err := os.WriteFile(filepath.Join(dir, program), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	file := filepath.Join(dir, "meet")
	j := beginInSlurm(t, 4, "srun", "-N4", "-n4", bed.mkrun, "launch", "--join", file, "--", "sh", "-c", "[ $RANK = 0 ] && cat "+file+"; exit 0")
	j.want(t, 0)
	if out := j.stdout.String(); !strings.Contains(out, "MUNGE:") || strings.Contains(out, "secret") || strings.Contains(out, "addresses") {
		t.Errorf("the file has %q", out)
	}
	// What somebody else sealed is no meeting.
	if err := os.Chmod(filepath.Dir(slurm.dir), 0o711); err != nil { // nobody has to reach the service, too
		t.Fatal(err)
	}
	foreign := exec.Command(filepath.Join(dir, "munge"), "--uid=nobody", "--string="+`{"start":"","secret":"","addresses":[]}`)
	sealed, err := foreign.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, sealed, 0o600); err != nil {
		t.Fatal(err)
	}
	lost := start(t, exec.CommandContext(t.Context(), "env", "SLURM_JOB_ID=1", "SLURM_STEP_ID=1", bed.mkrun, "launch", "--join", file, "--nodes", "2", "--node-rank", "1",
		"--start-timeout", "1s", "--", "true"))
	lost.want(t, 124, "sealed it, not you")
	waitForMarked(t, "", 0)
}

// P31: a rank of a joined launch fails; srun ends with the rank's status, and nothing is left.
func TestP31SlurmJoinFails(t *testing.T) {
	j := beginInSlurm(t, 4, "srun", "-N4", "-n4", bed.mkrun, "launch", "--join", filepath.Join(t.TempDir(), "meet"),
		"--", "sh", "-c", "[ $RANK = 3 ] && exit 9; exec sleep 7777")
	j.want(t, 9, "rank 3 on n4 (node 3): ")
	waitForMarked(t, "", 0)
}

// Secrets never stand on a command line or in an environment: those of all processes of a launch are the words
// that the user gave, and a constant.
func TestSlurmSecretIsNotShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meet")
	j := beginInSlurm(t, 4, "srun", "-N4", "-n4", bed.mkrun, "launch", "--join", file, "--", "sleep", "7777")
	waitForMarked(t, "sleep 7777", 4)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v", info.Mode())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), `"secret":"`)
	secret, _, _ := strings.Cut(after, `"`)
	if len(secret) != 64 {
		t.Fatalf("no secret in the file")
	}
	for pid, line := range marked(t, "") {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		if strings.Contains(line, secret) || strings.Contains(string(environ), secret) {
			t.Errorf("process %d shows it", pid)
		}
	}
	for pid := range waitForMarked(t, "srun", 2) {
		kill(t, pid, syscall.SIGTERM)
	}
	<-j.done
	waitForMarked(t, "", 0)
}
