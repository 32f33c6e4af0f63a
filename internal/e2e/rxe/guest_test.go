//go:build rxe

package rxe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// jobLimit bounds every launch: emulated processors that share two real ones are slow.
const jobLimit = 120 * time.Second

// settle is how long after a launch its last process may take to be gone.
const settle = 20 * time.Second

// on runs a shell script as root on g1 or g2 and returns what it printed.
func on(t *testing.T, host, script string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", host+":23", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	const end = "\nstatus "
	if _, err := fmt.Fprintf(conn, "(%s) 2>&1; echo; echo status $?; exit\n", script); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("%s: %q: %v", host, script, err)
	}
	text, status, found := strings.Cut(string(out), end)
	if !found || strings.TrimSpace(status) != "0" {
		t.Fatalf("%s: %q: %s", host, script, out)
	}
	return text
}

// counter reads a counter of a NIC.
func counter(t *testing.T, host, nic, name string) int {
	t.Helper()
	text := strings.TrimSpace(on(t, host, "cat /sys/class/infiniband/"+nic+"/ports/1/hw_counters/"+name))
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// buffer may be read while it is written.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// job is a running mkrun launch on g1, with a rank on each machine.
type job struct {
	cmd            *exec.Cmd
	stdout, stderr buffer
	done           chan struct{}
}

// begin starts a launch of an operator. What it leaves is an error of the test.
func begin(t *testing.T, args ...string) *job {
	t.Helper()
	// Two machines with one emulated processor each may say nothing for a while where this host has much else to do.
	args = append([]string{"launch", "--agent", "standing", "-H", "g1,g2", "--silence", "30s", "--engine", "cpu"}, args...)
	j := &job{cmd: exec.CommandContext(t.Context(), "/bin/mkrun", args...), done: make(chan struct{})}
	j.cmd.Stdout, j.cmd.Stderr = &j.stdout, &j.stderr
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(jobLimit, func() { _ = j.cmd.Process.Kill() })
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

// want waits for the job's end and wants a status, words in stderr, and nothing of it left on the machines.
func (j *job) want(t *testing.T, status int, words ...string) {
	t.Helper()
	<-j.done
	if got := j.cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("exit status %d, want %d", got, status)
	}
	for _, w := range words {
		if !strings.Contains(j.stderr.String(), w) {
			t.Errorf("stderr lacks %q", w)
		}
	}
	if j.stderr.String() != "" {
		t.Logf("it said: %s", strings.TrimSpace(j.stderr.String()))
	}
	nobody(t)
}

// underWay waits until packets of the job go over a NIC.
func (j *job) underWay(t *testing.T, nic string) {
	t.Helper()
	const some = 200
	start := counter(t, "g1", nic, "sent_pkts")
	for counter(t, "g1", nic, "sent_pkts") < start+some {
		select {
		case <-j.done:
			t.Fatal("the job ended before its fault")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ranks lists the processes on a machine that are mkrun's, but for the standing agent and this test's launcher.
func ranks(t *testing.T, host string) (pids []string) {
	t.Helper()
	for line := range strings.Lines(on(t, host, "ps -o pid,args")) {
		pid, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		program, rest, _ := strings.Cut(command, " ")
		if strings.HasSuffix(program, "mkrun") && !strings.HasPrefix(rest, "agent --listen") && !strings.HasPrefix(rest, "launch") {
			pids = append(pids, pid+" "+command)
		}
	}
	return pids
}

// rank is the process of a machine's only rank.
func rank(t *testing.T, host string) (pid string) {
	t.Helper()
	all := ranks(t, host)
	for _, line := range all {
		if id, command, _ := strings.Cut(line, " "); strings.Contains(command, " rank") {
			if pid != "" {
				t.Fatalf("several ranks on %s: %q", host, all)
			}
			pid = id
		}
	}
	if pid == "" {
		t.Fatalf("no rank on %s: %q", host, all)
	}
	return pid
}

// nobody wants that nothing is left on the machines.
func nobody(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(settle); ; time.Sleep(100 * time.Millisecond) {
		left := slices.Concat(ranks(t, "g1"), ranks(t, "g2"))
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left after %v: %q", settle, left)
		}
	}
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
	args = append([]string{"--check", "--json", "ag_gemm", "--m", "96", "--n", "32", "--k", "128"}, args...)
	j := begin(t, args...)
	j.want(t, 0)
	var d document
	if err := json.Unmarshal([]byte(j.stdout.String()), &d); err != nil || d.Status != "pass" {
		t.Fatalf("%+v, %v", d, err)
	}
	return d
}
