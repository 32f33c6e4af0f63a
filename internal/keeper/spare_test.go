package keeper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func prepared(t *testing.T) *Spare {
	t.Helper()
	s, err := Prepare(self())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.ready:
	case <-time.After(time.Minute):
		t.Fatal("the keeper is not ready")
	}
	return s
}

func TestSpareKeeper(t *testing.T) {
	before := openFiles(t)
	t.Run("is used", func(t *testing.T) {
		spare, c := prepared(t), newCollector()
		g, err := Start(t.Context(), Spec{Self: self(), LastLines: 20, Keeper: spare, Ranks: []RankSpec{shell(0, "echo parent $(ps -o ppid= -p $$)")}}, c)
		if err != nil {
			t.Fatal(err)
		}
		c.await(0, fmt.Sprint("parent ", spare.cmd.Process.Pid))
		if x := finish(t, g)[0]; x.Code != 0 {
			t.Errorf("%+v", x)
		}
	})
	t.Run("that was killed is replaced", func(t *testing.T) {
		spare, c := prepared(t), newCollector()
		if err := spare.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); spare.alive(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("its end is not seen")
			}
		}
		g, err := Start(t.Context(), Spec{Self: self(), Keeper: spare, Ranks: []RankSpec{shell(0, "echo up")}}, c)
		if err != nil {
			t.Fatal(err)
		}
		c.await(0, "up")
		if x := finish(t, g)[0]; x.Code != 0 || g.Wait() != nil {
			t.Errorf("%+v, %v", x, g.Wait())
		}
	})
	t.Run("is closed", func(t *testing.T) {
		spare := prepared(t)
		spare.Close()
		if err := syscall.Kill(spare.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the keeper is still there: %v", err)
		}
	})
	if after := openFiles(t); after != before {
		t.Errorf("%d open files before, %d after", before, after)
	}
}

// More files than one message carries come whole and in order.
func TestFilesOfManyRanks(t *testing.T) {
	var specs []RankSpec
	var ends []*os.File
	for rank := range filesAtOnce { // five files each
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, r)
		spec := shell(rank, fmt.Sprintf("echo rank %d >&3; echo out %d", rank, rank))
		spec.Files = []*os.File{w}
		specs = append(specs, spec)
	}
	c := newCollector()
	g, err := Start(t.Context(), Spec{Self: self(), Ranks: specs}, c)
	for _, s := range specs {
		_ = s.Files[0].Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	finish(t, g)
	for rank, r := range ends {
		if got, err := readAll(r); err != nil || got != fmt.Sprintf("rank %d\n", rank) {
			t.Errorf("rank %d wrote %q, %v", rank, got, err)
		}
		c.await(rank, fmt.Sprint("out ", rank))
	}
}

func readAll(r *os.File) (string, error) {
	defer func() { _ = r.Close() }()
	var text strings.Builder
	_, err := r.WriteTo(&text)
	return text.String(), err
}

// Files that did not all arrive start nothing, and nothing else is closed in their place.
func TestFilesThatAreMissing(t *testing.T) {
	for name, r := range map[string]*receiver{
		"one is missing": {files: []int{-1}},
		"some were lost": {files: []int{-1, -1}, lost: true},
	} {
		l := launch{Files: 2, Ranks: []wireRank{{Stdin: -1, Stdout: 0, Stderr: 1, Readers: []int{0}, Files: []int{1}}}}
		l.take(r)
		w := l.Ranks[0]
		if l.Files != -1 || w.Stdin != -1 || w.Stdout != -1 || w.Stderr != -1 || w.Readers[0] != -1 || w.Files[0] != -1 {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

func TestKeeperThatMayOpenTooFewFiles(t *testing.T) {
	spare := prepared(t)
	few := unix.Rlimit{Cur: 16, Max: 16}
	if err := unix.Prlimit(spare.cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	var ranks []RankSpec
	for rank := range 8 {
		ranks = append(ranks, shell(rank, "true"))
	}
	g, err := Start(t.Context(), Spec{Self: self(), Keeper: spare, Ranks: ranks}, newCollector())
	if err != nil {
		t.Fatal(err)
	}
	for rank, x := range finish(t, g) {
		if x.Code != 125 || rank == 0 && !strings.Contains(x.ExecError, "ulimit -n") {
			t.Errorf("rank %d: %+v", rank, x)
		}
	}
}

func TestChildless(t *testing.T) {
	if !childless() {
		t.Error("there is a child already")
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if childless() {
		t.Error("a running child is not seen")
	}
	_ = child.Process.Kill()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if p, ok := readProcess(child.Process.Pid); ok && p.dead() {
			break
		}
	}
	if childless() {
		t.Error("a child that nobody has waited for is not seen")
	}
	_ = child.Wait()
	if !childless() {
		t.Error("a child that was waited for is seen")
	}
}
