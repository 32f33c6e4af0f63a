package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/stdio"
)

// begin is when this process started to do what it was told.
var begin = time.Now()

// beginning is when the job that is run was asked for.
func (f *launchFlags) beginning() time.Time {
	if f.begun.IsZero() {
		return begin
	}
	return f.begun
}

// runJob runs a job with the terminal's streams and signals.
func runJob(cmd *cobra.Command, f *launchFlags, job *launch.Job, tag stdio.Tag) (*launch.Outcome, error) {
	stdio.ReportBrokenPipes()
	stdout := cmd.OutOrStdout()
	ctx := cmd.Context()
	for _, limit := range []time.Duration{job.StartTimeout, job.Timeout} {
		if limit > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
	}
	events, closeEvents, err := f.openEvents(ctx, stdout)
	if err != nil {
		return nil, err
	}
	if f.json || f.eventsOut {
		stdout = cmd.ErrOrStderr()
	}
	names := make([]string, 0, len(job.Hosts))
	for _, h := range job.Hosts {
		names = append(names, h.Name)
	}
	level := slog.LevelWarn
	if f.verbose {
		level = slog.LevelDebug
	}
	var only func(int) bool
	if f.shown != nil {
		only = func(rank int) bool { return f.shown[rank] }
	}
	input, _ := cmd.InOrStdin().(*os.File)
	signals := make(chan os.Signal, 8)
	for _, s := range append([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGCONT}, f.forwarded...) {
		if !signal.Ignored(s) { // as under nohup
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	showOut, showErr := terminalOf(stdout), terminalOf(cmd.ErrOrStderr())
	if !showOut.Terminal && !showErr.Terminal {
		job.Hold = stdio.FlushUnseen
	}
	output := launch.NewOutput(stdio.NewMux(stdio.MuxOptions{
		Stdout: showOut, Stderr: showErr,
		Tag: tag, Timestamps: f.timestamps, Ranks: job.World.Size(), Hosts: names,
	}), stdio.Patient(cmd.ErrOrStderr()), terminalLine(cmd.ErrOrStderr()))
	outcome, err := launch.Run(cmd.Context(), job, launch.Options{
		Output:  output,
		Log:     slog.New(slog.NewTextHandler(output.Notices(), &slog.HandlerOptions{Level: level})),
		Verbose: f.verbose, OnlyRanks: only,
		Signals: signals, Forward: f.forwarded, Stdin: input,
		Events: events, Begin: f.beginning(),
	})
	if err != nil {
		_ = closeEvents()
		return nil, err
	}
	f.closeEvents = closeEvents
	if outcome.Cause == nil && outcome.Lacking != "" { // a cause is the better story
		err = fmt.Errorf("--events: %s", outcome.Lacking)
	}
	if err == nil && job.ConnectOnly && outcome.Cause == nil {
		err = showChecks(f.resultOut(cmd), job, outcome.Checks)
	}
	return outcome, err
}

// terminalOf describes a stream: only a terminal gets colour and progress lines in place.
func terminalOf(w io.Writer) stdio.Output {
	out := stdio.Output{Writer: stdio.Patient(w)}
	if file, ok := w.(*os.File); ok && stdio.IsTerminal(file) {
		out.Terminal = true
		out.Color = stdio.WantColor(file)
		out.Width = func() int { return stdio.Width(file) }
	}
	return out
}

// launchCommand runs the user's own program as ranks.
func (f *launchFlags) launchCommand(cmd *cobra.Command, argv []string) error {
	tag, err := f.checkStreams(cmd.OutOrStdout())
	if err != nil {
		return &usageError{cmd.CommandPath(), err}
	}
	if joined, err := f.hosts.join.run(cmd.Context(), cmd, f.startTimeout); joined {
		return err
	}
	job, err := f.job(cmd.Context())
	if err != nil {
		return f.refuse(cmd, err)
	}
	job.Argv, job.PMI = argv, f.pmi
	if f.dryRun {
		return dryRun(cmd.Context(), cmd.OutOrStdout(), job)
	}
	outcome, err := runJob(cmd, f, job, tag)
	doc := report.Document{Schema: report.Schema, Status: report.Pass, World: reportWorld(job.World)}
	for rank := range job.World.Size() {
		node, local := job.World.Place(rank)
		doc.Ranks = append(doc.Ranks, report.Rank{Rank: job.Number(rank), Node: node, LocalRank: local, Status: string(report.Pass)})
	}
	return f.conclude(cmd, &doc, outcome, err)
}

// conclude prints how a job ended and turns it into the exit status, which the last event says too.
func (f *launchFlags) conclude(cmd *cobra.Command, doc *report.Document, outcome *launch.Outcome, err error) error {
	if outcome != nil {
		for rank := range min(len(doc.Ranks), len(outcome.Places)) {
			p := outcome.Places[rank]
			doc.Ranks[rank].CPUs, doc.Ranks[rank].GPU, doc.Ranks[rank].NICs = p.CPUs, p.GPU, p.NICs
			doc.Ranks[rank].NICWhy, doc.Ranks[rank].ProxyCPUs = p.NICRule, p.ProxyCPUs
		}
	}
	status := 0
	switch {
	case err != nil:
		doc.Status = report.Error
		doc.Failure = launch.LauncherFailure(err)
		tell(cmd.ErrOrStderr(), outcome, fmt.Sprintf("mkrun: %v\n", err))
		status = stdio.StatusLauncher
	case outcome.Cause != nil:
		doc.Status = report.Error
		doc.Failure = launch.Failure(outcome.Cause)
		doc.StartMS = outcome.Started.Seconds() * 1e3
		text := ""
		if !outcome.Told {
			text = launch.CauseText(outcome.Cause) + "\n"
		}
		if outcome.Unshown != "" {
			text += "mkrun: " + outcome.Unshown + "\n"
		}
		if outcome.Lacking != "" {
			text += "mkrun: --events: " + outcome.Lacking + "\n"
		}
		tell(cmd.ErrOrStderr(), outcome, text)
		status = outcome.ExitStatus()
	default:
		doc.StartMS = outcome.Started.Seconds() * 1e3
		if doc.Status == report.Fail {
			status = statusCheckFailed
		}
	}
	if doc.Failure != nil {
		var ended []bool
		if outcome != nil {
			ended = outcome.Ended
		}
		doc.MarkFailed(ended)
	}
	failure := doc.Failure
	if status == statusCheckFailed && failure == nil {
		failure = &report.Failure{Kind: "check", Node: -1, Rank: -1, Reason: "the check did not hold"}
	}
	if err := f.show(cmd, doc); err != nil {
		tell(cmd.ErrOrStderr(), outcome, fmt.Sprintf("mkrun: %v\n", err))
		status = stdio.StatusLauncher
		failure = launch.LauncherFailure(err)
	}
	if err := f.endEvents(outcome, status, failure); err != nil {
		tell(cmd.ErrOrStderr(), outcome, fmt.Sprintf("mkrun: --events: %v\n", err))
		status = cmp.Or(status, stdio.StatusLauncher)
	}
	if status != 0 {
		return exitStatus(status)
	}
	return nil
}

// show writes a result, as a document or a table.
func (f *launchFlags) show(cmd *cobra.Command, doc *report.Document) error {
	switch {
	case f.json:
		return doc.WriteJSON(cmd.OutOrStdout())
	case doc.TimeMS == nil:
		return nil
	}
	return doc.WriteTable(f.resultOut(cmd))
}

// resultOut is where results go that are for people: stdout, unless that is for events.
func (f *launchFlags) resultOut(cmd *cobra.Command) io.Writer {
	if f.eventsOut {
		return cmd.ErrOrStderr()
	}
	return cmd.OutOrStdout()
}

// endEvents writes the last event of a job that was run, which says how mkrun ends.
func (f *launchFlags) endEvents(outcome *launch.Outcome, status int, failure *report.Failure) error {
	if outcome == nil {
		return nil
	}
	return errors.Join(outcome.End(status, failure), f.closeEvents())
}

// tellLimit is how long the last words of a job wait for a terminal or pipe that took nothing before.
const tellLimit = time.Second

// tell says how a job ended. Where its output stood still, this must not hold mkrun up either.
func tell(w io.Writer, outcome *launch.Outcome, text string) {
	said := make(chan struct{})
	go func() {
		defer close(said)
		_, _ = io.WriteString(w, text) // there is nowhere else to say it
	}()
	var limit <-chan time.Time
	if outcome != nil && outcome.Stuck {
		limit = time.After(tellLimit)
	}
	select {
	case <-said:
	case <-limit:
	}
}

// statusCheckFailed is the exit status of a job that ran to its end with wrong results.
const statusCheckFailed = 1
