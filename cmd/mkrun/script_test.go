package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mkrun/mkrun/internal/engine/cuda/cudatest"
)

// libraries are data planes on host memory, by the variable that names them to scripts: one that works (HOSTLIB), one of
// another interface version (OLDLIB).
var libraries = map[string]string{}

// binaryDir holds the mkrun that the scripts run: agents, keepers and ranks are that binary too.
var binaryDir string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && members[os.Args[1]] != nil { // a job that a test runs in its own process starts itself
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	var err error
	if binaryDir, err = os.MkdirTemp("", "mkrun-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(binaryDir) }()
	args := []string{"build", "-o", filepath.Join(binaryDir, "mkrun")}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.CommandContext(context.Background(), "go", append(args, ".")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building mkrun: %v\n%s", err, out)
		return 1
	}
	for name, macros := range map[string][]string{"HOSTLIB": nil, "OLDLIB": {"HOSTLIB_VERSION=99"}} {
		dir := filepath.Join(binaryDir, name)
		if err = os.Mkdir(dir, 0o755); err == nil {
			libraries[name], err = cudatest.Build(dir, macros...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// Every .txtar under testdata/script is one promise of the manual, run with the real binary.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", binaryDir+string(os.PathListSeparator)+os.Getenv("PATH"))
			for name, path := range libraries {
				env.Setenv(name, path)
			}
			// Whatever a job leaves behind carries this mark in its environment.
			env.Setenv("MARK", fmt.Sprintf("%s-%d-%s", "mkrun-script", os.Getpid(), filepath.Base(env.WorkDir)))
			env.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector holds each process up for a second at its end
			env.Defer(func() { endMarked(env.Getenv("MARK")) })
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond != "gpu" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			_, err := os.Stat("/dev/nvidia0")
			return err == nil, nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":   cmdStatus,
			"jsonhas":  cmdJSONHas,
			"samejson": cmdSameJSON,
			"nobody":   cmdNobody,
			"waitgone": cmdWaitGone,
			"nosecret": cmdNoSecret,
			"killone":  cmdKillOne,
			"waitfor":  cmdWaitFor,
			"waitrank": cmdWaitRank,

			"waitlines":  cmdWaitLines,
			"beginswith": cmdBeginsWith,

			"waitstopped": cmdWaitStopped,
		},
	})
}

// cmdStatus runs a command and wants an exact exit status: status 3 mkrun launch ...
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command [args]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		exit, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got = exit.ExitCode()
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}

// marked lists the live processes with a mark in their environment.
func marked(mark string) []string {
	var found []string
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		data, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(data), "MARK="+mark+"\x00") {
			continue
		}
		dir := filepath.Dir(path)
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err == nil && len(cmdline) > 0 {
			found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// endMarked kills what a script that failed in the middle has left. (Scripts that pass say "nobody" themselves.)
func endMarked(mark string) {
	for _, p := range marked(mark) {
		pid, _, _ := strings.Cut(p, " ")
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// cmdNobody wants that no process of this script is left.
func cmdNobody(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: nobody")
	}
	var left []string
	poll(ts, func() bool { left = marked(ts.Getenv("MARK")); return len(left) == 0 },
		func() string { return fmt.Sprintf("processes are left: %v", left) })
}

// pollLimit bounds every wait of a script for something that other processes do.
const pollLimit = 2 * time.Minute

func poll(ts *testscript.TestScript, done func() bool, failure func() string) {
	for end := time.Now().Add(pollLimit); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("%s", failure())
		}
	}
}

// cmdWaitFor waits until a file exists: waitfor path
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: waitfor file...")
	}
	for _, arg := range args {
		path := ts.MkAbs(arg)
		poll(ts, func() bool { _, err := os.Stat(path); return err == nil }, func() string { return arg + " does not appear" })
	}
}
