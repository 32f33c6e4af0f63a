package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/bench"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
	"github.com/mkrun/mkrun/internal/stdio"
)

// benchFlags are the flags of mkrun bench.
type benchFlags struct {
	batchFlags
	versus []string
	loop   string
	config string
	svg    string
	json   bool
	check  bool
}

func newBench() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench [flags] OPERATOR --shapes SHAPES",
		Short: "Time an operator on some shapes, beside NCCL and PyTorch's fused operators",
		Long: `Launches the operator on every shape with what is configured for it. With --vs, on GPUs, its kernel and what users
could call instead are then timed in one loop by python3 with PyTorch: device-side barrier, event, call, event; all take
turns, operands rotate over more than the L2, and the slower rank counts.

  nccl      NCCL's all-gather, then cuBLAS
  asynctp   PyTorch's fused_all_gather_matmul on symmetric memory

The product alone (cuBLAS on operands that are gathered already, on all GPUs at once) is timed with them. --vs is there
for ag_gemm, bf16 and fp16, on the GPUs of one node: what it compares with would not go over emulated links.

Exit status: 0 all shapes were timed; that of the first launch that failed, as mkrun launch has it (124: --job-timeout);
else 1 something was wrong or not timed; 2 bad command line; 125 mkrun itself, or the script of the baselines.`,
		Example: `  mkrun bench --ppn 2 ag_gemm --shapes shapes.txt
  mkrun bench --ppn 2 --engine cuda --vs nccl,asynctp --svg bench.svg ag_gemm --shapes 8192x1024x8192,llama3-70b/mlp-up/tp2@4096
  mkrun bench --ppn 2 --json ag_gemm --shapes shapes.txt > bench.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			return &usageError{cmd.CommandPath(), notConfigured(args)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f.add(cmd, 40)
	fs := cmd.PersistentFlags()
	fs.StringSliceVar(&f.versus, "vs", nil, "what to compare with, on GPUs: nccl, asynctp or both with a comma")
	fs.StringVar(&f.loop, "loop", bench.LoopEager, "how calls are timed beside others: eager, as a caller submits them, or queued, with the host ahead")
	fs.StringVar(&f.config, "config", "", "file with settings instead of the built-in one")
	fs.StringVar(&f.svg, "svg", "", "draw TFLOP/s and ratios into this file")
	fs.BoolVar(&f.json, "json", false, "one JSON document on stdout instead of the table")
	fs.BoolVar(&f.check, "check", false, "compare each launch's result with an fp32 reference")
	_ = cmd.RegisterFlagCompletionFunc("vs", cobra.FixedCompletions(bench.Baselines(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("loop", cobra.FixedCompletions([]string{bench.LoopEager, bench.LoopQueued}, cobra.ShellCompDirectiveNoFileComp))
	for _, def := range operators {
		cmd.AddCommand(&cobra.Command{
			Use: def.name + " [flags]", Short: "Time " + def.name, Args: noMoreArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return f.bench(cmd, def.name) },
		})
	}
	return cmd
}

func (f *benchFlags) bench(cmd *cobra.Command, operatorName string) error {
	if err := refuseUseless(cmd.Flags(), f.modes()); err != nil {
		return &usageError{cmd.CommandPath(), err}
	}
	shapes, req, err := f.work(cmd, operatorName)
	if err != nil {
		return err
	}
	if f.svg != "" && mixed(infoAt(f.svg), infoOf(cmd.OutOrStdout())) {
		return &usageError{cmd.CommandPath(), fmt.Errorf("--svg %s is stdout, which the result goes to: name another file", f.svg)}
	}
	if err := writable(f.svg); err != nil {
		return &usageError{cmd.CommandPath(), fmt.Errorf("--svg: %w", err)}
	}
	req.Config, req.Check = f.config, f.check
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	failed := statusCheckFailed
	session := bench.Session{
		Request: req, Shapes: shapes, Versus: f.versus, Loop: f.loop, Calls: f.launch.run.iters, Today: time.Now().Format(time.DateOnly),
		Launch: func(_ context.Context, runs []*request.Resolved) ([]*report.Document, error) {
			docs, err := f.run(cmd, runs)
			if job := (*jobError)(nil); errors.As(err, &job) && failed == statusCheckFailed {
				failed = job.status
			}
			return docs, err
		},
		Ready: bench.Ready,
		Script: func(ctx context.Context, job bench.Job) (*bench.Timings, error) {
			return bench.Python(ctx, job, cmd.ErrOrStderr())
		},
		Progress: cmd.ErrOrStderr(),
	}
	doc, err := session.Run(ctx)
	var refused *bench.RefusedError
	switch status := stopped(ctx); {
	case errors.As(err, &refused):
		return &usageError{cmd.CommandPath(), refused.Err}
	case status != 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v\n", context.Cause(ctx))
		return exitStatus(status)
	case err != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v\n", err)
		return exitStatus(stdio.StatusLauncher)
	}
	write := doc.WriteTable
	if f.json {
		write = doc.WriteJSON
	}
	if err := write(cmd.OutOrStdout()); err != nil {
		return err
	}
	if f.svg != "" {
		if err := writeFile(f.svg, doc.WriteSVG); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: --svg: %v\n", err)
			return exitStatus(stdio.StatusLauncher)
		}
	}
	if doc.Failed() {
		return exitStatus(failed)
	}
	return nil
}
