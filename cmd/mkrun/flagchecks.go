package main

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// checkFlags refuses values that say something else than they seem to, before any command runs.
func checkFlags(cmd *cobra.Command, _ []string) error {
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + " (" + name + ")"
		}
		if below, ok := f.Value.(switchBelow); ok {
			err = below.refuse(f.Name)
			return
		}
		switch value := f.Value.String(); {
		case value == "" || value == "[]":
			// As a rule a variable in a script was not set: what it was to name (the hosts, say) would silently be something else.
			err = fmt.Errorf("%s has an empty value; name something, or leave it out", name)
		case value == "-" && slices.Contains(writtenFlags, f.Name):
			err = fmt.Errorf("%s -: this does not go to stdout, which has other output; name a file (./- is one with this name)", name)
		}
	})
	if err != nil {
		return &usageError{cmd.CommandPath(), err}
	}
	return nil
}

// writtenFlags name files and folders that are made, beside what is on stdout.
var writtenFlags = []string{"svg", "binary", "results", "write", "snapshot", "output-dir", "timeline"}

// decimalFlags has the numbers of a command's flags read as people do: strconv, which pflag leaves the base to, takes 010 for 8.
func decimalFlags(cmd *cobra.Command) {
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			if slices.Contains([]string{"int", "int64", "uint64"}, f.Value.Type()) {
				if _, done := f.Value.(decimal); !done {
					f.Value = decimal{f.Value}
				}
			}
		})
	}
	for _, c := range cmd.Commands() {
		decimalFlags(c)
	}
}

// decimal is a whole number that does not begin with a zero.
type decimal struct{ pflag.Value }

var leadingZero = regexp.MustCompile(`^[-+]?0[0-9_]`)

func (d decimal) Set(s string) error {
	if leadingZero.MatchString(s) {
		return fmt.Errorf("a number with a zero in front of it would be read as octal; leave the zero out")
	}
	return d.Value.Set(s)
}
