package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/gather"
	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/topology"
)

// defaultTopoTimeout bounds how long hosts are waited for: a driver without persistence mode takes seconds for each GPU
// to wake.
const defaultTopoTimeout = 2 * time.Minute

// gatherFlags are those that name hosts other than this machine.
var gatherFlags = []string{"host", "hostfile", "batch", "nodes"}

// gathers is the flag that names the hosts to ask; "" if none does.
func (f *topoFlags) gathers(cmd *cobra.Command) string {
	for _, name := range gatherFlags {
		if cmd.Flags().Changed(name) {
			return "--" + name
		}
	}
	return ""
}

// gatherJob is a job of one rank on every host.
func (f *topoFlags) gatherJob(cmd *cobra.Command) (*launch.Job, error) {
	if f.timeout < 0 || f.startTimeout < 0 {
		return nil, errors.New("--timeout and --start-timeout cannot be negative")
	}
	id, err := launch.NewID()
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("finding the working directory: %w", err)
	}
	job := &launch.Job{
		ID: id, Dir: dir,
		Timeout: f.timeout, StartTimeout: f.startTimeout, AbortGrace: launch.DefaultAbortGrace, Grace: launch.DefaultGrace,
	}
	f.world.ppn, f.hosts.mapBy = "1", string(hosts.Block)
	f.hosts.ppnGiven = func() bool { return true }
	f.hosts.nodesGiven = func() bool { return cmd.Flags().Changed("nodes") }
	if err := f.hosts.place(cmd.Context(), &f.world, job); err != nil {
		return nil, err
	}
	job.Env, err = launch.ForwardEnv(os.Environ(), launch.EnvOptions{}, !job.Remote())
	return job, err
}

// gather asks every host over its agent. Its errors end mkrun.
func (f *topoFlags) gather(cmd *cobra.Command) ([]*topology.Node, error) {
	job, err := f.gatherJob(cmd)
	if err != nil {
		return nil, f.usage(cmd, "%w", err)
	}
	if err := gather.Prepare(job, gather.Request{Options: f.live(), Measure: f.measure}); err != nil {
		return nil, f.failed(cmd, err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	stderr := cmd.ErrOrStderr()
	mux := stdio.NewMux(stdio.MuxOptions{Stdout: terminalOf(stderr), Stderr: terminalOf(stderr), Tag: stdio.TagHost, Ranks: job.World.Size()})
	output := launch.NewOutput(mux, stderr, nil)
	outcome, err := launch.Run(cmd.Context(), job, launch.Options{
		Output:  output,
		Log:     slog.New(slog.NewTextHandler(output.Notices(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Signals: signals, Begin: begin,
	})
	if err != nil {
		return nil, f.failed(cmd, err)
	}
	if outcome.Cause != nil {
		fmt.Fprintln(stderr, launch.CauseText(outcome.Cause))
		return nil, exitStatus(1)
	}
	nodes, err := gather.Nodes(job, outcome.Reports)
	if err != nil {
		return nil, f.failed(cmd, err)
	}
	return nodes, nil
}
