package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/version"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and build of mkrun",
		Args:  noMoreArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Get())
			return err
		},
	}
}
