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

// No host can connect to h1: it is behind NAT, so to say.
func behindNAT(t *testing.T) { fault(t, "drop-in", "h1") }

var others = []string{"h2", "h3", "h4"}

func TestHeadOnTheFirstHost(t *testing.T) {
	behindNAT(t)
	j := launch(t, "-H", "h[2-4]", "--start-timeout", "8s", "--", "true") // what it is for
	j.want(t, 124, "its agent runs, but has not reached this host at 10.77.23.1:", "--head first")

	way := []string{"-H", "h[2-4]:2", "--head", "first"}
	j = launch(t, append(slices.Clone(way), "--tag", "none", "--", "sh", "-c", "echo $RANK $(hostname) $MASTER_ADDR; echo err >&2")...)
	j.want(t, 0)
	var want []string
	for rank := range 6 {
		want = append(want, fmt.Sprintf("%d h%d 10.77.23.2", rank, rank/2+2))
	}
	if got := lines(j.stdout.String()); !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
	if n := strings.Count(j.stderr.String(), "err\n"); n != 6 {
		t.Errorf("%d lines on stderr, want 6", n)
	}
	launch(t, append(slices.Clone(way), "--", "sh", "-c", "[ $RANK = 5 ] && exit 6; exec sleep 7777")...).want(t, 6, "rank 5 on h4 (node 2): ")
	events := filepath.Join(t.TempDir(), "events")
	j = launch(t, append(slices.Clone(way), "--events", events, "--json", "--check", "ag_gemm", "--m", "240", "--n", "64", "--k", "64")...)
	j.want(t, 0)
	var doc struct{ Status string }
	if err := json.Unmarshal([]byte(j.stdout.String()), &doc); err != nil || doc.Status != "pass" {
		t.Errorf("result %+v, %v", doc, err)
	}
	if text, err := os.ReadFile(events); err != nil || strings.Count(string(text), `"job_end"`) != 1 || !strings.HasSuffix(string(text), `"event":"job_end","exit_status":0}`+"\n") {
		t.Errorf("events %q, %v", text, err)
	}
	nobody(t, time.Now(), settle)
}

// P17: the launcher is killed, the head is killed, the launcher's host is cut: the ranks end every time. Signals get through.
func TestP17HeadOnTheFirstHostEnds(t *testing.T) {
	behindNAT(t)
	way := append([]string{"-H", "h[2-4]", "--head", "first"}, sleeper...)
	j := begin(t, way...)
	waitFor(t, "sleep 7777", others...)
	kill(t, j.cmd.Process.Pid, syscall.SIGTERM)
	j.want(t, 143)
	nobody(t, time.Now(), settle)

	j = begin(t, way...)
	waitFor(t, "sleep 7777", others...)
	at := time.Now()
	kill(t, j.cmd.Process.Pid, syscall.SIGKILL)
	<-j.done
	nobody(t, at, 5*time.Second)

	j = begin(t, way...)
	waitFor(t, "sleep 7777", others...)
	kill(t, waitFor(t, "mkrun head", "h2")["h2"], syscall.SIGTERM) // by whoever ends all there: ranks have their grace
	j.want(t, 143, "terminated: passed on to all ranks")
	nobody(t, time.Now(), settle)

	j = begin(t, way...)
	waitFor(t, "sleep 7777", others...)
	at = time.Now()
	kill(t, waitFor(t, "mkrun head", "h2")["h2"], syscall.SIGKILL)
	j.want(t, 125, "h2 (node 0): the job's head, which is there, is gone")
	nobody(t, at, 6*time.Second)

	j = begin(t, way...)
	waitFor(t, "sleep 7777", others...)
	at = time.Now()
	fault(t, "cut", "h1")
	nobody(t, at, 5*time.Second+settle, others...)
	j.want(t, 125, "the job's head, which is there, is gone: it said nothing for 4.5s")
}
