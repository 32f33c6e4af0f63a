//go:build testbed

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const all = "h[1-4]"

// sleeper is a program whose processes are told from others by their command line.
var sleeper = []string{"--", "sleep", "7777"}

// P5, P7, P79: hosts have a loopback and a docker0 with the same addresses; ranks are told the one that peers reach.
func TestP5P7P79RanksAreToldReachableAddresses(t *testing.T) {
	j := launch(t, "-H", all+":2", "--tag", "none", "--", "sh", "-c", "echo $RANK $LOCAL_RANK $(hostname) $MKRUN_NODE_ADDR $MASTER_ADDR")
	j.want(t, 0)
	var want []string
	for rank := range 8 {
		want = append(want, fmt.Sprintf("%d %d h%d 10.77.23.%d 10.77.23.1", rank, rank%2, rank/2+1, rank/2+1))
	}
	if got := lines(j.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
	nobody(t, time.Now(), settle)
}

func TestHostFileAndCyclicRanks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte("\xef\xbb\xbf# the bed\r\nh[1-2] slots=2\r\nroot@10.77.23.3:2\r\nh4:1"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := launch(t, "--hostfile", file, "--exclude", "h2", "--map-by", "cyclic", "--tag", "none", "--", "sh", "-c", "echo $RANK $(hostname) $LOCAL_RANK")
	j.want(t, 0)
	if got, want := lines(j.stdout.String()), []string{"0 h1 0", "1 h3 0", "2 h4 0", "3 h1 1", "4 h3 1"}; !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
}

func TestOperatorOverFourHosts(t *testing.T) {
	j := launch(t, "-H", all, "--check", "--json", "ag_gemm", "--m", "256", "--n", "128", "--k", "256")
	j.want(t, 0)
	var doc struct {
		Status string
		World  struct{ Nodes, Size int }
	}
	if err := json.Unmarshal([]byte(j.stdout.String()), &doc); err != nil || doc.Status != "pass" || doc.World.Nodes != 4 || doc.World.Size != 4 {
		t.Errorf("result %+v, %v", doc, err)
	}
	nobody(t, time.Now(), settle)
}

// The launcher need not be one of the hosts.
func TestLaunchFromAnotherHost(t *testing.T) {
	j := launch(t, "-H", "h3,h2", "--tag", "none", "--", "sh", "-c", "echo $RANK $(hostname) $MASTER_ADDR")
	j.want(t, 0)
	if got, want := lines(j.stdout.String()), []string{"0 h3 10.77.23.3", "1 h2 10.77.23.3"}; !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
}

// P50, P52, P55: arguments and environment arrive as they are, whatever a shell would make of them.
func TestP50P52P55NothingIsReadByAShell(t *testing.T) {
	odd := []string{"a b", "", "$(touch /tmp/x)", "it's", `"`, `back\`, "64(x2)", "*", "ü\ttab", "a\nb", ";true", "-x", "~"}
	t.Setenv("ODD", strings.Join(odd, "|"))
	j := launch(t, append([]string{"-H", "h2", "-x", "ODD", "--tag", "none", "--", "sh", "-c", `printf '<%s>' "$@" "$ODD"`, "sh"}, odd...)...)
	j.want(t, 0)
	want := "<" + strings.Join(odd, "><") + "><" + strings.Join(odd, "|") + ">"
	if got := j.stdout.String(); strings.TrimSuffix(got, "\n") != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestHostThatRefuses(t *testing.T) {
	fault(t, "stop-sshd", "h3")
	j := launch(t, append([]string{"-H", all}, sleeper...)...)
	j.want(t, 125, "h3 (node 2): ", "Connection refused", "tried 4 times")
	nobody(t, time.Now(), settle)
}

func TestHostThatHangs(t *testing.T) {
	fault(t, "drop-ssh", "h3")
	j := launch(t, append([]string{"-H", all, "--connect-timeout", "1s"}, sleeper...)...)
	j.want(t, 125, "h3 (node 2): ", "timed out")
	if j.took > allowed(8*time.Second) {
		t.Errorf("it took %v", j.took)
	}
	nobody(t, time.Now(), settle)

	j = launch(t, append([]string{"-H", all, "--start-timeout", "2s"}, sleeper...)...)
	j.want(t, 124, "--start-timeout", "h3 (node 2, 10.77.23.3): its agent has not said hello for")
	if j.took > allowed(6*time.Second) {
		t.Errorf("it took %v", j.took)
	}
	nobody(t, time.Now(), settle)
}

func bashrc(t *testing.T, host, text string) {
	t.Helper()
	path := filepath.Join(bed.dir, host, "home", ".bashrc")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
}

func TestP70BannerIsSkipped(t *testing.T) {
	bashrc(t, "h3", "head -c 30000 /dev/urandom; echo; echo Welcome; echo on stderr >&2; printf 'no end of line'\n")
	j := launch(t, "-H", all, "--tag", "none", "--", "hostname")
	j.want(t, 0)
	if got := lines(j.stdout.String()); !slices.Equal(got, hosts) {
		t.Errorf("ranks say %q", got)
	}
}

func replaceBinary(t *testing.T, host, by string) {
	t.Helper()
	path := filepath.Join(bed.dir, host, "bin", "mkrun")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if by != "" {
		if err := os.Symlink(by, path); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_ = os.Remove(path)
		if err := os.Symlink(bed.mkrun, path); err != nil {
			t.Error(err)
		}
	})
}

func TestHostWithoutMkrun(t *testing.T) {
	replaceBinary(t, "h3", "")
	j := launch(t, append([]string{"-H", all}, sleeper...)...)
	j.want(t, 125, "h3 (node 2): ", `there is no "mkrun" there`, "--remote-mkrun")
	nobody(t, time.Now(), settle)

	launch(t, "-H", all, "--remote-mkrun", bed.mkrun, "--", "true").want(t, 0)
}

func TestHostWithAnotherVersion(t *testing.T) {
	replaceBinary(t, "h3", bed.other)
	j := launch(t, append([]string{"-H", all}, sleeper...)...)
	j.want(t, 125, "h3 (node 2): ", bed.foreign, bed.build)
	nobody(t, time.Now(), settle)
}

func TestWorkingDirectoryMissingOnOneHost(t *testing.T) {
	for _, h := range hosts {
		if h != "h3" {
			if err := os.MkdirAll(filepath.Join(bed.dir, h, "disk", "work"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	work := filepath.Join(bed.dir, "disk", "work")
	j := launch(t, append([]string{"-H", all, "--wdir", work}, sleeper...)...)
	j.want(t, 125, "rank 2 on h3 (node 2): ", work)
	nobody(t, time.Now(), settle)
	launch(t, "-H", "h1,h2,h4", "--wdir", work, "--", "true").want(t, 0)
}

// P23, P31, P32: the first failure ends all ranks, and its status is the rank's, not ssh's.
func TestP23P31P32FirstFailureEndsAll(t *testing.T) {
	for script, status := range map[string]int{"exit 3": 3, "kill -9 $$": 137, "exit 255": 255} {
		j := launch(t, "-H", all, "--", "sh", "-c", `[ $RANK = 3 ] && { `+script+`; }; exec sleep 7777`)
		j.want(t, status, "rank 3 on h4 (node 3): ")
		nobody(t, time.Now(), settle)
		if j.took > allowed(5*time.Second) {
			t.Errorf("%q took %v", script, j.took)
		}
	}
}

// P16, P17: the cable of a host is pulled. All others end, and so do the ranks on the host that is alone.
func TestP16P22HostIsCut(t *testing.T) {
	j := begin(t, append([]string{"-H", all}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	cut := time.Now()
	fault(t, "cut", "h3")
	<-j.done
	t.Logf("the launcher ended %v after the cut", time.Since(cut).Round(10*time.Millisecond))
	j.want(t, 125, "h3 (node 2): ", "said nothing for 3s")
	nobody(t, cut, 5*time.Second, "h1", "h2", "h4")
	nobody(t, cut, 6*time.Second, "h3")
}

// P17: an agent is killed. Its ranks die, and the job ends at once.
func TestP17AgentIsKilled(t *testing.T) {
	j := begin(t, append([]string{"-H", all}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	agents := waitFor(t, "mkrun agent", "h3")
	at := time.Now()
	kill(t, agents["h3"], syscall.SIGKILL)
	j.want(t, 125, "h3 (node 2): ")
	nobody(t, at, 2*time.Second)
}

// P16, P17, P19: the launcher is killed. No rank, agent or ssh is left anywhere.
func TestP16P17P19LauncherIsKilled(t *testing.T) {
	j := begin(t, append([]string{"-H", all}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	at := time.Now()
	kill(t, j.cmd.Process.Pid, syscall.SIGKILL)
	<-j.done
	nobody(t, at, 5*time.Second)
}

// P13: the time-out ends remote and local ranks alike.
func TestP13TimeoutEndsAllHosts(t *testing.T) {
	j := launch(t, append([]string{"-H", all, "--timeout", "2s"}, sleeper...)...)
	j.want(t, 124, "--timeout")
	nobody(t, time.Now(), settle)
}

// P14, P35: signals reach the ranks of all hosts; two leave nothing.
func TestP14P35SignalsReachAllHosts(t *testing.T) {
	j := begin(t, append([]string{"-H", all}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	kill(t, j.cmd.Process.Pid, syscall.SIGTERM)
	j.want(t, 143)
	nobody(t, time.Now(), settle)

	j = begin(t, "-H", all, "--", "sh", "-c", "trap '' INT TERM; while :; do sleep 7777; done")
	waitFor(t, "sleep 7777", hosts...)
	kill(t, j.cmd.Process.Pid, syscall.SIGINT)
	const again = 300 * time.Millisecond // the same at once is no other wish
	j.waitForStderr(t, "passed on to all ranks")
	time.Sleep(again)
	kill(t, j.cmd.Process.Pid, syscall.SIGINT)
	j.waitForStderr(t, "again: SIGTERM to all ranks")
	time.Sleep(again)
	kill(t, j.cmd.Process.Pid, syscall.SIGINT)
	j.want(t, 130)
	nobody(t, time.Now(), settle)
}

// P26: two jobs of one user on the same hosts; the end of one does not touch the other.
func TestP26TwoJobsAtOnce(t *testing.T) {
	longer := begin(t, "-H", "h2,h3", "--", "sleep", "6")
	waitFor(t, "sleep 6", "h2", "h3")
	j := begin(t, append([]string{"-H", "h2,h3"}, sleeper...)...)
	waitFor(t, "sleep 7777", "h2", "h3")
	kill(t, j.cmd.Process.Pid, syscall.SIGKILL)
	longer.want(t, 0)
	nobody(t, time.Now(), settle)
}

// Where UDP is blocked gossip has no opinion; jobs start all the same, and a death is seen.
func TestUDPIsBlocked(t *testing.T) {
	for _, h := range hosts {
		fault(t, "udp-block", h)
	}
	j := launch(t, "-H", all, "--check", "--json", "ag_gemm", "--m", "256", "--n", "128", "--k", "256")
	j.want(t, 0)
	j = begin(t, append([]string{"-H", all}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	cut := time.Now()
	fault(t, "cut", "h4")
	j.want(t, 125, "h4 (node 3): ")
	nobody(t, cut, 5*time.Second, "h1", "h2", "h3")
	nobody(t, cut, 6*time.Second, "h4")
}

// P56: what ranks have of the launcher's environment is what was asked for, over their own host's.
func TestP56Environment(t *testing.T) {
	t.Setenv("NCCL_E2E", "by default")
	t.Setenv("E2E_ASKED", "for")
	t.Setenv("E2E_NOT", "asked for")
	t.Setenv("SLURM_JOB_ID", "7")
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("E2E_FILE= a 'b' \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := launch(t, "-H", "h1,h2", "-x", "E2E_ASKED", "-x", "E2E_SET=1", "--env-file", file, "--only-rank", "1", "--tag", "none",
		"--", "sh", "-c", `echo "$NCCL_E2E|$E2E_ASKED|$E2E_NOT|$E2E_SET|$E2E_FILE|$SLURM_JOB_ID|$HOME|$PATH"`)
	j.want(t, 0)
	want := "by default|for||1| a 'b' ||" + filepath.Join(bed.dir, "h2", "home") + "|" + os.Getenv("PATH")
	if got := strings.TrimSuffix(j.stdout.String(), "\n"); got != want {
		t.Errorf("rank 1 has %q, want %q", got, want)
	}
	launch(t, "-H", "h1,h2", "-x", "E2E_UNSET", "--", "true").want(t, 2, "E2E_UNSET is not set here")
}

// P47: each rank's output is in files on its own host, and comes here too.
func TestP47OutputFilesOnEachHost(t *testing.T) {
	out := filepath.Join(bed.dir, "disk", "out")
	j := launch(t, "-H", "h[1-3]:4", "--output-dir", out, "--tag", "none", "--", "sh", "-c", "echo $RANK; echo err $RANK >&2")
	j.want(t, 0)
	if n := len(lines(j.stdout.String())); n != 12 {
		t.Errorf("%d lines came, want 12", n)
	}
	for rank := range 12 {
		base := filepath.Join(bed.dir, hosts[rank/4], "disk", "out", fmt.Sprintf("rank-%02d", rank))
		stdout, err := os.ReadFile(base + ".out")
		stderr, err2 := os.ReadFile(base + ".err")
		if err != nil || err2 != nil || string(stdout) != fmt.Sprintln(rank) || string(stderr) != fmt.Sprintln("err", rank) {
			t.Errorf("rank %d's files hold %q, %q (%v, %v)", rank, stdout, stderr, err, err2)
		}
	}
}

func TestOutputDirectoryThatCannotBeWritten(t *testing.T) {
	out := filepath.Join(bed.dir, "disk", "closed")
	if err := os.WriteFile(filepath.Join(bed.dir, "h3", "disk", "closed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j := launch(t, append([]string{"-H", all, "--output-dir", out}, sleeper...)...)
	j.want(t, 125, "h3 (node 2): --output-dir: ", out)
	nobody(t, time.Now(), settle)
}

// A full disk costs the file, not the job, and is said once.
func TestOutputDiskIsFull(t *testing.T) {
	out := filepath.Join(bed.dir, "disk", "full")
	if err := os.Mkdir(filepath.Join(bed.dir, "h3", "disk", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(bed.dir, "h3", "disk", "full", "rank-2.out")); err != nil {
		t.Fatal(err)
	}
	j := launch(t, "-H", all, "--output-dir", out, "--tag", "none", "--", "sh", "-c", "for i in 1 2 3; do echo $RANK; sleep 0.3; done")
	j.want(t, 0, "h3 (node 2): output file "+filepath.Join(out, "rank-2.out")+": no space left on device")
	if n := strings.Count(j.stderr.String(), "no space left"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	if n := len(lines(j.stdout.String())); n != 12 {
		t.Errorf("%d lines came, want 12", n)
	}
}

func TestDryRunShowsTheCommands(t *testing.T) {
	j := launch(t, "-H", "h1,root@h2", "--dry-run", "--", "true")
	j.want(t, 0)
	for _, want := range []string{"a child of this process, for h1", "-o BatchMode=yes", "-- root@h2 \"mkrun agent\"", "10.77.23.2"} {
		if !strings.Contains(j.stdout.String(), want) {
			t.Errorf("the dry run lacks %q", want)
		}
	}
}

// P29: what does not fit is refused before anything starts.
func TestP29NoRoom(t *testing.T) {
	launch(t, "-H", "h1:2,h2:2", "-n", "5", "--", "true").want(t, 125, "-n 5: the 2 hosts have room for 4 ranks")
	launch(t, "-H", "h1:2", "--ppn", "3", "--", "true").want(t, 125, "--ppn 3: h1 has 2 slots")
}

// P1: IPv6 addresses name hosts, and ranks then meet at IPv6 addresses.
func TestP1IPv6(t *testing.T) {
	j := launch(t, "-H", "[fd77:23::2]:2,fd77:23::3", "--tag", "none", "--", "sh", "-c", "echo $RANK $(hostname) $MASTER_ADDR $MKRUN_NODE_ADDR")
	j.want(t, 0)
	want := []string{"0 h2 fd77:23::2 fd77:23::2", "1 h2 fd77:23::2 fd77:23::2", "2 h3 fd77:23::2 fd77:23::3"}
	if got := lines(j.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
	launch(t, "-H", "[fd77:23::2]:1,[fd77:23::3]:1", "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256").want(t, 0)
}

// P59: --iface takes exact names, and says which there are.
func TestP59InterfaceByName(t *testing.T) {
	launch(t, "-H", "h1,h2", "--iface", "eth0", "--", "true").want(t, 0)
	launch(t, "-H", "h2,h3", "--iface", "eth", "--", "true").want(t, 125, "--iface eth: no such interface here", "docker0")
	// Nobody comes to a loopback address from another host: said at once.
	launch(t, "-H", "h1,h2", "--iface", "lo", "ag_gemm", "--net", "ofi", "--m", "64", "--n", "64", "--k", "64").want(t, 125, "--iface lo: no such interface here that is up and has an address that other hosts reach")
}

// P61: a name that is not known is tried until the start times out, which then says so.
func TestP61UnknownName(t *testing.T) {
	j := launch(t, "-H", "h1,h9", "--start-timeout", "4s", "--", "true")
	j.want(t, 124, "h9 (node 1): ", "Could not resolve hostname h9", "trying again until the start times out", "--start-timeout")
	nobody(t, time.Now(), settle)
}

// The test bed's own eyes: a process on a host is seen, and only there.
func TestBedSeesWhatIsLeft(t *testing.T) {
	cmd := exec.Command(bed.script, "exec", bed.dir, "h2", "sleep", "8888")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	pids := waitFor(t, "sleep 8888", "h2")
	if pids["h2"] != cmd.Process.Pid {
		t.Errorf("seen as %v, it is %d", pids, cmd.Process.Pid)
	}
	for _, h := range []string{"h1", "h3", "h4"} {
		if found := onHost(t, h); len(found) > 0 {
			t.Errorf("%s has %v", h, found)
		}
	}
}
