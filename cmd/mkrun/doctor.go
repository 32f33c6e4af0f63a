package main

import (
	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/doctor"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is here, what will not work, and what to do about it",
		Long: `Looks at this machine: GPUs and driver, the data plane library, network cards, limits, loopback
addresses. Each finding has a stable code, one sentence, and what to do. Ends with status 0 if at least
the CPU engine can run.`,
		Example: "  mkrun doctor\n  mkrun doctor --json | jq '.findings[] | select(.severity != \"ok\")'",
		Args:    noMoreArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if status := doctor.Run(cmd.Context(), cmd.OutOrStdout(), asJSON); status != 0 {
				return exitStatus(status)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON document instead of text")
	return cmd
}
