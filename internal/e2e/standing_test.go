//go:build testbed

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/e2e/capture"
)

// stand lets agents stand on the hosts until the test ends. They share a secret file, which the first one makes.
func stand(tb testing.TB, on ...string) (secret string, agents map[string]*exec.Cmd) {
	tb.Helper()
	secret = filepath.Join(tb.TempDir(), "mkrun", "secret")
	agents = map[string]*exec.Cmd{}
	for _, h := range on {
		cmd := exec.Command(bed.script, "exec", bed.dir, h, bed.mkrun, "agent", "--listen", "--secret", secret)
		said := &capture.Buffer{}
		cmd.Stderr = said
		if err := cmd.Start(); err != nil {
			tb.Fatal(err)
		}
		agents[h] = cmd
		tb.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
			if tb.Failed() {
				tb.Logf("%s's standing agent said:\n%s", h, said.String())
			}
		})
		for end := time.Now().Add(time.Minute); !strings.Contains(said.String(), "waiting for launches"); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				tb.Fatalf("%s's agent does not stand: %s", h, said.String())
			}
		}
	}
	return secret, agents
}

func TestStandingAgents(t *testing.T) {
	secret, _ := stand(t, hosts...)
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("secret file: %v, %v", info.Mode(), err)
	}
	way := []string{"--agent", "standing", "--secret", secret}
	longer := begin(t, append(slices.Clone(way), "-H", all, "--", "sleep", "3")...) // two launches at once
	j := launch(t, append(slices.Clone(way), "-H", all+":2", "--tag", "none", "--", "sh", "-c", "echo $RANK $(hostname) $MKRUN_NODE_ADDR")...)
	j.want(t, 0)
	var want []string
	for rank := range 8 {
		want = append(want, fmt.Sprintf("%d h%d 10.77.23.%d", rank, rank/2+1, rank/2+1))
	}
	if got := lines(j.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
	longer.want(t, 0)
	launch(t, append(slices.Clone(way), "-H", all, "--check", "ag_gemm", "--m", "256", "--n", "128", "--k", "256")...).want(t, 0)
	launch(t, append(slices.Clone(way), "-H", all, "--", "sh", "-c", "[ $RANK = 1 ] && exit 1; exec sleep 7777")...).want(t, 1, "rank 1 on h2 (node 1): ")
	nobody(t, time.Now(), settle)
}

// P17: a standing agent is killed; its launch's ranks end, and the host is named. The launcher is killed: the same.
func TestP17StandingAgentIsKilled(t *testing.T) {
	secret, agents := stand(t, hosts...)
	way := []string{"--agent", "standing", "--secret", secret, "-H", all}
	j := begin(t, append(slices.Clone(way), sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	at := time.Now()
	kill(t, j.cmd.Process.Pid, syscall.SIGKILL)
	nobody(t, at, 5*time.Second)

	j = begin(t, append(slices.Clone(way), sleeper...)...)
	waitFor(t, "sleep 7777", hosts...)
	at = time.Now()
	kill(t, agents["h3"].Process.Pid, syscall.SIGKILL)
	j.want(t, 125, "h3 (node 2): ")
	nobody(t, at, 5*time.Second)
}

// Who does not have the secret gets nothing; where nobody listens the message says what to do; a secret that others
// can read is none.
func TestStandingAgentsOfOthers(t *testing.T) {
	secret, _ := stand(t, "h2", "h3")
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	launch(t, "--agent", "standing", "--secret", other, "-H", "h2,h3", "--", "true").want(t, 125, "no standing agent there: ", "another secret") // on either host
	launch(t, "--agent", "standing", "--secret", secret, "-H", "h2,h4", "--", "true").want(t, 125, "h4 (node 1): no standing agent there: ", "mkrun agent --listen")
	if err := os.Chmod(other, 0o640); err != nil {
		t.Fatal(err)
	}
	launch(t, "--agent", "standing", "--secret", other, "-H", "h2", "--", "true").want(t, 2, "is open to others (mode 0640): chmod 600")
	nobody(t, time.Now(), settle)
}

// As pods of a Kubernetes Job do: the same command on every host, no folder in common, a secret that is there already.
func TestJoinWithoutASharedFolder(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("5a", 32)+"\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	var first *job
	for node, h := range hosts {
		argv := []string{
			"exec", bed.dir, h, "env", fmt.Sprintf("JOB_COMPLETION_INDEX=%d", node), bed.mkrun, "launch", "--join", secret,
			"--join-at", "h1:7612", "--nodes", "4", "--ppn", "2", "--tag", "none", "--", "sh", "-c", "echo $RANK $(hostname) $MASTER_ADDR",
		}
		j := start(t, exec.Command(bed.script, argv...))
		if node == 0 {
			first = j
		} else {
			defer j.want(t, 0)
		}
	}
	first.want(t, 0)
	var want []string
	for rank := range 8 {
		want = append(want, fmt.Sprintf("%d h%d 10.77.23.1", rank, rank/2+1))
	}
	if got := lines(first.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
}
