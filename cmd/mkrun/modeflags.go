package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mkrun/mkrun/internal/bench"
	"github.com/mkrun/mkrun/internal/launch"
)

// modeFlags are flags that have an effect only in a mode.
type modeFlags struct {
	names []string
	mode  bool   // this is it
	why   string // they are useless otherwise, and what to do: follows the flag's name
}

// refuseUseless refuses a flag that was given and has no effect. One that says what goes without saying is none.
func refuseUseless(flags *pflag.FlagSet, table []modeFlags) error {
	for _, m := range table {
		for _, name := range m.names {
			if f := flags.Lookup(name); !m.mode && f != nil && f.Changed && f.Value.String() != f.DefValue {
				return fmt.Errorf("--%s %s", name, m.why)
			}
		}
	}
	return nil
}

// checkModes refuses flags that mean nothing to what is launched: the program, or an operator where it is "".
func (f *launchFlags) checkModes(cmd *cobra.Command, program string) error {
	reach, err := launch.ParseReach(f.hosts.agent)
	if err == nil {
		err = refuseUseless(cmd.Flags(), append(f.modes(program), f.hosts.modes(reach)...))
	}
	if err != nil {
		return &usageError{cmd.CommandPath(), err}
	}
	return nil
}

// modes are the flags of mkrun launch that mean nothing to an operator, to a program of the user's own, or to a launch that
// starts nothing. The program is "" for an operator.
func (f *launchFlags) modes(program string) []modeFlags {
	own := program != ""
	const forOwn = "is for programs of your own: "
	return []modeFlags{
		{[]string{"engine", "check", "iters", "warmup", "seed", "share-gpus"}, !own, fmt.Sprintf("is for operators; a program of your own takes its flags behind %q", program)},
		{[]string{"stdin"}, own, forOwn + "operators read no input"},
		{[]string{"keep-going"}, own, forOwn + "an operator's ranks wait for each other"},
		{[]string{"module"}, own, forOwn + "operators are named without it"},
		{[]string{"compat", "pmi"}, own, forOwn + "operators need none"},
		{[]string{"preflight", "events"}, !f.dryRun, "has no effect with --dry-run, which starts nothing; take --dry-run=connect, or leave one of them out"},
	}
}

// modes are the flags about hosts that mean nothing where none are named, or where agents are started in another way.
func (f *hostFlags) modes(reach launch.Reach) []modeFlags {
	joins, named := f.join.file != "", f.named()
	by := func(reaches ...launch.Reach) bool { return named && !joins && slices.Contains(reaches, reach) }
	// Which agents they are for, and what there is instead.
	are := func(what string, wanted launch.Reach) string {
		instead := fmt.Sprintf("here agents are started by %s: take --agent %s, or leave it out", reach, wanted)
		switch {
		case joins:
			instead = "those of --join come by themselves: leave it out"
		case !named && wanted == launch.ReachStanding:
			instead = "name hosts with -H, --hostfile or --batch and take --agent standing, or leave it out"
		case !named:
			instead = "no host is named: name some with -H, --hostfile or --batch, or leave it out"
		case reach == launch.ReachAuto:
			instead = fmt.Sprintf("take --agent %s, or leave it out", wanted)
		}
		return fmt.Sprintf("is for %s; %s", what, instead)
	}
	return []modeFlags{
		{[]string{"include", "exclude"}, named, "chooses among hosts, and none is named: name some with -H, --hostfile or --batch, or leave it out"},
		{[]string{"agent"}, named && !joins || !joins && reach == launch.ReachLocal, are("agents on hosts", launch.ReachAuto)},
		{[]string{"ssh-cmd", "ssh-opts", "copy-self", "connect-timeout"}, by(launch.ReachAuto, launch.ReachSSH), are("agents that ssh starts", launch.ReachSSH)},
		{[]string{"remote-mkrun"}, by(launch.ReachAuto, launch.ReachSSH, launch.ReachSrun), are("agents that ssh or srun starts", launch.ReachSSH)},
		{[]string{"agent-port", "secret"}, by(launch.ReachStanding), are("standing agents", launch.ReachStanding)},
		{[]string{"join-at", "node-rank"}, joins, "belongs to --join: give both, or leave it out"},
	}
}

// modes are the flags of mkrun bench that mean nothing without others to compare with.
func (f *benchFlags) modes() []modeFlags {
	known := f.loop == bench.LoopEager || f.loop == bench.LoopQueued // what is not is refused as such
	return []modeFlags{{[]string{"loop"}, len(f.versus) > 0 || !known, "says how calls are timed beside others: name some with --vs, or leave it out"}}
}

// modes are the flags of mkrun topo that mean nothing to what it looks at or to how it shows that.
func (f *topoFlags) modes(gathers bool) []modeFlags {
	live, looks := len(f.from) == 0, f.snapshot == ""
	text := f.format == "text" || f.format == "tree"
	shows := text || f.format == "json" || f.format == "html" // all that is known, and not only a drawing
	asked := []string{
		"timeout", "start-timeout", "include", "exclude", "agent", "ssh-cmd", "ssh-opts", "remote-mkrun", "copy-self", "connect-timeout",
		"iface", "agent-port", "head", "port-range", "radix", "secret",
	}
	shown := func(words string) string { return fmt.Sprintf("%s --format %s; leave it out", words, f.format) }
	return []modeFlags{
		{asked, gathers, "is for hosts that are asked; name some with -H, --hostfile or --batch, or leave it out"},
		{[]string{"vendor-topology", "sysfs-root", "proc-root"}, live, "is for this machine, and --from reads others from files; leave one of them out"},
		{
			[]string{"json", "format", "tree", "output", "ascii", "color", "vocabulary", "explain", "check", "expect", "ranks"}, looks,
			"is for what is shown, and --snapshot only captures; run mkrun topo --from on the snapshot with it",
		},
		{[]string{"ascii"}, text, shown("is for text, not for")},
		{[]string{"explain"}, f.format == "text", shown("is a text of its own, not for")},
		{[]string{"vocabulary"}, f.format == "text", shown("is of the matrix, which is not in")},
		{[]string{"vocabulary", "ranks"}, f.explain == "", "has no part in what --explain says; leave one of them out"},
		{[]string{"measure"}, f.check || f.expect != "" || f.explain == "" && shows, "measures what this view does not show; add --check, take --json, or leave it out"},
		{[]string{"ranks"}, shows, shown("places ranks, which is not in")},
	}
}
