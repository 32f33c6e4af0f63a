package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mkrun/mkrun/internal/suggest"
)

// flagHint is the flag that a mistyped one was probably meant to be: " (did you mean ...?)", or "".
func flagHint(cmd *cobra.Command, message string) string {
	typed, found := strings.CutPrefix(message, "unknown flag: --")
	if !found {
		return ""
	}
	typed, _, _ = strings.Cut(typed, "=")
	var names []string
	add := func(f *pflag.Flag) { names = append(names, f.Name) }
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	near := suggest.Nearest(typed, names, 1)
	if len(near) == 0 {
		return ""
	}
	return " (did you mean --" + near[0] + "?)"
}
