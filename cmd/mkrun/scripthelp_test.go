package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const helpGuard = `case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;; esac`

// Every script says with --help what it is, and does nothing. None is run that is not seen to ask for --help before all else; and
// nothing is in its PATH that could do harm.
func TestScriptsSayWhatTheyAre(t *testing.T) {
	scripts, err := filepath.Glob("../../scripts/*.sh")
	if err != nil || len(scripts) < 10 {
		t.Fatalf("%q, %v", scripts, err)
	}
	programs := t.TempDir()
	for _, name := range []string{"sed", "dirname"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(programs, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	shebang, head := regexp.MustCompile(`^#!/(?:bin/|usr/bin/env )(sh|bash)\n`), regexp.MustCompile(`(?m)^# ?`)
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		shell := shebang.FindSubmatch(text)
		if shell == nil {
			t.Errorf("%s has no first line that is known here", script)
			continue
		}
		var comment, first string
		for line := range strings.Lines(string(text[len(shell[0]):])) {
			if line[0] != '#' {
				first = strings.TrimSpace(line)
				break
			}
			comment += head.ReplaceAllString(line, "")
		}
		switch filepath.Base(script) {
		case "gpu-8.sh", "gpu-check.sh": // with options of their own, read before anything is done
		default:
			if first != helpGuard {
				t.Errorf("%s begins with %q, not with what --help prints", script, first)
				continue
			}
		}
		path, err := filepath.Abs(script)
		if err != nil {
			t.Fatal(err)
		}
		interpreter, err := exec.LookPath(string(shell[1]))
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), interpreter, path, "--help")
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = t.TempDir(), []string{"PATH=" + programs}, &stdout, &stderr
		if err := cmd.Run(); err != nil || stdout.String() != comment || comment == "" || stderr.Len() > 0 {
			t.Errorf("%s --help: %v\n%s%s\nwant\n%s", script, err, stdout.String(), stderr.String(), comment)
		}
		if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s --help left %v, %v", script, left, err)
		}
	}
}

// What belongs into a virtual machine does nothing elsewhere. Only its guard is run here.
func TestScriptsOfVirtualMachinesStayThere(t *testing.T) {
	for script, want := range map[string]string{
		"rxe-init.sh":  "rxe-init: this is the first process of the virtual machines",
		"bench-rxe.sh": "bench-rxe: this is not g1 of rxe.sh",
	} {
		text, err := os.ReadFile("../../scripts/" + script)
		if err != nil {
			t.Fatal(err)
		}
		guard, _, found := strings.Cut(string(text), "\nfi\n")
		if !found {
			t.Errorf("%s has no guard", script)
			continue
		}
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", guard+"\nfi\necho went on")
		cmd.Env, cmd.Dir = []string{"PATH=" + t.TempDir()}, t.TempDir()
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), want) || strings.Contains(string(out), "went on") {
			t.Errorf("%s: %v, %s", script, err, out)
		}
	}
}
