package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// addSwitches lets a command's switches, flags that take no word as their value, be given before its name, as other flags may be.
// cobra looks for that name before it reads flags, and takes the word behind a flag that the commands so far do not have for its
// value: so they all get the switches of the commands below them, hidden. A name that is a switch of one command and takes a word
// in another is left out.
//
// What is returned are the flags of the command and those below it, by name: whether all of that name are switches.
func addSwitches(cmd *cobra.Command) map[string]bool {
	cmd.InitDefaultHelpFlag() // a switch too, which cobra adds only when it has found the command
	flags, owners := map[string]bool{}, map[string]switchBelow{}
	add := func(name string, isSwitch bool) {
		others, known := flags[name]
		flags[name] = isSwitch && (others || !known)
	}
	for _, c := range cmd.Commands() {
		for name, isSwitch := range addSwitches(c) {
			add(name, isSwitch)
			owners[name] = append(owners[name], c.Name())
		}
	}
	for name, isSwitch := range flags {
		if isSwitch && cmd.Flag(name) == nil {
			f := cmd.Flags().VarPF(owners[name], name, "", "")
			f.NoOptDefVal, f.Hidden = "true", true
		}
	}
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		set.VisitAll(func(f *pflag.Flag) { add(f.Name, f.NoOptDefVal != "") })
	}
	return flags
}

// switchBelow is the value of a switch that the named commands have, in a command above them, which must not run with it.
type switchBelow []string

func (s switchBelow) String() string   { return strings.Join(s, ", ") }
func (s switchBelow) Set(string) error { return nil }
func (s switchBelow) Type() string     { return "bool" }

func (s switchBelow) refuse(name string) error {
	return fmt.Errorf("--%s is for %v, and none is named: name one, or leave it out", name, s)
}
