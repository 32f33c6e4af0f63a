package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newPlan() *cobra.Command {
	var world worldFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "plan [flags] OPERATOR [operator flags]",
		Short: "Make and verify the plan of an operator, and show it",
		Long: `A plan is the schedule of an operator on a number of nodes and ranks: what each rank copies, sends and
computes, in which order, and which flags tie it together. It is verified in every launch; here without one.`,
		Example: `  mkrun plan --nodes 2 --ppn 8 ag_gemm --shape llama3-70b/mlp-up/tp16 --tokens 8192
  mkrun plan --nodes 64 --ppn 8 --json ag_gemm --m 8192 --n 1024 --k 8192 > plan.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			return &usageError{cmd.CommandPath(), notLaunched(args)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	world.add(cmd)
	cmd.PersistentFlags().BoolVar(&asJSON, "json", false, "the whole plan as one JSON document")
	for _, def := range operators {
		op := &operatorFlags{def: def}
		sub := &cobra.Command{
			Use: def.name + " [flags]", Short: def.short, Long: def.long, Args: noMoreArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := op.refuseZero(cmd); err != nil {
					return err
				}
				w, err := world.world()
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
				if asJSON {
					return resolved.Plan.Dump(cmd.OutOrStdout())
				}
				if err := describe(cmd.OutOrStdout(), resolved); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nverified: made and proved in %.1f ms\n", time.Since(start).Seconds()*1e3)
				return err
			},
		}
		op.addShape(sub)
		cmd.AddCommand(sub)
	}
	return cmd
}
