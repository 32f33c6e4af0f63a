package keeper

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mkrun/mkrun/internal/watchdog"
)

func TestStoppedKeeperCountsAsDead(t *testing.T) {
	c := newCollector()
	g := startSpec(t, Spec{Ranks: []RankSpec{shell(0, tree)}, Silence: time.Second, Heartbeat: 250 * time.Millisecond}, c)
	c.await(0, treeUp...)
	if err := syscall.Kill(g.keeper.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if x := finish(t, g)[0]; x.Signal != syscall.SIGKILL || !x.KilledByUs {
		t.Errorf("%+v", x)
	}
	err := g.Wait()
	if want := "it said nothing for 1s, as somebody stopped it (SIGSTOP)"; !errors.Is(err, ErrKeeperLost) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %v and %q", err, ErrKeeperLost, want)
	}
}

// More than its socket holds, so that the agent cannot get rid of its orders.
func TestKeeperStoppedBeforeItTakesItsRanks(t *testing.T) {
	spare := prepared(t)
	if err := syscall.Kill(spare.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	rank := shell(0, "true", "LONG="+strings.Repeat("x", 4<<20))
	g, err := Start(t.Context(), Spec{Self: self(), Keeper: spare, Ranks: []RankSpec{rank}, Silence: time.Second, Heartbeat: 250 * time.Millisecond}, newCollector())
	if err != nil {
		t.Fatal(err)
	}
	if x := finish(t, g)[0]; !strings.Contains(x.ExecError, "not started") || !x.KilledByUs {
		t.Errorf("%+v", x)
	}
	if err := g.Wait(); !errors.Is(err, ErrKeeperLost) {
		t.Errorf("got %v, want %v", err, ErrKeeperLost)
	}
}

func TestStoppedSpareKeeperEnds(t *testing.T) {
	s := prepared(t)
	if err := syscall.Kill(s.cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.Close() // the test's time-out bounds it
}

// Many questions are answered in the life of ranks that are in good order.
func TestKeeperThatAnswersIsLeftAlone(t *testing.T) {
	g := startSpec(t, Spec{Ranks: []RankSpec{shell(0, "sleep 2")}, Silence: time.Second, Heartbeat: 10 * time.Millisecond}, newCollector())
	if x := finish(t, g)[0]; x.Code != 0 || x.Signal != 0 || x.KilledByUs {
		t.Errorf("%+v", x)
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRanksOfAStoppedAgentEnd(t *testing.T) {
	m := mark()
	agent, _, _ := agentProcess(t, m, tree, "KEEPER_TEST_SILENCE=1s")
	ranks := slices.DeleteFunc(marked(t, m), func(pid int) bool {
		p, _ := readProcess(pid)
		return pid == agent.Process.Pid || p.Name == ProcessName
	})
	if len(ranks) == 0 {
		t.Fatal("no process of the rank was found")
	}
	gone := whenGone(t, ranks...)
	if err := agent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	gone()
	_ = agent.Process.Kill()
	_ = agent.Wait()
	if left, err := KillDescendants(); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	noneMarked(t, m)
}

// Who stops the ranks for a while (Ctrl-Z) may stop their keeper too.
func TestSilenceBetweenStopAndContinueIsExcused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		fired := make(chan time.Duration, 1)
		w := watchdog.New(3*time.Second, 500*time.Millisecond, func() { fired <- time.Since(start) })
		suspend(w, syscall.SIGTSTP)
		time.Sleep(time.Minute)
		suspend(w, syscall.SIGCONT)
		if got, want := <-fired, 63*time.Second; got != want {
			t.Errorf("fired after %v, want %v", got, want)
		}
		suspend(nil, syscall.SIGTSTP)
	})
}

func TestWantsProcessor(t *testing.T) {
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	}()
	pid := busy.Process.Pid
	for !wantsProcessor(pid) { // it may still be reading its file; the test's time-out bounds this
		time.Sleep(time.Millisecond)
	}
	if got := condition(pid); got != "" {
		t.Errorf("a busy process: %q", got)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for condition(pid) != ", as somebody stopped it (SIGSTOP)" {
		time.Sleep(time.Millisecond)
	}
	if wantsProcessor(pid) {
		t.Error("a stopped process seems to want a processor")
	}
}
