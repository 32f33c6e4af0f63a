package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
)

// dryRun shows what a launch would start.
func dryRun(ctx context.Context, w io.Writer, job *launch.Job) error {
	places, notices, err := job.Preview(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "nothing was started. %s on %s would run, in %s:\n  %s\n\n",
		count.Of(job.World.Size(), "rank"), count.Of(job.World.Nodes(), "node"), job.Dir, quoted(job.Argv))
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "RANK\tNODE\tHOST\tADDRESS\tLOCAL RANK\tGPU\tCPUS\tNICS")
	for rank := range job.World.Size() {
		node, local := job.World.Place(rank)
		fmt.Fprintf(tw, "%d\t%d\t%s\t%s\t%d\t%s\n", job.Number(rank), node, job.Hosts[node].Name, job.Hosts[node].Address, local, placeText(places[rank]))
	}
	for rank, p := range places {
		if p != nil && p.NICText() != "" {
			fmt.Fprintf(tw, "rank %d: %s\n", job.Number(rank), p.NICText())
		}
	}
	for _, n := range notices {
		fmt.Fprintln(tw, n)
	}
	fmt.Fprintln(tw, "\nENVIRONMENT\tOF RANK 0\tMEANING")
	for _, v := range append(job.SharedVariables(0, os.Environ()), job.RankVariables(0, launch.Attempt{})...) {
		if v.Name == "MASTER_PORT" {
			v.Value = "(chosen at start)"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", v.Name, v.Value, v.Meaning)
	}
	nics := "(found by its agent)"
	if p := places[0]; p != nil {
		nics = strings.Join(p.NICs, ",")
	}
	if nics != "" {
		fmt.Fprintf(tw, "%s\t%s\tNICs near its GPU; only set where mkrun looked at the node and knows them\n", launch.EnvNICs, nics)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("writing the dry run: %w", err)
	}
	if job.Remote() {
		names := make([]string, 0, len(job.Env))
		for _, kv := range job.Env {
			name, _, _ := strings.Cut(kv, "=")
			names = append(names, name)
		}
		fmt.Fprintf(&b, "over the environment of each host, and of this one's: %s (more with -x)\n", strings.Join(names, " "))
	} else {
		fmt.Fprintf(&b, "and %d variables of this environment; not passed on: what other launchers set\n", len(job.Env))
	}
	if job.Remote() {
		b.WriteString("\nagents are started by\n")
		for node := range job.Hosts {
			if command, otherwise := job.AgentStart(node); command != nil {
				fmt.Fprintf(&b, "  %s\n", quoted(command))
			} else {
				fmt.Fprintf(&b, "  %s\n", otherwise)
			}
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// placeText are the last columns of a rank.
func placeText(p *launch.RankPlace) string {
	if p == nil {
		return "(its agent finds out)"
	}
	or := func(s, none string) string {
		if s == "" {
			return none
		}
		return s
	}
	return or(p.GPU, "-") + "\t" + or(p.CPUs, "not bound") + "\t" + or(strings.Join(p.NICs, " "), "-")
}

// quoted shows an argument list so that blanks in arguments can be told from those between them.
func quoted(argv []string) string {
	words := make([]string, 0, len(argv))
	for _, a := range argv {
		if a == "" || strings.ContainsAny(a, " \t\n\"'\\$`*?[]{}()<>|&;#~") {
			a = fmt.Sprintf("%q", a)
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

func reportWorld(w plan.World) report.World {
	return report.World{Nodes: w.Nodes(), PPN: report.PPN(w.PPN), Size: w.Size()}
}
