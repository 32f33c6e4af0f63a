package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdJSONHas wants values in the JSON document a command printed: jsonhas stdout status=pass world.size=4 plan.verified=true
func cmdJSONHas(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: jsonhas file path=value...")
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(ts.ReadFile(args[0]))))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		ts.Fatalf("%s is not JSON: %v", args[0], err)
	}
	if dec.More() {
		ts.Fatalf("%s has more than one document", args[0])
	}
	for _, want := range args[1:] {
		path, value, compare := strings.Cut(want, "=")
		got, err := lookup(doc, strings.Split(path, "."))
		if err != nil {
			ts.Fatalf("%s: %v", path, err)
		}
		if compare && fmt.Sprint(got) != value {
			ts.Fatalf("%s is %v, want %s", path, got, value)
		}
	}
}

// cmdSameJSON holds a value in the JSON document a command printed against the one that it had when the name was used
// for the first time: samejson stdout digest a
func cmdSameJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: samejson file path name")
	}
	var doc any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &doc))
	got, err := lookup(doc, strings.Split(args[1], "."))
	ts.Check(err)
	first, text := ts.Getenv("samejson_"+args[2]), fmt.Sprint(got)
	switch {
	case first == "" && neg:
		ts.Fatalf("nothing is known as %s yet", args[2])
	case first == "":
		ts.Setenv("samejson_"+args[2], text)
	case (text == first) == neg:
		ts.Fatalf("%s is %s, and %s was %s", args[1], text, args[2], first)
	}
}

func lookup(doc any, path []string) (any, error) {
	for _, key := range path {
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[key]
			if !ok {
				return nil, fmt.Errorf("no key %q", key)
			}
			doc = v
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(d) {
				return nil, fmt.Errorf("no element %q of %d", key, len(d))
			}
			doc = d[i]
		default:
			return nil, fmt.Errorf("%q: not inside an object or list", key)
		}
	}
	return doc, nil
}

// cmdWaitLines waits until a file has some whole lines: waitlines file 3
func cmdWaitLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitlines file n")
	}
	path := ts.MkAbs(args[0])
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	got := 0
	poll(ts, func() bool {
		data, _ := os.ReadFile(path) // it may not be there yet
		got = bytes.Count(data, []byte("\n"))
		return got >= want
	}, func() string { return fmt.Sprintf("%s has %d lines, want %d", args[0], got, want) })
}

// cmdBeginsWith wants a file to begin with the whole lines of another: beginswith file other
func cmdBeginsWith(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: beginswith file other")
	}
	other := ts.ReadFile(args[1])
	other = other[:strings.LastIndexByte(other, '\n')+1]
	if !strings.HasPrefix(ts.ReadFile(args[0]), other) {
		ts.Fatalf("%s does not begin with %s", args[0], args[1])
	}
}

// cmdKillOne sends a signal to one process of this script whose command line matches: killone KILL 'mkrun agent'
func cmdKillOne(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: killone SIGNAL pattern")
	}
	signals := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "STOP": syscall.SIGSTOP, "TSTP": syscall.SIGTSTP, "CONT": syscall.SIGCONT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
		"WINCH": syscall.SIGWINCH, "ALRM": syscall.SIGALRM, "HUP": syscall.SIGHUP}
	sig, ok := signals[args[0]]
	if !ok {
		ts.Fatalf("unknown signal %s", args[0])
	}
	pattern := regexp.MustCompile(args[1])
	for _, p := range marked(ts.Getenv("MARK")) {
		pid, line, _ := strings.Cut(p, " ")
		if !pattern.MatchString(line) {
			continue
		}
		n, err := strconv.Atoi(pid)
		ts.Check(err)
		ts.Check(syscall.Kill(n, sig))
		return
	}
	ts.Fatalf("no process of this script matches %s; there are %q", args[1], marked(ts.Getenv("MARK")))
}

// cmdWaitGone waits until no process of this script has a command line that matches: waitgone 'mkrun agent'
func cmdWaitGone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitgone pattern")
	}
	pattern := regexp.MustCompile(args[0])
	var left []string
	poll(ts, func() bool {
		left = slices.DeleteFunc(marked(ts.Getenv("MARK")), func(p string) bool { return !pattern.MatchString(p) })
		return len(left) == 0
	}, func() string { return fmt.Sprintf("processes are left: %v", left) })
}

// cmdWaitStopped waits until the process of this script whose command line matches is stopped: waitstopped 'mkrun launch'
func cmdWaitStopped(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitstopped pattern")
	}
	pattern := regexp.MustCompile(args[0])
	poll(ts, func() bool {
		for _, p := range marked(ts.Getenv("MARK")) {
			pid, line, _ := strings.Cut(p, " ")
			stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
			if err == nil && pattern.MatchString(line) && bytes.Contains(stat, []byte(") T ")) {
				return true
			}
		}
		return false
	}, func() string { return "no process that matches " + args[0] + " is stopped" })
}

// cmdWaitRank waits until an operator's rank has joined its peers and is at work: it has mapped memory of its own and
// of a peer, and has used 300 ms of processor time since, or less where its work is soon done on a fast machine:
// waitrank 3, waitrank 3 50
func cmdWaitRank(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 && len(args) != 2 {
		ts.Fatalf("usage: waitrank rank [milliseconds]")
	}
	enough := 30 // ticks of 10 ms
	if len(args) == 2 {
		ms, err := strconv.Atoi(args[1])
		ts.Check(err)
		enough = ms / 10
	}
	joined := -1
	poll(ts, func() bool {
		for _, p := range marked(ts.Getenv("MARK")) {
			pid, line, _ := strings.Cut(p, " ")
			environ, err := os.ReadFile(filepath.Join("/proc", pid, "environ"))
			maps, err2 := os.ReadFile(filepath.Join("/proc", pid, "maps"))
			if err != nil || err2 != nil || !strings.Contains(line, "mkrun rank") ||
				!bytes.Contains(environ, []byte("MKRUN_RANK="+args[0]+"\x00")) || bytes.Count(maps, []byte("memfd:")) < 2 {
				continue
			}
			ticks := processTicks(ts, pid)
			if joined < 0 {
				joined = ticks
			}
			return ticks >= joined+enough
		}
		return false
	}, func() string { return "rank " + args[0] + " does not come up" })
}

// processTicks is the processor time a process has used.
func processTicks(ts *testscript.TestScript, pid string) int {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	ts.Check(err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	ts.Check(err)
	system, err := strconv.Atoi(fields[12])
	ts.Check(err)
	return user + system
}

var (
	hexSecret    = regexp.MustCompile(`(^|[^0-9A-Za-z])[0-9a-fA-F]{64}($|[^0-9A-Za-z])`)
	padded64     = regexp.MustCompile(`(^|[^0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{43}=`)
	unpadded64   = regexp.MustCompile(`(^|[^0-9A-Za-z_-])[0-9A-Za-z_-]{43}($|[^0-9A-Za-z_-])`)
	upper, lower = regexp.MustCompile(`[A-Z]`), regexp.MustCompile(`[a-z]`)
)

// looksSecret reports whether a text holds what 32 random bytes look like in hex or base64. (A path can look like
// unpadded base64 with slashes, so those are not taken for it.)
func looksSecret(text string) bool {
	if hexSecret.MatchString(text) || padded64.MatchString(text) {
		return true
	}
	for _, m := range unpadded64.FindAllString(text, -1) {
		if upper.MatchString(m) && lower.MatchString(m) {
			return true
		}
	}
	return false
}

func TestLooksSecret(t *testing.T) {
	raw := make([]byte, 32)
	for range 2000 {
		_, _ = rand.Read(raw)
		for _, text := range []string{
			hex.EncodeToString(raw), base64.StdEncoding.EncodeToString(raw), base64.URLEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw),
		} {
			if !looksSecret("--key=" + text) {
				t.Errorf("%q is not seen", text)
			}
		}
	}
	for _, text := range []string{"TMPDIR=/tmp/go-test-script000000000/script-death/.tmp", "MKRUN_JOB_ID=4hojyxxkhao6xpwt"} {
		if looksSecret(text) {
			t.Errorf("%q is taken for a secret", text)
		}
	}
}

// cmdNoSecret looks into every process of the running job for the job's secret, which the launcher alone can tell
// apart from noise: it wants that no argument list and no environment holds 32 bytes in hex or base64.
func cmdNoSecret(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: nosecret")
	}
	before := map[string]bool{} // what this test's own environment holds is no secret of the job
	for _, kv := range os.Environ() {
		before[kv] = true
	}
	processes := marked(ts.Getenv("MARK"))
	if len(processes) < 5 {
		ts.Fatalf("only %d processes run: %q", len(processes), processes)
	}
	for _, p := range processes {
		pid, _, _ := strings.Cut(p, " ")
		for _, file := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile(filepath.Join("/proc", pid, file))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it was one that comes and goes
			}
			ts.Check(err)
			for _, item := range strings.Split(string(data), "\x00") {
				if !before[item] && looksSecret(item) {
					ts.Fatalf("%s of %s holds what looks like a secret: %q", file, p, item)
				}
			}
		}
	}
}
