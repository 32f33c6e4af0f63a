package keeper

import (
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A process that sleeps does not work; one that did something since it was looked at does, and one that is stopped does not.
func TestEffort(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while read -r line; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo; done")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	work := func() {
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	work()
	e := EffortOf(cmd.Process.Pid)
	for e.Works() { // until it waits for the next line; the test's time-out bounds this
		time.Sleep(time.Millisecond)
	}
	work()
	if !e.Works() {
		t.Error("a process that worked a moment ago seems to do nothing")
	}
	if err := syscall.Kill(cmd.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for condition(cmd.Process.Pid) == "" {
		time.Sleep(time.Millisecond)
	}
	e.spent = 0
	if e.Works() {
		t.Error("a stopped process seems to work")
	}
	if EffortOf(0).Works() {
		t.Error("no process seems to work")
	}
}
