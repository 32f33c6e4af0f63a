//go:build testbed

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
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
func TestP7RanksAreToldReachableAddresses(t *testing.T) {
	j := launch(t, "-H", all+":2", "--tag", "none", "--", "sh", "-c", "echo $RANK $LOCAL_RANK $(hostname) $MKRUN_NODE_ADDR $MASTER_ADDR")
	j.want(t, 0)
	var want []string
	for rank := range 8 {
		want = append(want, fmt.Sprintf("%d %d h%d 10.77.23.%d 10.77.23.1", rank, rank%2, rank/2+1, rank/2+1))
	}
	if got := lines(j.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
	nobody(t, time.Now(), time.Second)
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
	if err := json.Unmarshal(j.stdout.Bytes(), &doc); err != nil || doc.Status != "pass" || doc.World.Nodes != 4 || doc.World.Size != 4 {
		t.Errorf("result %+v, %v", doc, err)
	}
	nobody(t, time.Now(), time.Second)
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
func TestP50P55NothingIsReadByAShell(t *testing.T) {
	odd := []string{"a b", "", "$(touch /tmp/x)", "it's", `"`, `back\`, "64(x2)", "*", "ü\ttab", "a\nb", ";true", "-x", "~"}
	t.Setenv("ODD", strings.Join(odd, "|"))
	j := launch(t, append([]string{"-H", "h2", "--tag", "none", "--", "sh", "-c", `printf '<%s>' "$@" "$ODD"`, "sh"}, odd...)...)
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
	nobody(t, time.Now(), time.Second)
}

func TestHostThatHangs(t *testing.T) {
	fault(t, "drop-ssh", "h3")
	j := launch(t, append([]string{"-H", all, "--connect-timeout", "1s"}, sleeper...)...)
	j.want(t, 125, "h3 (node 2): ", "timed out")
	if j.took > 8*time.Second {
		t.Errorf("it took %v", j.took)
	}
	nobody(t, time.Now(), time.Second)

	j = launch(t, append([]string{"-H", all, "--start-timeout", "2s"}, sleeper...)...)
	j.want(t, 124, "--start-timeout", "h3 (node 2, 10.77.23.3): its agent has not said hello for")
	if j.took > 6*time.Second {
		t.Errorf("it took %v", j.took)
	}
	nobody(t, time.Now(), time.Second)
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
	nobody(t, time.Now(), time.Second)

	launch(t, "-H", all, "--remote-mkrun", bed.mkrun, "--", "true").want(t, 0)
}

func TestHostWithAnotherVersion(t *testing.T) {
	replaceBinary(t, "h3", bed.other)
	j := launch(t, append([]string{"-H", all}, sleeper...)...)
	j.want(t, 125, "h3 (node 2): ", bed.foreign, bed.build)
	nobody(t, time.Now(), time.Second)
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
	nobody(t, time.Now(), time.Second)
	launch(t, "-H", "h1,h2,h4", "--wdir", work, "--", "true").want(t, 0)
}

// P23, P31, P32: the first failure ends all ranks, and its status is the rank's, not ssh's.
func TestP31FirstFailureEndsAll(t *testing.T) {
	for script, status := range map[string]int{"exit 3": 3, "kill -9 $$": 137, "exit 255": 255} {
		j := launch(t, "-H", all, "--", "sh", "-c", `[ $RANK = 3 ] && { `+script+`; }; exec sleep 7777`)
		j.want(t, status, "rank 3 on h4 (node 3): ")
		nobody(t, time.Now(), time.Second)
		if j.took > 5*time.Second {
			t.Errorf("%q took %v", script, j.took)
		}
	}
}

// P16, P17: the cable of a host is pulled. All others end, and so do the ranks on the host that is alone.
func TestHostIsCut(t *testing.T) {
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
func TestP17LauncherIsKilled(t *testing.T) {
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
	nobody(t, time.Now(), time.Second)
}

// P14, P35: signals reach the ranks of all hosts; two leave nothing.
func TestP14SignalsReachAllHosts(t *testing.T) {
	j := begin(t, append([]string{"-H", all}, sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	kill(t, j.cmd.Process.Pid, syscall.SIGTERM)
	j.want(t, 143)
	nobody(t, time.Now(), time.Second)

	j = begin(t, "-H", all, "--", "sh", "-c", "trap '' INT TERM; while :; do sleep 7777; done")
	waitFor(t, "sleep 7777", hosts...)
	kill(t, j.cmd.Process.Pid, syscall.SIGINT)
	kill(t, waitForNotice(t, j), syscall.SIGINT)
	j.want(t, 130)
	nobody(t, time.Now(), 2*time.Second)
}

// waitForNotice waits until the first signal was taken, since two at once are one.
func waitForNotice(t *testing.T, j *job) int {
	t.Helper()
	time.Sleep(200 * time.Millisecond)
	return j.cmd.Process.Pid
}

// P26: two jobs of one user on the same hosts; the end of one does not touch the other.
func TestP26TwoJobsAtOnce(t *testing.T) {
	longer := begin(t, "-H", "h2,h3", "--", "sleep", "6")
	waitFor(t, "sleep 6", "h2", "h3")
	j := begin(t, append([]string{"-H", "h2,h3"}, sleeper...)...)
	waitFor(t, "sleep 7777", "h2", "h3")
	kill(t, j.cmd.Process.Pid, syscall.SIGKILL)
	longer.want(t, 0)
	nobody(t, time.Now(), 2*time.Second)
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
