package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/stdio"
)

// insightFlags say what a launch shows of itself besides the ranks' output.
type insightFlags struct {
	dryRun    bool // show what would be started
	connect   bool // and start the agents, to check the nodes
	preflight bool
	events    string

	eventsOut   bool         // events are what stdout is for, under whatever name
	closeEvents func() error // of a job that was run
}

func (f *insightFlags) add(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.Var((*dryRunValue)(f), "dry-run", "show ranks, nodes, environment and plan, and start nothing; =connect starts the agents, checks the nodes, and no ranks")
	fs.Lookup("dry-run").NoOptDefVal = "show"
	fs.BoolVar(&f.preflight, "preflight", false, "check all nodes before any rank is started: clocks, UDP both ways, limits, GPUs, folders, program")
	fs.StringVar(&f.events, "events", "", "write what happens as lines of JSON to this file, to fd:N, or to - (stdout; the ranks' output then goes to stderr)")
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions([]string{"show", "connect"}, cobra.ShellCompDirectiveNoFileComp))
}

// dryRunValue is --dry-run, with a value or without.
type dryRunValue insightFlags

func (v *dryRunValue) String() string {
	switch {
	case v.connect:
		return "connect"
	case v.dryRun:
		return "show"
	}
	return ""
}

func (v *dryRunValue) Type() string { return "show|connect" }

func (v *dryRunValue) Set(s string) error {
	switch s {
	case "show", "true":
		v.dryRun, v.connect = true, false
	case "connect":
		v.dryRun, v.connect = false, true
	case "false":
		v.dryRun, v.connect = false, false
	default:
		return fmt.Errorf("known are show and connect")
	}
	return nil
}

// eventsToStdout reports whether events go to stdout, under whatever name. (That stderr may be the same file is the user's own
// choice: service managers and 2>&1 make it so, and each event is a line.)
func (f *insightFlags) eventsToStdout(stdout io.Writer) bool {
	return f.events == "-" || f.events != "" && mixed(infoAt(f.events), infoOf(stdout))
}

// openEvents opens where events go; the writer is nil where nobody wants them.
func (f *insightFlags) openEvents(ctx context.Context, stdout io.Writer) (w io.Writer, done func() error, err error) {
	nothing := func() error { return nil }
	switch number, isFD := strings.CutPrefix(f.events, "fd:"); {
	case f.events == "":
		return nil, nothing, nil
	case f.eventsOut:
		return stdout, nothing, nil
	case isFD:
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return nil, nil, fmt.Errorf("--events %s: %q is not the number of an open file", f.events, number)
		}
		file := os.NewFile(uintptr(n), f.events)
		if _, err := file.Stat(); err != nil {
			return nil, nil, fmt.Errorf("--events %s: no such file is open here", f.events)
		}
		return file, nothing, nil
	}
	file, err := openForWriting(ctx, f.events)
	if err != nil {
		return nil, nil, fmt.Errorf("--events: %w", err)
	}
	return file, file.Close, nil
}

// openForWriting makes or empties a file. A named pipe must be open for reading before ctx is done; that its readers leave is
// seen, since mkrun is none of them.
func openForWriting(ctx context.Context, path string) (*os.File, error) {
	ticker := time.NewTicker(pipeEvery)
	defer ticker.Stop()
	for {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NONBLOCK, 0o666)
		if !errors.Is(err, syscall.ENXIO) {
			return file, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: nobody has opened this pipe for reading", path)
		}
	}
}

// pipeEvery is how often openForWriting looks for a reader.
const pipeEvery = 20 * time.Millisecond

// terminalLine shows a line at the bottom of a terminal; it is nil for other outputs.
func terminalLine(w io.Writer) func(text string) {
	file, ok := w.(*os.File)
	if !ok || !stdio.IsTerminal(file) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return launch.TerminalLine(w, func() int { return stdio.Width(file) })
}

// showChecks writes what --dry-run=connect found.
func showChecks(w io.Writer, job *launch.Job, checks []launch.Check) error {
	var b strings.Builder
	warnings := 0
	for _, c := range checks {
		if c.Severity == doctor.Warn {
			warnings++
		}
	}
	for _, line := range launch.CheckLines(checks, job.World.Nodes(), doctor.OK, doctor.Warn) {
		b.WriteString(line + "\n")
	}
	agents := "the agent"
	if n := job.World.Nodes(); n > 1 {
		agents = fmt.Sprintf("all %d agents", n)
	}
	fmt.Fprintf(&b, "\n%s came up and went; %d warnings; no rank was started\n", agents, warnings)
	_, err := io.WriteString(w, b.String())
	return err
}
