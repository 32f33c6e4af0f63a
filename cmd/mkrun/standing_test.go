package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waitingAgents are the agents that wait for a launch below a process.
func waitingAgents(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		pid, rest, _ := strings.Cut(string(stat), " ")
		if strings.HasPrefix(rest, "(mkrun-waiting) ") && strings.Fields(rest)[2] == strconv.Itoa(parent) {
			n, _ := strconv.Atoi(pid)
			pids = append(pids, n)
		}
	}
	return pids
}

// A standing agent has an agent ready, which the next launch gets; then another, and also when one was killed.
func TestStandingAgentHasOneReady(t *testing.T) {
	mkrun, dir := filepath.Join(binaryDir, "mkrun"), t.TempDir()
	standing := exec.CommandContext(t.Context(), mkrun, "agent", "--listen=127.0.0.1:0", "--secret", dir+"/secret")
	standing.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	said, err := standing.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := standing.Start(); err != nil {
		t.Fatal(err)
	}
	port := ""
	for lines := bufio.NewScanner(said); port == "" && lines.Scan(); {
		if _, at, ok := strings.Cut(lines.Text(), "waiting for launches at 127.0.0.1:"); ok {
			port = at
		}
	}
	ready := func(not int) (pid int) {
		for end := time.Now().Add(pollLimit); ; time.Sleep(5 * time.Millisecond) {
			if pids := waitingAgents(standing.Process.Pid); len(pids) == 1 && pids[0] != not {
				return pids[0]
			}
			if time.Now().After(end) {
				t.Fatalf("no agent is ready but %d", not)
			}
		}
	}
	launch := func() (agent int) {
		events := filepath.Join(dir, "events")
		cmd := exec.CommandContext(t.Context(), mkrun, "launch", "-H", "127.0.0.1", "--agent", "standing", "--agent-port", port,
			"--secret", dir+"/secret", "--events", events, "--", "true")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		text, err := os.ReadFile(events)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var ev struct {
				Event string
				PID   int
			}
			if err := json.Unmarshal([]byte(line), &ev); err != nil {
				t.Fatal(err)
			}
			if ev.Event == "node_joined" {
				return ev.PID
			}
		}
		t.Fatalf("nobody joined:\n%s", text)
		return 0
	}
	first := ready(0)
	if agent := launch(); agent != first {
		t.Errorf("the launch got agent %d, and not %d, which was ready", agent, first)
	}
	second := ready(first)
	if err := syscall.Kill(second, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(pollLimit); syscall.Kill(second, 0) == nil; time.Sleep(time.Millisecond) { // a launch at the moment of its death would get it
		if time.Now().After(end) {
			t.Fatalf("agent %d was killed and is not gone", second)
		}
	}
	if agent := launch(); agent == second {
		t.Error("the launch got an agent that was killed")
	}
	last := ready(second)
	if err := standing.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := standing.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", last)); err == nil {
		t.Errorf("agent %d has outlived the standing one", last)
	}
}
