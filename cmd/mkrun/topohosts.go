package main

import (
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

// gather asks every host over its agent. Its errors end mkrun.
func (f *topoFlags) gather(cmd *cobra.Command) ([]*topology.Node, error) {
	f.world.ppn, f.hosts.mapBy = "1", string(hosts.Block)
	f.hosts.ppnGiven = func() bool { return true }
	f.hosts.nodesGiven = func() bool { return cmd.Flags().Changed("nodes") }
	launching := launchFlags{
		hosts: f.hosts, world: f.world,
		timeout: f.timeout, startTimeout: f.startTimeout, abortGrace: launch.DefaultAbortGrace, grace: launch.DefaultGrace,
	}
	job, err := launching.job(cmd.Context())
	if err != nil {
		return nil, f.usage(cmd, "%w", err)
	}
	if err := gather.Prepare(job, gather.Request{Options: f.live()}); err != nil {
		return nil, f.failed(cmd, err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	stderr := cmd.ErrOrStderr()
	outcome, err := launch.Run(cmd.Context(), job, launch.Options{
		Mux:     stdio.NewMux(stdio.MuxOptions{Stdout: terminalOf(stderr), Stderr: terminalOf(stderr), Tag: stdio.TagHost, Ranks: job.World.Size()}),
		Notices: stderr,
		Log:     slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
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
