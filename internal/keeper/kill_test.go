package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/stdio"
)

// tree is a rank that does all it can to leave something behind: a child, a process in a session of its own and a
// daemon that was forked twice; none of them listens to SIGTERM.
const tree = `
trap '' TERM HUP INT
sleep 1000 &
setsid sh -c '(setsid sh -c "echo daemon; exec sleep 1000" &); echo session; exec sleep 1000' &
echo rank
while :; do wait; done`

var treeUp = []string{"daemon", "session", "rank"}

func TestP28KillReachesEverything(t *testing.T) {
	c := newCollector()
	g := start(t, c, shell(0, tree), shell(1, tree))
	c.await(0, treeUp...)
	c.await(1, treeUp...)
	g.Kill()
	for rank, x := range finish(t, g) {
		if x.Signal != syscall.SIGKILL || !x.KilledByUs {
			t.Errorf("rank %d: %+v", rank, x)
		}
	}
}

// The searches that other tests rely on must be able to fail.
func TestMarkedFindsTheTree(t *testing.T) {
	c, m := newCollector(), mark()
	g := start(t, c, shell(0, tree, m))
	c.await(0, treeUp...)
	// The rank, its child, its session and its daemon. One that is being replaced by another program has no environment for
	// that moment; the test's time-out bounds the wait.
	for len(marked(t, m)) < 4 {
		runtime.Gosched()
	}
	g.Kill()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	noneMarked(t, m)
}

func TestKeeperKilled(t *testing.T) {
	stranger := exec.Command("sleep", "1000") // a child of the agent that is not a keeper's
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	other := newCollector()
	neighbour := start(t, other, shell(7, "trap 'echo alive' USR1; echo up; while :; do sleep 0.05; done"))
	other.await(7, "up")

	c, m := newCollector(), mark()
	g := start(t, c, shell(0, tree, m), shell(1, tree, m))
	c.await(0, treeUp...)
	c.await(1, treeUp...)
	if err := syscall.Kill(g.keeper.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exits := finish(t, g)
	for rank := range 2 {
		if x := exits[rank]; x.Signal != syscall.SIGKILL || !x.KilledByUs {
			t.Errorf("rank %d: %+v", rank, x)
		}
	}
	if err := g.Wait(); !errors.Is(err, ErrKeeperLost) {
		t.Errorf("got %v, want %v", err, ErrKeeperLost)
	}
	noneMarked(t, m)

	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the agent's own child is gone: %v", err)
	}
	if err := neighbour.Signal(syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	other.await(7, "alive")
}

func TestKeeperDiesBeforeAnyRank(t *testing.T) {
	g, err := Start(t.Context(), Spec{Self: "/bin/false", Ranks: []RankSpec{shell(0, "true")}}, newCollector())
	if err != nil {
		t.Fatal(err)
	}
	x := finish(t, g)[0]
	if err := g.Wait(); !errors.Is(err, ErrKeeperLost) || x.ExecError == "" || x.Code != 125 || !x.KilledByUs {
		t.Errorf("%v, %+v", err, x)
	}
}

// agentProcess runs an agent with one tree-like rank in a process of its own and returns its pid, its keeper's and its rank's.
func agentProcess(t *testing.T, m, script string, env ...string) (agent *exec.Cmd, keeper, rank int) {
	t.Helper()
	if err := BecomeSubreaper(); err != nil { // so that this test, not init, gets the orphans
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	agent = exec.Command(self(), "agent", script)
	agent.Env = append(append(os.Environ(), m), env...)
	agent.Stdout, agent.Stderr = w, os.Stderr
	agent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	lines := scanLines(t, r)
	want := slices.Clone(treeUp)
	for line := range lines {
		_, _ = fmt.Sscanf(line, "started %d %d", &rank, &keeper)
		want = slices.DeleteFunc(want, func(s string) bool { return s == line })
		if len(want) == 0 && rank != 0 {
			break
		}
	}
	if rank == 0 {
		t.Fatal("the agent did not start its rank")
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill() // of a test that failed before it did
		for range lines {        // until the last holder of the pipe is gone
		}
		_ = r.Close()
	})
	return agent, keeper, rank
}

func TestP16P17AgentKilled(t *testing.T) {
	m := mark()
	agent, _, _ := agentProcess(t, m, tree)
	gone := whenGone(t, marked(t, m)...)
	_ = agent.Process.Kill()
	gone()
	_ = agent.Wait()
	noneMarked(t, m)
	if left, err := KillDescendants(); err != nil || len(left) > 0 { // reaps the keeper
		t.Error(left, err)
	}
}

// A keeper that was stopped is the only one who can end the ranks of an agent that was killed.
func TestP16StoppedKeeperGoesOnWhenItsAgentIsKilled(t *testing.T) {
	m := mark()
	agent, keeper, _ := agentProcess(t, m, tree)
	gone := whenGone(t, marked(t, m)...)
	if err := syscall.Kill(keeper, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for p, _ := readProcess(keeper); !p.stopped(); p, _ = readProcess(keeper) { // the test's time-out bounds it
		runtime.Gosched()
	}
	_ = agent.Process.Kill()
	gone()
	_ = agent.Wait()
	noneMarked(t, m)
	if left, err := KillDescendants(); err != nil || len(left) > 0 { // reaps the keeper
		t.Error(left, err)
	}
}

func TestRanksGetAbortGraceWhenTheAgentDies(t *testing.T) {
	m, file := mark(), t.TempDir()+"/bye"
	script := `setsid sh -c 'trap "" TERM; echo daemon; exec sleep 1000' &
trap 'echo to nobody; echo to nobody >&2; echo bye >` + file + `; exit' TERM; echo session; echo rank; while :; do sleep 0.02; done`
	agent, _, _ := agentProcess(t, m, script, "KEEPER_TEST_GRACE=2s")
	gone := whenGone(t, marked(t, m)...)
	_ = agent.Process.Kill()
	gone()
	_ = agent.Wait()
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the rank had no time to clean up: %v", err)
	}
	noneMarked(t, m)
	if left, err := KillDescendants(); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

func TestKeeperThatDoesNotObeyIsReplaced(t *testing.T) {
	t.Run("stopped", func(t *testing.T) {
		c := newCollector()
		g := start(t, c, shell(0, tree))
		g.patience = time.Hour // it is seen to be stopped, and not waited for
		c.await(0, treeUp...)
		if err := syscall.Kill(g.keeper.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		g.Stop(0)
		if x := finish(t, g)[0]; x.Signal != syscall.SIGKILL || !x.KilledByUs {
			t.Errorf("%+v", x)
		}
		if err := g.Wait(); !errors.Is(err, ErrKeeperLost) {
			t.Errorf("got %v, want %v", err, ErrKeeperLost)
		}
	})
	t.Run("deaf", func(t *testing.T) {
		deaf := t.TempDir() + "/deaf"
		if err := os.WriteFile(deaf, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		g, err := Start(t.Context(), Spec{Self: deaf, Ranks: []RankSpec{shell(0, "true")}}, newCollector())
		if err != nil {
			t.Fatal(err)
		}
		g.patience = 20 * time.Millisecond
		g.Kill()
		if x := finish(t, g)[0]; x.ExecError == "" || !x.KilledByUs {
			t.Errorf("%+v", x)
		}
		if err := g.Wait(); !errors.Is(err, ErrKeeperLost) {
			t.Errorf("got %v, want %v", err, ErrKeeperLost)
		}
	})
}

// When both die at once the ranks die with the keeper's thread; what the ranks left behind falls to the next
// subreaper above, here this test, on a user's machine the launcher.
func TestAgentAndKeeperKilledAtOnce(t *testing.T) {
	m := mark()
	agent, keeper, rank := agentProcess(t, m, tree)
	gone := whenGone(t, agent.Process.Pid, keeper, rank)
	all := whenGone(t, marked(t, m)...)
	_ = agent.Process.Signal(syscall.SIGSTOP) // so that it cannot act first
	_ = syscall.Kill(keeper, syscall.SIGKILL)
	_ = agent.Process.Kill()
	gone()
	_ = agent.Wait()
	if left, err := KillDescendants(); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	all()
	noneMarked(t, m)
}

func TestKeeperIsNotCalledAsTheAgent(t *testing.T) {
	c := newCollector()
	g := start(t, c, shell(0, "echo up; exec sleep 1000"))
	c.await(0, "up")
	p, ok := readProcess(g.keeper.cmd.Process.Pid)
	if !ok || p.Name != ProcessName {
		t.Errorf("the keeper is called %q, want %q", p.Name, ProcessName)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
	if got, want := string(cmdline), ProcessName+"\x00"+CommandName+"\x00"; err != nil || got != want {
		t.Errorf("command line %q, want %q (%v)", got, want, err)
	}
}

func TestP20DaemonDoesNotHoldTheJob(t *testing.T) {
	for name, script := range map[string]string{
		"closed its files": "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo out",
		"holds its files":  "setsid sleep 1000 & echo out; exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector()
			g := start(t, c, shell(0, script))
			x := finish(t, g)[0]
			if x.KilledByUs || c.get(0, stdio.Stdout) != "out\n" {
				t.Errorf("%+v, %q", x, c.get(0, stdio.Stdout))
			}
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Bombs of bounded size, killed while they grow.
func TestForkBombs(t *testing.T) {
	dir := t.TempDir()
	runner := dir + "/runner"
	if err := os.WriteFile(runner, []byte(`#!/bin/sh
[ $1 -gt 0 ] && setsid $0 $(($1-1)) &
`), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"growing":   `trap '' TERM; b() { [ $1 -gt 0 ] && { b $(($1-1)) & b $(($1-1)) & }; exec sleep 1000; }; echo up; b 8`,
		"respawn":   `trap '' TERM; w() { n=0; while [ $n -lt 3000 ]; do sleep 1000; n=$((n+1)); done; }; w & w & w & w & echo up; w`,
		"one group": `c() { [ $1 -gt 0 ] && c $(($1-1)) & }; c 3000; echo up; exec sleep 1000`,
		"sessions":  runner + ` 3000; echo up; exec sleep 1000`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector()
			g := start(t, c, shell(0, script))
			c.await(0, "up")
			killed := time.Now()
			g.Kill()
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
			t.Logf("all gone after %v", time.Since(killed))
		})
	}
}

// All are frozen before the first dies: no rank sees a peer die and blames it in the last lines of its stderr.
func TestKillLetsNoneSeeAnotherDie(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector()
	holder := shell(0, "echo up; exec sleep 1000")
	holder.Files = []*os.File{w}
	ranks := []RankSpec{holder}
	for i := range 15 {
		watcher := shell(1+i, "echo up; while :; do read x || echo my peer died; done")
		watcher.Stdin = r
		ranks = append(ranks, watcher)
	}
	g := start(t, c, ranks...)
	_, _ = r.Close(), w.Close()
	for i := range ranks {
		c.await(i, "up")
	}
	g.Kill()
	finish(t, g)
	for i := range ranks {
		if got := c.get(i, stdio.Stdout); got != "up\n" {
			t.Errorf("rank %d said %.60q", i, got)
		}
	}
}

func TestP19OrphansAreReaped(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c := newCollector()
	// The shell sees each orphan's end through the closing of its pipe, so only reaping is left to wait for.
	rank := shell(0, `i=0; while [ $i -lt 20 ]; do x=$( (sh -c : &) ); i=$((i+1)); done; echo up; read x`)
	rank.Stdin = r
	g := start(t, c, rank)
	c.await(0, "up")
	for {
		table, err := processes()
		if err != nil {
			t.Fatal(err)
		}
		below := descendants(table, g.keeper.cmd.Process.Pid, func(Process) bool { return false })
		if len(below) == 1 && !below[0].dead() {
			break // the rank alone; the test's time-out bounds the wait
		}
		runtime.Gosched()
	}
	w.Close()
	if x := finish(t, g)[0]; x.KilledByUs {
		t.Errorf("%+v", x)
	}
}

func TestParseStat(t *testing.T) {
	got, ok := parseStat(42, []byte("42 (a) b (c) S 7 8 9 0 -1 4194304 ...\n"))
	want := Process{PID: 42, Parent: 7, Group: 8, Session: 9, State: 'S', Name: "a) b (c"}
	if !ok || got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "42", "42 (x", "42 (x) S", "42 (x) S a b c"} {
		if _, ok := parseStat(42, []byte(bad)); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestDescendants(t *testing.T) {
	table := []Process{{PID: 9, Parent: 5}, {PID: 5, Parent: 2}, {PID: 2, Parent: 1}, {PID: 3, Parent: 1}, {PID: 6, Parent: 3}, {PID: 7, Parent: 8}}
	var got []int
	for _, p := range descendants(table, 1, func(p Process) bool { return p.PID == 3 }) {
		got = append(got, p.PID)
	}
	if want := []int{2, 5, 9}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMainByHandIsRefused(t *testing.T) {
	cmd := exec.Command(self(), CommandName)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "agent") {
		t.Errorf("%v: %s", err, out)
	}
}
