package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/suggest"
	"github.com/mkrun/mkrun/internal/version"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "mkrun",
		Short: "Launch fused multi-GPU, multi-node operators, and any program, as ranks",
		Long: `mkrun runs operators in which communication hides inside one persistent kernel per rank,
and starts, places, connects and watches the ranks, on one node or many.

Without a GPU the CPU engine runs the same verified plans.`,
		Example: `  # AllGather+GEMM of a Llama-3 8B layer on 2 pretended nodes x 2 ranks, checked
  mkrun launch --nodes 2 --ppn 2 --check ag_gemm --shape llama3-8b/mlp-up/tp4 --tokens 128

  # your own program as 4 ranks, with RANK, WORLD_SIZE, MASTER_ADDR, ... set
  mkrun launch --ppn 4 -- python train.py

  # what is here and what will not work
  mkrun doctor`,
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownWord,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentPreRunE = checkFlags
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newLaunch(), newPlan(), newConfig(), newTune(), newBench(), newDoctor(), newTopo(), newAgent(), newVersion())
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion": // cobra shows its help for any word
			c.Args = unknownWord
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		case "help": // and says of a topic that it knows none, with status 0
			c.Args = func(cmd *cobra.Command, args []string) error {
				if of, rest, err := root.Find(args); err == nil {
					return unknownWord(of, rest)
				}
				return unknownWord(root, args)
			}
		}
	}
	decimalFlags(root)
	addSwitches(root)
	return root
}

// unknownWord refuses a word behind a command that is none of its commands.
func unknownWord(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return &usageError{cmd.CommandPath(), fmt.Errorf("unknown command %q%s", args[0], suggest.DidYouMean(args[0], names))}
}

// flagError adds what a mistyped flag may have meant.
func flagError(cmd *cobra.Command, err error) error {
	// A flag behind a word that is no operator is unknown because the word is: name that.
	if words := cmd.Flags().Args(); len(words) > 0 && takesOperators(cmd) {
		return &usageError{cmd.CommandPath(), notAnOperator(cmd, words)}
	}
	return &usageError{cmd.CommandPath(), fmt.Errorf("%w%s", err, flagHint(cmd, err.Error()))}
}
