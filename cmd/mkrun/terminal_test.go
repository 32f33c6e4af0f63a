package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal: what a person sits at, and what programs see.
func openTerminal(t *testing.T) (person, programs *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if programs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = programs.Close() })
	return person, programs
}

// A launch whose ranks read the terminal, in the background of a shell: it says that it does not read, is not stopped by what is
// typed meanwhile, and reads once it is in the foreground.
func TestInputFromATerminalInTheBackground(t *testing.T) {
	person, programs := openTerminal(t)
	dir := t.TempDir()
	errors := filepath.Join(dir, "errors")
	// The shell's own input is not the terminal, so that what is typed is for nobody but the job.
	shell := exec.Command("sh", "-c", `set -m
mkrun launch --tag none --stdin 0 -- sh -c 'trap "echo woken" USR1; echo up; while ! read -r line; do :; done; echo "read $line"' 2>errors <"$TERMINAL" &
echo $!
read -r word
fg >fg`)
	shell.Dir = dir
	shell.Env = append(os.Environ(), "PATH="+binaryDir+string(os.PathListSeparator)+os.Getenv("PATH"), "TERMINAL="+programs.Name())
	const terminal = 3
	shell.ExtraFiles = []*os.File{programs}
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: terminal}
	orders, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if text, _ := os.ReadFile(errors); t.Failed() {
			t.Logf("stderr: %s", text)
		}
	}()
	lines := bufio.NewScanner(out)
	next := func(want string) string {
		t.Helper()
		if !lines.Scan() || want != "" && lines.Text() != want {
			t.Fatalf("got %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
		return lines.Text()
	}
	var pid int
	if _, err := fmt.Sscan(next(""), &pid); err != nil {
		t.Fatal(err)
	}
	end := func() { // and with it what is read from both
		_ = shell.Process.Kill()
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	defer time.AfterFunc(time.Minute, end).Stop()
	defer func() {
		if t.Failed() {
			end()
		}
	}()
	next("up")
	const says = "mkrun: the input for the ranks (--stdin) is the terminal, and mkrun is in the background: nothing is read until it is in the foreground (fg)"
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if data, err := os.ReadFile(errors); err != nil {
			t.Fatal(err)
		} else if strings.Contains(string(data), says) {
			break
		}
		if time.Now().After(deadline) {
			t.Error("nothing was said about the terminal")
			break
		}
	}
	if _, err := person.WriteString("one\n"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil { // whoever is stopped does not pass it on
		t.Fatal(err)
	}
	next("woken")
	if _, err := fmt.Fprintln(orders, "fg"); err != nil {
		t.Fatal(err)
	}
	next("read one")
	if err := shell.Wait(); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile(errors)
	if err != nil || strings.Count(string(data), says) != 1 {
		t.Errorf("stderr: %q, %v; want it said once", data, err)
	}
}
