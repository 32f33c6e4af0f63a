package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/request"
	"github.com/mkrun/mkrun/internal/sim"
)

func newPlan() *cobra.Command {
	var world worldFlags
	var asJSON bool
	var binary string
	var predict prediction
	cmd := &cobra.Command{
		Use:   "plan [flags] OPERATOR [operator flags]",
		Short: "Make and verify the plan of an operator, and show it",
		Long: `A plan is the schedule of an operator on a number of nodes and ranks: what each rank copies, sends and
computes, in which order, and which flags tie it together. It is verified in every launch; here without one.

How long it would take is predicted by simulating it on hardware that is described, not here; --svg draws that.`,
		Example: `  mkrun plan --nodes 2 --ppn 8 ag_gemm --shape llama3-70b/mlp-up/tp16 --tokens 8192
  mkrun plan --nodes 2 --ppn 8 --svg plan.svg ag_gemm --m 16384 --n 3584 --k 8192
  mkrun plan --nodes 64 --ppn 8 --json ag_gemm --m 8192 --n 1024 --k 8192 > plan.json
  mkrun plan --nodes 1 --ppn 2 --binary plans ag_gemm --m 8192 --n 1024 --k 8192`,
		Args: func(cmd *cobra.Command, args []string) error {
			return &usageError{cmd.CommandPath(), notAnOperator(cmd, args)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	world.add(cmd)
	cmd.PersistentFlags().BoolVar(&asJSON, "json", false, "the whole plan as one JSON document, with what it is predicted to take")
	cmd.PersistentFlags().StringVar(&binary, "binary", "", "write each rank's part, in the form that libmkernel reads, to rank0.plan, rank1.plan, ... in this folder")
	predict.add(cmd)
	for _, def := range operators {
		op := &operatorFlags{def: def}
		sub := &cobra.Command{
			Use: def.name + " [flags]", Short: def.short, Long: def.long, Args: noMoreArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := op.refuseZero(cmd); err != nil {
					return err
				}
				if predict.svg != "" && asJSON && mixed(infoAt(predict.svg), infoOf(cmd.OutOrStdout())) {
					return &usageError{cmd.CommandPath(), fmt.Errorf("--json and --svg %s exclude each other: both want stdout for themselves", predict.svg)}
				}
				w, err := world.world("")
				if err != nil {
					return &usageError{cmd.CommandPath(), err}
				}
				req := op.req
				req.World, req.Engine, req.Iters, req.WaitTimeout = w, "cpu", 1, time.Second
				start := time.Now()
				resolved, err := req.ResolvePlan()
				if err != nil {
					return &usageError{cmd.CommandPath(), err}
				}
				proved := time.Since(start)
				predicted, err := predict.run(resolved)
				if err != nil {
					return &usageError{cmd.CommandPath(), err}
				}
				if err := writeRanks(binary, resolved.Plan); err != nil {
					return &usageError{cmd.CommandPath(), fmt.Errorf("--binary: %w", err)}
				}
				if asJSON {
					return resolved.Plan.Dump(cmd.OutOrStdout(), predicted)
				}
				if err := describe(cmd.OutOrStdout(), "engine cpu: a plan without a launch takes its settings", resolved); err != nil {
					return err
				}
				line := ""
				if predicted != nil {
					line = predicted.String() + "\n"
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "\n%sverified: made and proved in %.1f ms\n", line, proved.Seconds()*1e3)
				return err
			},
		}
		op.addShape(sub)
		cmd.AddCommand(sub)
	}
	return cmd
}

// writeRanks writes the binary form of each rank's part into a folder, if one is named.
func writeRanks(folder string, p *plan.Plan) error {
	if folder == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for rank := range p.Ranks {
		image, err := p.EncodeRank(rank)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("rank%d.plan", rank)), image, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// prediction is what mkrun plan is asked about time.
type prediction struct {
	svg      string
	hardware string
}

func (f *prediction) add(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.svg, "svg", "", "draw the simulated timeline of ranks, transfers and segments into this file")
	fs.StringVar(&f.hardware, "hardware", "h200", "described hardware that is simulated")
}

// mostPredicted is the number of tasks up to which a plan is simulated without being asked to: a fraction of a second.
const mostPredicted = 50_000

// run simulates the plan, draws it if asked to, and says how long it would take; nil if it is too large to be
// simulated without being asked to.
func (f *prediction) run(r *request.Resolved) (*sim.Prediction, error) {
	hardware, err := sim.Named(f.hardware)
	if err != nil {
		return nil, fmt.Errorf("--hardware: %w", err)
	}
	counts := r.Plan.Counts()
	if f.svg == "" && counts.Transfers+counts.Segments+counts.Notices > mostPredicted {
		return nil, nil
	}
	result, err := sim.Run(r.Plan, sim.Options{Hardware: hardware, Shape: r.Run.Shape, ElemSize: r.Run.DType.Size()})
	if err != nil {
		return nil, err
	}
	if f.svg != "" {
		if err := writeFile(f.svg, func(w io.Writer) error { return result.WriteSVG(w, r.Plan, r.Run.DType.String()) }); err != nil {
			return nil, fmt.Errorf("--svg: %w", err)
		}
	}
	return result.Prediction(), nil
}

// writable finds out before something that takes long whether its result can be written to a file; "": to none. A file
// that was not there is left empty.
func writable(name string) error {
	if name == "" {
		return nil
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	return file.Close()
}

// writeFile makes a file of what a function writes.
func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		_ = file.Close() // the first error is the cause
		return err
	}
	return file.Close()
}
