package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Flags before the operator's name are the operator's like those behind it, whether they take a value or not.
func TestFlagsBeforeOperator(t *testing.T) {
	for line, want := range map[string]struct {
		command string
		flags   string // name=value of those that were given
		rest    string // words behind the flags
	}{
		"launch --nodes 2 --net-reorder --wait-timeout 3s ag_gemm --m 8":   {"mkrun launch ag_gemm", "m=8 net-reorder=true nodes=2 wait-timeout=3s", ""},
		"launch --net ibverbs --net-relaxed --net-qps 2 ag_gemm":           {"mkrun launch ag_gemm", "net-qps=2 net-relaxed=true net=ibverbs", ""},
		"launch --net-relaxed --net-reorder gemm_rs --nodes=2":             {"mkrun launch gemm_rs", "net-relaxed=true net-reorder=true nodes=2", ""},
		"launch --net-reorder ag_gemm":                                     {"mkrun launch ag_gemm", "net-reorder=true", ""},
		"launch --net-reorder=false --check --net-latency=1ms gemm_ar":     {"mkrun launch gemm_ar", "check=true net-latency=1ms net-reorder=false", ""},
		"launch --wdir ag_gemm --net-reorder -v ag_gemm --net-relaxed":     {"mkrun launch ag_gemm", "net-relaxed=true net-reorder=true verbose=true wdir=ag_gemm", ""},
		"launch --net-reorder false ag_gemm":                               {"mkrun launch", "net-reorder=for", "false ag_gemm"}, // as behind it, the word is none of the flag
		"launch --net-reorder ag_gemm false":                               {"mkrun launch ag_gemm", "net-reorder=true", "false"},
		"launch --net-reorder -- ag_gemm":                                  {"mkrun launch", "net-reorder=for", "ag_gemm"}, // a program of this name
		"launch --nodes 2 -- prog --net-reorder ag_gemm":                   {"mkrun launch", "nodes=2", "prog --net-reorder ag_gemm"},
		"launch -m module -- --net-reorder --net-relaxed ag_gemm":          {"mkrun launch", "module=module", "--net-reorder --net-relaxed ag_gemm"},
		"launch --net-reorder ag_gemm -- --net-relaxed":                    {"mkrun launch ag_gemm", "net-reorder=true", "--net-relaxed"},
		"--nodes 2 --net-reorder --wait-timeout 3s launch ag_gemm --check": {"mkrun launch ag_gemm", "check=true net-reorder=true nodes=2 wait-timeout=3s", ""},
		"--dry-run launch --help ag_gemm":                                  {"mkrun launch ag_gemm", "dry-run=show help=true", ""},
		"bench --net-reorder --json --iters 2 ag_gemm":                     {"mkrun bench ag_gemm", "iters=2 json=true net-reorder=true", ""},
	} {
		cmd, words, err := newRoot().Find(strings.Fields(line))
		if err == nil {
			err = cmd.ParseFlags(words)
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		var flags []string
		cmd.Flags().Visit(func(f *pflag.Flag) {
			value := f.Value.String()
			if _, above := f.Value.(switchBelow); above {
				value = "for"
			}
			flags = append(flags, f.Name+"="+value)
		})
		slices.Sort(flags)
		got, rest := strings.Join(flags, " "), strings.Join(cmd.Flags().Args(), " ")
		if cmd.CommandPath() != want.command || got != want.flags || rest != want.rest {
			t.Errorf("%s: %s with %q and then %q, want %+v", line, cmd.CommandPath(), got, rest, want)
		}
	}
}

// Each switch of each command may be before its name and those of the commands above it.
func TestSwitchesBeforeCommands(t *testing.T) {
	flags := 0
	var visit func(path []string, cmd *cobra.Command)
	visit = func(path []string, cmd *cobra.Command) {
		for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) {
				if f.NoOptDefVal == "" {
					return
				}
				for at := range path {
					flags++
					line := slices.Insert(slices.Clone(path), at, "--"+f.Name)
					found, words, err := newRoot().Find(line)
					if err != nil || found.CommandPath() != cmd.CommandPath() || !slices.Equal(words, []string{"--" + f.Name}) {
						t.Errorf("%q is %s with %q, error %v", line, found.CommandPath(), words, err)
					}
				}
			})
		}
		for _, c := range cmd.Commands() {
			visit(append(slices.Clone(path), c.Name()), c)
		}
	}
	visit(nil, newRoot())
	if flags == 0 {
		t.Error("there are no switches")
	}
}

// Where the command that has the switch is not named, that is said.
func TestSwitchesOfOthersAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"launch --net-reorder -- true":          "--net-reorder is for ag_gemm, gemm_ar, gemm_rs, and none is named: name one, or leave it out",
		"launch --net-reorder=false -- true":    "--net-reorder is for ag_gemm",
		"launch --net-reorder":                  "nothing to launch: name an operator",
		"launch --net-reorder --nodes 2 ag_gem": `unknown operator "ag_gem" (did you mean "ag_gemm"?)`,
		"launch --net-reordr -- true":           "unknown flag: --net-reordr (did you mean --net-reorder?)",
		"--check":                               "--check is for",
		"--check lanch ag_gemm":                 `unknown command "lanch" (did you mean "launch"?)`,
		"--net-reorder version":                 "unknown flag: --net-reorder",
	} {
		var said bytes.Buffer
		if status := run(t.Context(), strings.Fields(line), strings.NewReader(""), &said, &said); status != exitUsage || !strings.Contains(said.String(), want) {
			t.Errorf("%s: status %d, want %d and %q:\n%s", line, status, exitUsage, want, said.String())
		}
	}
}
