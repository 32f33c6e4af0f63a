//go:build testbed

package e2e

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/e2e/capture"
)

// mpiProgram builds the test's MPI program with Debian's MPICH.
func mpiProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "ring")
	if out, err := exec.Command("mpicc.mpich", "-o", program, "testdata/ring.c").CombinedOutput(); err != nil {
		t.Fatalf("building an MPI program (scripts/setup.sh testbed installs MPICH): %v\n%s", err, out)
	}
	return program
}

// An MPI program's ranks find each other over four hosts, in both orders of ranks; an abort ends all of them.
func TestMPICH(t *testing.T) {
	program := mpiProgram(t)
	const ranks = 8
	for _, mapBy := range []string{"block", "cyclic"} {
		j := launch(t, "-H", all+":2", "--map-by", mapBy, "--tag", "none", "-x", "UCX_NET_DEVICES=eth0", "--", program)
		j.want(t, 0)
		var want []string
		for rank := range ranks {
			host := rank/2 + 1
			if mapBy == "cyclic" {
				host = rank%4 + 1
			}
			want = append(want, fmt.Sprintf("rank %d of %d on h%d: sum %d, from %d", rank, ranks, host, ranks*(ranks-1)/2, (rank+ranks-1)%ranks))
		}
		if got := lines(j.stdout.String()); !slices.Equal(got, want) {
			t.Errorf("%s: ranks say %q, want %q", mapBy, got, want)
		}
	}
	j := launch(t, "-H", all+":2", "-x", "UCX_NET_DEVICES=eth0", "--", program, "abort")
	j.want(t, 5, "rank 1 on h1 (node 0): called MPI_Abort with 5")
	nobody(t, time.Now(), settle)
}

// input is a file with some megabytes that repeat nowhere, and its digest as sha256sum prints it.
func input(t *testing.T, size int) (path, sum string) {
	t.Helper()
	data := make([]byte, size)
	chacha := rand.NewChaCha8([32]byte{1})
	if _, err := chacha.Read(data); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, fmt.Sprintf("%x  -", sha256.Sum256(data))
}

// P41, P43: ten megabytes of input reach ranks on other hosts whole and once, at the pace of the slowest.
func TestP41P43InputOverSeveralHosts(t *testing.T) {
	path, sum := input(t, 10_000_000)
	const nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  -"
	for stdin, want := range map[string][]string{
		"all": {sum, sum, sum, sum},
		"2":   {nothing, nothing, sum, nothing},
	} {
		out := filepath.Join(bed.dir, "disk", "input-"+stdin)
		j := beginWith(t, path, "-H", all, "--stdin", stdin, "--output-dir", out, "--", "sh", "-c", "[ $RANK = 2 ] && sleep 0.5; sha256sum")
		j.want(t, 0)
		for rank, w := range want {
			file := filepath.Join(bed.dir, hosts[rank], "disk", "input-"+stdin, fmt.Sprintf("rank-%d.out", rank))
			if got, err := os.ReadFile(file); err != nil || string(got) != w+"\n" {
				t.Errorf("--stdin %s: rank %d read %q, want %q (%v)", stdin, rank, got, w, err)
			}
		}
	}
}

// Ten megabytes of output from each of four hosts arrive whole, through terminal-less pipes.
func TestOutputOfSeveralHostsIsWhole(t *testing.T) {
	path, sum := input(t, 10_000_000)
	j := launch(t, "-H", all, "--only-rank", "3", "--tag", "none", "--", "cat", path)
	j.want(t, 0)
	if got := fmt.Sprintf("%x  -", sha256.Sum256([]byte(j.stdout.String()))); got != sum {
		t.Errorf("%d bytes came with digest %s, want %s", len(j.stdout.String()), got, sum)
	}
}

// The same agents start the next generation of ranks on all hosts.
func TestRestartOverSeveralHosts(t *testing.T) {
	j := launch(t, "-H", all, "--max-restarts", "1", "--tag", "none", "--", "sh", "-c",
		"if [ $MKRUN_RESTART_COUNT = 0 ]; then [ $RANK = 3 ] && exit 4; exec sleep 7777; fi; echo $RANK $(hostname) $MKRUN_RESTART_COUNT")
	j.want(t, 0, "rank 3 on h4 (node 3): exited with status 4", "restart 1 of 1")
	if got, want := lines(j.stdout.String()), []string{"0 h1 1", "1 h2 1", "2 h3 1", "3 h4 1"}; !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
	nobody(t, time.Now(), settle)
	launch(t, "-H", all, "--max-restarts", "1", "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256").want(t, 0)
}

// staged lists copies of mkrun that were left behind. All hosts of the bed share /tmp.
func staged(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "mkrun-staged.*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A host without mkrun, and one with another build, get a copy, of which nothing is left, whatever ends the job.
func TestCopySelf(t *testing.T) {
	replaceBinary(t, "h3", "")
	replaceBinary(t, "h4", bed.other)
	bashrc(t, "h3", "echo Welcome\n")
	j := launch(t, "-H", all, "--copy-self", "--tag", "none", "--", "sh", "-c", "echo $RANK $(hostname)")
	j.want(t, 0)
	if got, want := lines(j.stdout.String()), []string{"0 h1", "1 h2", "2 h3", "3 h4"}; !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
	launch(t, "-H", all, "--copy-self", "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256").want(t, 0)
	nobody(t, time.Now(), settle)
	if left := staged(t, "/tmp"); left != nil {
		t.Errorf("left behind: %q", left)
	}
	j = begin(t, append([]string{"-H", all, "--copy-self"}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	if left := staged(t, "/tmp"); left != nil {
		t.Errorf("there while the job runs: %q", left)
	}
	for _, pid := range waitFor(t, "mkrun agent", "h3") {
		kill(t, pid, syscall.SIGKILL)
	}
	j.want(t, 125, "h3 (node 2): its agent is gone")
	nobody(t, time.Now(), settle)

	launch(t, append([]string{"-H", "h3"}, sleeper...)...).want(t, 125, "have it copied with --copy-self")
	launch(t, append([]string{"-H", "h4"}, sleeper...)...).want(t, 125, bed.build, bed.foreign, "have this one copied with --copy-self")
}

// A copy that does not fit is no copy: nothing of it is run, or left.
func TestCopySelfToAFullDisk(t *testing.T) {
	dir := t.TempDir()
	sshd, err := os.ReadFile(filepath.Join(bed.dir, "h3", "sshd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	inside := []string{"-t", strings.TrimSpace(string(sshd)), "-m"} // the host has mounts of its own
	if out, err := exec.Command("nsenter", append(inside, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", dir)...).CombinedOutput(); err != nil {
		t.Fatalf("making a small disk: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("nsenter", append(inside, "umount", dir)...).Run() })
	bashrc(t, "h3", "export TMPDIR="+dir+"\n")
	launch(t, append([]string{"-H", all, "--copy-self"}, sleeper...)...).want(t, 125,
		"h3 (node 2): copying mkrun there (--copy-self): ", "No space left on device")
	nobody(t, time.Now(), settle)
	if out, err := exec.Command("nsenter", append(inside, "ls", "-A", dir)...).Output(); err != nil || len(out) > 0 {
		t.Errorf("left behind: %q (%v)", out, err)
	}
	if left := staged(t, "/tmp"); left != nil { // of hosts that were in the middle of it when the job ended
		t.Errorf("left behind: %q", left)
	}
	bashrc(t, "h3", "export TMPDIR='/tmp/odd $HOME'; mkdir -p \"$TMPDIR\"\n")
	t.Cleanup(func() { _ = os.RemoveAll("/tmp/odd $HOME") })
	launch(t, append([]string{"-H", "h3", "--copy-self"}, sleeper...)...).want(t, 125, "shells differ in how they read the path")
}

// Checks before the start see what differs between hosts: blocked UDP, a folder that cannot be written.
func TestPreflightOverSeveralHosts(t *testing.T) {
	j := launch(t, "-H", all, "--dry-run=connect", "--", "true")
	j.want(t, 0)
	for _, want := range []string{"all 4 nodes: limit-nofile", "UDP to 3 nodes and back", "h3: clock: its clock is", "all 4 agents came up and went"} {
		if !strings.Contains(j.stdout.String(), want) {
			t.Errorf("stdout lacks %q", want)
		}
	}
	nobody(t, time.Now(), settle)

	fault(t, "udp-block", "h3")
	launch(t, "-H", all, "--preflight", "--", "true").want(t, 0, "h1, h2, h4: udp: UDP does not reach h3", "h3: udp: UDP does not reach h1", "the heartbeat alone watches them")

	if err := os.WriteFile(filepath.Join(bed.dir, "h4", "disk", "blocked"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j = launch(t, "-H", all, "--preflight", "--output-dir", filepath.Join(bed.dir, "disk", "blocked"), "--", "sh", "-c", "echo started")
	j.want(t, 125, "a check failed, and nothing was started:", "h4: output-dir: ", "no folder")
	if strings.Contains(j.stdout.String(), "started") {
		t.Error("ranks were started")
	}
	nobody(t, time.Now(), settle)
}

// P77: gossip alone ends no job: h3's gossip cannot be reached, so that the others take it for dead, but its stream lives.
func TestP77GossipAloneEndsNothing(t *testing.T) {
	events, stop := filepath.Join(t.TempDir(), "events"), filepath.Join(t.TempDir(), "stop")
	j := begin(t, "-H", all, "--events", events, "--", "sh", "-c", "while ! [ -e "+stop+" ]; do sleep 0.1; done")
	heard := func(pattern string) []string {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			said, _ := os.ReadFile(events)
			if found := regexp.MustCompile(pattern).FindStringSubmatch(string(said)); found != nil {
				return found
			}
			if time.Now().After(end) {
				t.Fatalf("no %s in\n%s", pattern, said)
			}
		}
	}
	port := heard(`"event":"node_joined","node":2,.*"address":"10\.77\.23\.3:(\d+)"`)[1]
	heard(`"event":"rank_started","node":2`)
	t.Cleanup(func() { script(t, "heal", "h3") })
	script(t, "exec", "h3", "nft", "add table inet mkrun; add chain inet mkrun in { type filter hook input priority 0; };"+
		"add rule inet mkrun in udp dport "+port+" drop; add rule inet mkrun in tcp dport "+port+" drop")
	heard(`"event":"gossip","node":[013],.*"about":2,"alive":false`)
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j.want(t, 0)
}

// P38: as the first process of a container mkrun passes each signal on once, and ends.
func TestP38AsTheFirstProcess(t *testing.T) {
	dir := t.TempDir()
	script := `n=0; trap 'n=$((n+1))' TERM; : >up.$RANK; while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; echo $n`
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", bed.mkrun, "launch", "--nodes", "2", "--tag", "none", "--", "sh", "-c", script)
	cmd.Dir = dir
	var out, words capture.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if up, _ := filepath.Glob(filepath.Join(dir, "up.*")); len(up) == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the ranks do not come up: %s", words.String())
		}
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	kill(t, first, syscall.SIGTERM)
	err = cmd.Wait()
	if got := lines(out.String()); !slices.Equal(got, []string{"1", "1"}) || cmd.ProcessState.ExitCode() != 143 {
		t.Errorf("ranks counted %q signals, status %v (%v)\n%s", got, cmd.ProcessState, err, words.String())
	}
}

// P43: input, restarts, checks and a copy of mkrun also come through a head on the first host.
func TestP43InputThroughAHeadOnTheFirstHost(t *testing.T) {
	behindNAT(t)
	path, sum := input(t, 10_000_000)
	out := filepath.Join(bed.dir, "disk", "input-first")
	j := beginWith(t, path, "-H", "h[2-4]", "--head", "first", "--stdin", "all", "--output-dir", out, "--", "sh", "-c", "[ $RANK = 2 ] && sleep 0.5; sha256sum")
	j.want(t, 0)
	for rank, host := range others {
		file := filepath.Join(bed.dir, host, "disk", "input-first", fmt.Sprintf("rank-%d.out", rank))
		if got, err := os.ReadFile(file); err != nil || string(got) != sum+"\n" {
			t.Errorf("rank %d read %q, want %q (%v)", rank, got, sum, err)
		}
	}
	beginWith(t, path, "-H", "h[2-4]", "--head", "first", "--stdin", "1", "--", "true").want(t, 0) // nobody reads it
	beginWith(t, "/", "-H", "h[2-4]", "--head", "first", "--stdin", "1", "--", "cat").want(t, 125, "reading the input for the ranks")
	j = launch(t, "-H", "h[2-4]", "--head", "first", "--max-restarts", "1", "--preflight", "--tag", "none", "--", "sh", "-c",
		"[ $MKRUN_RESTART_COUNT$RANK = 02 ] && exit 4; [ $MKRUN_RESTART_COUNT = 1 ] || exec sleep 7777; echo $RANK")
	j.want(t, 0, "restart 1 of 1")
	if got := lines(j.stdout.String()); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("ranks say %q", got)
	}
	nobody(t, time.Now(), settle)
}
