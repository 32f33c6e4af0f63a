package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output
	Test        string
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

type key struct{ pkg, test string }

// report turns the events of a test run into lines for people and remembers what happened.
type report struct {
	w                      io.Writer
	passed, failed, tested int      // tests and subtests; packages that ran
	skipped                []string // "package Test: reason"
	broken                 []string // packages that failed without a failing test, or did not build
	output                 map[key][]string
	builds                 map[string][]string // compiler output by import path
	failedTests            map[string]int      // by package
}

func newReport(w io.Writer) *report {
	return &report{
		w:           w,
		output:      map[key][]string{},
		builds:      map[string][]string{},
		failedTests: map[string]int{},
	}
}

// read consumes the stream of `go test -json` to its end.
func (r *report) read(stream io.Reader) error {
	in := bufio.NewReader(stream)
	for {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				r.printf("%s\n", bytes.TrimRight(line, "\n")) // the go command's own words
			} else {
				r.handle(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the output of go test: %w", err)
		}
	}
}

func (r *report) handle(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[k] = append(r.output[k], e.Output)
		return
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		r.closePackage(e)
		return
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(r.output[k])))
	case "fail":
		r.failed++
		r.failedTests[e.Package]++
		r.printf("%s", strings.Join(r.output[k], ""))
	}
	delete(r.output, k)
}

func (r *report) closePackage(e event) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(time.Millisecond)
	own := strings.Join(r.output[key{e.Package, ""}], "")
	switch e.Action {
	case "pass":
		r.tested++
		cached := ""
		if strings.Contains(own, "(cached)") {
			cached = " (cached)"
		}
		r.printf("ok    %s %v%s\n", e.Package, took, cached)
	case "fail":
		r.tested++
		if r.failedTests[e.Package] == 0 {
			r.broken = append(r.broken, e.Package)
		}
		r.printf("%s", strings.Join(r.builds[e.FailedBuild], ""))
		// Tests that never ended: a panic, os.Exit or the time-out hides in their output.
		for k, lines := range r.output {
			if k.pkg == e.Package && k.test != "" {
				r.printf("%s", strings.Join(lines, ""))
			}
		}
		r.printf("%sFAIL  %s %v\n", own, e.Package, took)
	}
	for k := range r.output {
		if k.pkg == e.Package {
			delete(r.output, k)
		}
	}
}

// summary prints the closing lines and says whether the run is good. With strict, a skipped test
// is a failure: a machine that checks changes must run them all.
func (r *report) summary(took time.Duration, goFailed, strict bool) bool {
	for _, s := range r.skipped {
		r.printf("SKIP  %s\n", s)
	}
	for _, p := range r.broken {
		r.printf("BROKEN  %s (did not build, panicked or exited; see above)\n", p)
	}
	ok := !goFailed && r.failed == 0 && len(r.broken) == 0
	if ok && r.passed == 0 {
		ok = false
		r.printf("no test ran\n")
	}
	if strict && len(r.skipped) > 0 {
		ok = false
		r.printf("CI is set, so skipped tests count as failures\n")
	}
	verdict := "PASS"
	if !ok {
		verdict = "FAIL"
	}
	r.printf("%s  %d passed, %d failed, %d skipped in %d packages, %v\n",
		verdict, r.passed, r.failed, len(r.skipped), r.tested, took.Round(100*time.Millisecond))
	return ok
}

func (r *report) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(r.w, format, args...) // a closed terminal must not change the verdict
}

// reason finds what a test said before it skipped itself.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}
