//go:build rxe

package rxe

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/e2e/capture"
)

// slow is what a job needs to outlast a busy host: no bound but that of the test itself may be what ends it. Its control
// is kept off the NICs that are harmed.
var slow = []string{"--iface", "eth0", "--silence", "5m", "--start-timeout", "5m", "--wait-timeout", "2m", "--abort-grace", "1m"}

// verbs is what a job needs for that in addition over verbs.
var verbs = []string{"--net", "ibverbs", "--net-dead-peer", "61s"}

// oneNIC and twoNICs are verbs over NICs by name.
var (
	oneNIC  = slices.Concat(verbs, []string{"--net-devices", "rxe0"})
	twoNICs = slices.Concat(verbs, []string{"--net-devices", "rxe0,rxe1"})
)

// job is a running mkrun launch on g1, with a rank on each machine.
type job struct {
	cmd            *exec.Cmd
	stdout, stderr capture.Buffer
	done           chan struct{}
}

// begin starts a launch of an operator. Flags override those of slow.
func begin(t *testing.T, args ...string) *job {
	t.Helper()
	args = slices.Concat([]string{"launch", "--agent", "standing", "-H", "g1,g2", "--engine", "cpu"}, slow, args)
	j := &job{cmd: exec.CommandContext(t.Context(), "/bin/mkrun", args...), done: make(chan struct{})}
	j.cmd.Stdout, j.cmd.Stderr = &j.stdout, &j.stderr
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(patience, func() { _ = j.cmd.Process.Kill() })
	go func() {
		_ = j.cmd.Wait() // its status is looked at
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

// ends waits for the job's end and wants a status, and texts that match in stderr.
func (j *job) ends(t *testing.T, status int, texts ...string) {
	t.Helper()
	<-j.done
	if got := j.cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("exit status %d, want %d", got, status)
	}
	for _, text := range texts {
		if !regexp.MustCompile(text).MatchString(j.stderr.String()) {
			t.Errorf("stderr lacks %q", text)
		}
	}
	if j.stderr.String() != "" {
		t.Logf("it said: %s", strings.TrimSpace(j.stderr.String()))
	}
}

// want is ends, with nothing of the job left on the machines.
func (j *job) want(t *testing.T, status int, texts ...string) {
	t.Helper()
	j.ends(t, status, texts...)
	nobody(t, "g1", "g2")
}

// underWay waits until packets of the job's calls go over rxe0 of both machines.
func (j *job) underWay(t *testing.T, packets int) {
	t.Helper()
	if !j.comesUnderWay(t, packets) {
		t.Fatal("the job ended before its fault")
	}
}

// comesUnderWay is false if the job ended before.
func (j *job) comesUnderWay(t *testing.T, packets int) bool {
	t.Helper()
	for _, host := range []string{"g1", "g2"} {
		start := counter(t, host, "rxe0", "sent_pkts")
		ended := false
		until(t, "under way", func() bool {
			select {
			case <-j.done:
				ended = true
			default:
			}
			return ended || counter(t, host, "rxe0", "sent_pkts") >= start+packets
		})
		if ended {
			return false
		}
	}
	return true
}

// doomed is a job under way that goes on until nobody answers its NIC for a while. One that ends before, since a machine stood
// still for so long, is begun again.
func doomed(t *testing.T, flags ...string) (j *job) {
	t.Helper()
	until(t, "a job under way", func() bool {
		j = begin(t, slices.Concat(endless, dead, flags)...)
		if j.comesUnderWay(t, 200) {
			return true
		}
		j.want(t, 125, `transport retry counter exceeded \(status 12`)
		ready(t)
		return false
	})
	return j
}

// document is the part of a result that tests look at.
type document struct {
	Status string `json:"status"`
	Net    string `json:"net"`
	Why    string `json:"net_why"`
	Digest string `json:"digest"`
}

// product runs a checked product to its end and returns the document.
func product(t *testing.T, args ...string) document {
	t.Helper()
	j := begin(t, slices.Concat([]string{"--check", "--json", "ag_gemm", "--m", "96", "--n", "32", "--k", "128"}, args)...)
	j.want(t, 0)
	var d document
	if err := json.Unmarshal([]byte(j.stdout.String()), &d); err != nil || d.Status != "pass" {
		t.Fatalf("%+v, %v", d, err)
	}
	return d
}
