package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// joinBed is where the nodes of a joined launch meet: a secret, and an address of this host that is free.
type joinBed struct{ secret, at string }

// joinPort is the port of the next one. Neither does the kernel give such a port to those that ask for any, which tests of other
// packages do at the same time, nor mkrun to a job.
var joinPort = 15000 + os.Getpid()%4000

func newJoinBed(t *testing.T) joinBed {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		joinPort++
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", joinPort)); err == nil {
			defer func() { _ = listener.Close() }()
			return joinBed{secret, listener.Addr().String()}
		}
	}
	t.Fatalf("none of the ports to %d is free", joinPort)
	return joinBed{}
}

// joined is one node's mkrun.
type joined struct {
	cmd  *exec.Cmd
	said strings.Builder
}

func (b joinBed) start(t *testing.T, index int, args ...string) *joined {
	t.Helper()
	j := &joined{cmd: exec.CommandContext(t.Context(), filepath.Join(binaryDir, "mkrun"), append([]string{"launch", "--join", b.secret, "--join-at", b.at}, args...)...)}
	j.cmd.Env = append(os.Environ(), fmt.Sprintf("JOB_COMPLETION_INDEX=%d", index), "GORACE=atexit_sleep_ms=0")
	j.cmd.Stdout, j.cmd.Stderr = &j.said, &j.said
	j.cmd.WaitDelay = time.Second
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return j
}

// want waits for the end of a node's mkrun, and wants its status and words.
func (j *joined) want(t *testing.T, status int, words ...string) {
	t.Helper()
	var ended *exec.ExitError
	if err := j.cmd.Wait(); err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	if got := j.cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("exit status %d, want %d\n%s", got, status, j.said.String())
	}
	for _, w := range words {
		if !strings.Contains(j.said.String(), w) {
			t.Errorf("it lacks %q:\n%s", w, j.said.String())
		}
	}
}

// Every node's mkrun ends with the job's status, the one whose own rank failed too: what restarts nodes by their status
// restarts all or none.
func TestJoinedNodesEndWithTheJobsStatus(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		program string
	}{
		"well":            {0, "exit 0"},
		"another's fails": {9, "[ $RANK = 0 ] && exit 9; exec sleep 7777"},
		"its own fails":   {9, "[ $RANK = 1 ] && exit 9; exec sleep 7777"},
		"by a signal":     {137, "[ $RANK = 1 ] && kill -KILL $$; exec sleep 7777"},
	} {
		t.Run(name, func(t *testing.T) {
			bed := newJoinBed(t)
			var nodes []*joined
			for index := range 3 {
				nodes = append(nodes, bed.start(t, index, "--nodes", "3", "--", "sh", "-c", c.program))
			}
			for _, n := range nodes {
				n.want(t, c.status)
			}
		})
	}
}

// Whoever is started with other numbers than it should is told so, as is node 0; the job waits for the right ones.
func TestJoinMistakesAreNamed(t *testing.T) {
	bed := newJoinBed(t)
	head := bed.start(t, 0, "--nodes", "3", "--", "true")
	bed.start(t, 1, "--nodes", "4", "--", "true").want(t, 125, "turned this process away", "it was told that there are 4 nodes, node 0 that there are 3", "--nodes")
	twins := []*joined{bed.start(t, 1, "--nodes", "3", "--", "true"), bed.start(t, 1, "--nodes", "3", "--", "true")}
	ends := make(chan int)
	for i, twin := range twins {
		go func() {
			_ = twin.cmd.Wait() // its status is looked at
			ends <- i
		}()
	}
	second := <-ends // the other one waits for node 2
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got, text := twins[second].cmd.ProcessState.ExitCode(), twins[second].said.String(); got != 125 || !strings.Contains(text, "node 1 is there already, from "+host) {
		t.Errorf("the second node 1 ends with status %d and says:\n%s", got, text)
	}
	bed.start(t, 2, "--nodes", "3", "--", "true").want(t, 0)
	head.want(t, 0, "node1 (node 1): turned a process away that wants to join from "+host, "node 1 is there already")
	if first := <-ends; twins[first].cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("the first node 1 says:\n%s", twins[first].said.String())
	}
}

// Without node 0 the others end at --start-timeout, as a job does that cannot start; so does node 0 without them.
func TestJoinEndsAtStartTimeout(t *testing.T) {
	bed := newJoinBed(t)
	bed.start(t, 1, "--nodes", "2", "--start-timeout", "300ms", "--", "true").want(t, 124, "node 0, which launches, was not found within 300ms (--start-timeout)", bed.at)
	head := bed.start(t, 0, "--nodes", "3", "--start-timeout", "4s", "--", "true")
	here := bed.start(t, 1, "--nodes", "3", "--start-timeout", "20s", "--", "true")
	head.want(t, 124, "--start-timeout", "node2 (node 2, ")
	here.want(t, 124)
}

// A port that is taken is named, with what may have it.
func TestJoinPortIsTaken(t *testing.T) {
	bed := newJoinBed(t)
	listener, err := net.Listen("tcp", bed.at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	bed.start(t, 0, "--nodes", "2", "--", "true").want(t, 125, "--join-at "+bed.at, "node 0")
}
