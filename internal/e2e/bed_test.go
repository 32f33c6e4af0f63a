//go:build testbed

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/e2e/capture"
	"github.com/mkrun/mkrun/internal/mknet"
)

// bed is the test bed that all tests share: hosts h1 to h4, of which h1 launches.
var bed struct {
	dir, script    string
	mkrun, other   string // the binary under test; another build of it
	build, foreign string // their build ids
}

var hosts = []string{"h1", "h2", "h3", "h4"}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	fail := func(what string, err error, out []byte) int {
		fmt.Fprintf(os.Stderr, "%s: %v\n%s\n", what, err, out)
		return 1
	}
	dir, err := os.MkdirTemp("/tmp", "mkrun-bed-")
	if err != nil {
		return fail("making a folder", err, nil)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bed.dir = filepath.Join(dir, "bed")
	if bed.script, err = filepath.Abs("../../scripts/testbed.sh"); err != nil {
		return fail("finding the test bed", err, nil)
	}
	bed.mkrun, bed.other = filepath.Join(dir, "mkrun"), filepath.Join(dir, "mkrun-other")
	for path, version := range map[string]string{bed.mkrun: "v1.0.0-test", bed.other: "v0.9.0-other"} {
		flag := "-X github.com/mkrun/mkrun/internal/version.version=" + version
		args := []string{"build", "-ldflags", flag, "-o", path}
		if raceEnabled {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, "../../cmd/mkrun")...).CombinedOutput(); err != nil {
			return fail("building mkrun", err, out)
		}
	}
	bed.build, bed.foreign = "v1.0.0-test", "v0.9.0-other"
	library, err := os.ReadFile("../../build/" + mknet.Library)
	if err != nil {
		return fail("reading what `make net` builds", err, nil)
	}
	if err := os.WriteFile(filepath.Join(dir, mknet.Library), library, 0o600); err != nil {
		return fail("copying it", err, nil)
	}
	races := filepath.Join(dir, "race") // all processes on all hosts report there
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 log_path="+races); err != nil {
		return fail("telling where data races are reported", err, nil)
	}
	if out, err := exec.Command(bed.script, "up", bed.dir, fmt.Sprint(len(hosts))).CombinedOutput(); err != nil {
		return fail("making the test bed (root and `scripts/setup.sh testbed` are needed)", err, out)
	}
	down := func() {
		if out, err := slurmDown(); err != nil {
			fail("ending Slurm", err, out)
		}
		if out, err := exec.Command(bed.script, "down", bed.dir).CombinedOutput(); err != nil {
			fail("taking the test bed away", err, out)
		}
	}
	defer down()
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupts
		down()
		_ = os.RemoveAll(dir)
		os.Exit(1)
	}()
	for _, h := range hosts {
		if err := os.Symlink(bed.mkrun, filepath.Join(bed.dir, h, "bin", "mkrun")); err != nil {
			return fail("installing mkrun", err, nil)
		}
	}
	status := m.Run()
	reports, _ := filepath.Glob(races + ".*")
	for _, path := range reports {
		text, err := os.ReadFile(path)
		status = fail("a data race", err, text)
	}
	return status
}

// fault does something to a host and undoes it at the end of the test. What it needs to know follows the host's name.
func fault(t *testing.T, what, host string) {
	t.Helper()
	words := strings.Fields(host)
	script(t, what, words...)
	t.Cleanup(func() { script(t, "heal", words[0]) })
}

func script(t *testing.T, command string, args ...string) string {
	t.Helper()
	out, err := exec.Command(bed.script, append([]string{command, bed.dir}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("testbed %s %v: %v\n%s", command, args, err, out)
	}
	return string(out)
}

// job is a running mkrun launch on h1.
type job struct {
	cmd            *exec.Cmd
	stdout, stderr capture.Buffer
	begun          time.Time
	done           chan struct{}
	took           time.Duration
}

// settle is how long after the launcher's end the last agent may take to be gone: the launcher waits for its streams
// and ssh's, not for processes on other hosts. All ranks are gone before; the machine may be busy.
const settle = 3 * time.Second

// jobLimit bounds every job of a test.
const jobLimit = 2 * time.Minute

// begin starts mkrun launch on h1. What a test leaves behind is killed when it ends.
func begin(t *testing.T, args ...string) *job {
	t.Helper()
	return beginWith(t, os.DevNull, args...)
}

// beginWith is begin with input from a file.
func beginWith(t *testing.T, input string, args ...string) *job {
	t.Helper()
	command := []string{"launch"}
	if !slices.Contains(args, "standing") { // agents that run already take no ssh
		command = append(command, "--ssh-cmd", "ssh -F "+bed.dir+"/ssh_config")
	}
	return beginMkrunWith(t, input, append(command, args...)...)
}

// beginMkrun does the same with any of mkrun's commands.
func beginMkrun(t *testing.T, args ...string) *job {
	t.Helper()
	return beginMkrunWith(t, os.DevNull, args...)
}

func beginMkrunWith(t *testing.T, input string, args ...string) *job {
	t.Helper()
	stdin, err := os.Open(input)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	cmd := exec.CommandContext(t.Context(), bed.script, append([]string{"exec", bed.dir, "h1", bed.mkrun}, args...)...)
	cmd.Stdin = stdin
	return start(t, cmd)
}

// start starts a command that is a job.
func start(t *testing.T, cmd *exec.Cmd) *job {
	t.Helper()
	j := &job{cmd: cmd, begun: time.Now(), done: make(chan struct{})}
	j.cmd.Stdout, j.cmd.Stderr = &j.stdout, &j.stderr
	j.cmd.WaitDelay = time.Second
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(jobLimit, func() { _ = j.cmd.Process.Kill() })
	go func() {
		_ = j.cmd.Wait() // its status is looked at
		j.took = time.Since(j.begun)
		limit.Stop()
		close(j.done)
	}()
	t.Cleanup(func() {
		_ = j.cmd.Process.Kill()
		<-j.done
		if t.Failed() {
			t.Logf("stdout:\n%s\nstderr:\n%s", j.stdout.String(), j.stderr.String())
		}
	})
	return j
}

// launch runs mkrun launch on h1 to its end. Nobody falls silent in such a job: an agent that the machine gives no time, as one of
// many may be, is not to be taken for one that did.
func launch(t *testing.T, args ...string) *job {
	t.Helper()
	j := begin(t, append([]string{"--silence", "1m"}, args...)...)
	<-j.done
	return j
}

func (j *job) status() int { return j.cmd.ProcessState.ExitCode() }

// want wants an exit status, and words in stderr.
func (j *job) want(t *testing.T, status int, words ...string) {
	t.Helper()
	<-j.done
	if j.status() != status {
		t.Errorf("exit status %d, want %d", j.status(), status)
	}
	for _, w := range words {
		if !strings.Contains(j.stderr.String(), w) {
			t.Errorf("stderr lacks %q", w)
		}
	}
}

// waitForStderr waits until a running job has said something.
func (j *job) waitForStderr(t *testing.T, word string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(j.stderr.String(), word); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the job does not say %q", word)
		}
	}
}

// onHost lists the processes of a host that are not sshd's, standing agents, or what those have ready for the next launch.
func onHost(t *testing.T, host string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pid := range strings.Fields(script(t, "pids", host)) {
		cmdline, err := os.ReadFile("/proc/" + pid + "/cmdline")
		line := strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
		if err != nil || line == "" || strings.HasPrefix(line, "sshd:") || strings.HasPrefix(line, "/usr/sbin/sshd") ||
			strings.HasPrefix(line, bed.mkrun+" agent --listen") || ready(pid) || ready(parent(pid)) {
			continue
		}
		found[pid] = line
	}
	return found
}

// ready reports whether a process is an agent that waits for a launch at a standing one. One that waits for the word of a
// launcher over ssh is not.
func ready(pid string) bool {
	comm, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil || string(comm) != "mkrun-waiting\n" {
		return false
	}
	line, err := os.ReadFile("/proc/" + parent(pid) + "/cmdline")
	return err == nil && strings.HasPrefix(strings.ReplaceAll(string(line), "\x00", " "), bed.mkrun+" agent --listen")
}

// parent is the number of a process's parent; "0" for one that is gone.
func parent(pid string) string {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "0"
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return fields[1]
}

// allowed is how long a test waits for what is promised within a time. The promise is for a machine with nothing else to do;
// make bench-failures measures how it is kept. This machine may be busy, so what counts here is that it comes.
func allowed(promised time.Duration) time.Duration { return promised + time.Minute }

// nobody wants that nothing is left on the hosts (all by default) some time after a moment.
func nobody(t *testing.T, since time.Time, within time.Duration, on ...string) {
	t.Helper()
	if on == nil {
		on = hosts
	}
	for {
		var left []string
		for _, h := range on {
			for pid, line := range onHost(t, h) {
				left = append(left, fmt.Sprintf("%s: %s %s", h, pid, line))
			}
		}
		if len(left) == 0 {
			t.Logf("all gone after %v, promised are %v", time.Since(since).Round(10*time.Millisecond), within)
			return
		}
		if took := time.Since(since); took > allowed(within) {
			t.Fatalf("left after %v: %q", took, left)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// waitFor waits until a process with a command line that has a word runs on each of the hosts, and returns their pids.
func waitFor(t *testing.T, word string, on ...string) map[string]int {
	t.Helper()
	pids := map[string]int{}
	for end := time.Now().Add(time.Minute); len(pids) < len(on); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %q on all of %v; on %v", word, on, pids)
		}
		for _, h := range on {
			found := onHost(t, h)
			maps.DeleteFunc(found, func(_, line string) bool { return !strings.Contains(line, word) || strings.Contains(line, "launch") })
			for pid := range found {
				if found[parent(pid)] != "" {
					continue // its child, which has the same words until it runs a program of its own
				}
				if n, err := strconv.Atoi(pid); err == nil {
					pids[h] = n
				}
			}
		}
	}
	return pids
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

// lines are the lines of a text, sorted.
func lines(text string) []string {
	list := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(list)
	return list
}
