package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/tune"
)

// tuneFlags are the flags of mkrun tune.
type tuneFlags struct {
	batchFlags
	results string
	write   string
	budget  int
	check   bool
}

func newTune() *cobra.Command {
	var f tuneFlags
	cmd := &cobra.Command{
		Use:   "tune [flags] OPERATOR --shapes SHAPES",
		Short: "Find the fastest settings for shapes by measuring, and write them as configuration entries",
		Long: `Launches the operator again and again with other settings (workers, tile, chunks, mover, ...): first those that the
others depend on, then from the best of them one setting after the other, each value next to the best so far in one
job; what falls behind is not followed. What wins is held against the engine's own choice once more, and written as an
entry of a configuration file, with when and on what it was measured, for --config or configs/.

Each measurement is added to the results file at once: the same command goes on where an earlier one was cut short.

Exit status: 0 there is an entry for every shape; 1 there is none for some, of which no launch worked or the result was
wrong; 2 bad command line; 125 mkrun itself, as where a file cannot be written; 128+signal: you ended it.`,
		Example: `  mkrun tune --ppn 2 ag_gemm --shapes 8192x1024x8192,llama3-70b/mlp-up/tp2@4096
  mkrun tune --nodes 2 --ppn 2 ag_gemm --shapes shapes.txt --results mine.jsonl --write mine.yaml
  mkrun launch --nodes 2 --ppn 2 ag_gemm --config mine.yaml --m 8192 --n 1024 --k 8192`,
		Args: func(cmd *cobra.Command, args []string) error {
			return &usageError{cmd.CommandPath(), notConfigured(args)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f.add(cmd, 10)
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.results, "results", "", "results file to add to and go on from (default tune-OPERATOR.jsonl)")
	fs.StringVar(&f.write, "write", "", "configuration file to put the entries into (default OPERATOR.tuned.yaml)")
	fs.IntVar(&f.budget, "budget", 60, "how many settings are timed for a shape, at most: what the search begins with, each value, what it is held against, and the last comparison; the engine's own choice is always one")
	fs.BoolVar(&f.check, "check", true, "compare what is found with an fp32 reference before it is written down; takes long for large shapes")
	for _, def := range operators {
		cmd.AddCommand(&cobra.Command{
			Use: def.name + " [flags]", Short: "Tune " + def.name, Args: noMoreArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return f.tune(cmd, def.name) },
		})
	}
	return cmd
}

func (f *tuneFlags) tune(cmd *cobra.Command, operatorName string) error {
	shapes, req, err := f.work(cmd, operatorName)
	if err != nil {
		return err
	}
	if f.results == "" {
		f.results = "tune-" + operatorName + ".jsonl"
	}
	if f.write == "" {
		f.write = operatorName + ".tuned.yaml"
	}
	session := tune.Session{
		Request: req, Shapes: shapes, Calls: f.launch.run.iters, Budget: f.budget, Check: f.check,
		Results: f.results, Write: f.write, Today: time.Now().Format(time.DateOnly),
		Launch: func(_ context.Context, runs []*request.Resolved) ([]*report.Document, error) { return f.run(cmd, runs) },
		Out:    cmd.OutOrStdout(), Progress: cmd.ErrOrStderr(),
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	err = session.Run(ctx)
	var refused *tune.RefusedError
	var failed *tune.FailedError
	switch status := stopped(ctx); {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return &usageError{cmd.CommandPath(), refused.Err}
	case status != 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v; the same command goes on from %s\n", context.Cause(ctx), f.results)
		return exitStatus(status)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v\n", err)
	if errors.As(err, &failed) {
		return exitStatus(statusCheckFailed)
	}
	return exitStatus(stdio.StatusLauncher)
}
