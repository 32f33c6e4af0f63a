package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/gather"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/suggest"
	"github.com/mkrun/mkrun/internal/topology"
)

// exitDegraded is the status of mkrun topo when the health check found a degradation.
const exitDegraded = 3

// topoFlags are the flags of mkrun topo.
type topoFlags struct {
	from     []string
	hosts    hostFlags
	world    worldFlags
	roots    topology.Roots
	vendor   string
	snapshot string

	timeout, startTimeout time.Duration

	json       bool
	format     string
	output     string
	tree       bool
	ascii      bool
	color      string
	vocabulary string
	explain    string

	check   bool
	measure bool
	expect  string
	ranks   int
}

// topoFormats are what --format takes.
var topoFormats = []string{"text", "tree", "json", "nccl-xml", "dot", "svg", "html"}

func newTopo() *cobra.Command {
	var f topoFlags
	cmd := &cobra.Command{
		Use:   "topo [flags]",
		Short: "Show GPUs, NVLinks, PCIe, NUMA and NICs, what follows for placement, and what is broken",
		Long: `Shows this machine, or machines from files: how far GPUs and NICs are apart in nvidia-smi's and NCCL's words,
which NICs each GPU takes and by which rule, roles of the NICs, NVLinks, CPUs to bind to.

--from reads NCCL topology XML, hwloc (lstopo) XML, the text of nvidia-smi topo -m, mkrun's own JSON and
snapshots, recognised by content. -H, --hostfile and --batch name hosts, which are asked by agents as mkrun launch
starts them. With several nodes, those that are alike are shown once, the odd ones named, and the rails compared.

Exit status: 0; with --check or --expect 3 if something is degraded; 1 an input cannot be read or a host does not
answer; 2 bad command line.`,
		Example: `  mkrun topo
  mkrun topo --explain gpu3
  mkrun topo --check --expect h200-8 --json
  mkrun topo --measure --check
  mkrun topo -H 'node[01-16]' --check
  mkrun topo --from machine.xml --format svg -o machine.svg
  nvidia-smi topo -m | mkrun topo --from -
  mkrun topo --snapshot here.tar.gz && mkrun topo --from here.tar.gz`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{cmd.CommandPath(), fmt.Errorf("%q: mkrun topo takes no arguments; a file is read with --from %s", args[0], args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.from, "from", nil, "read nodes from this file (- is stdin) instead of this machine (repeat for more)")
	f.hosts.addPool(cmd)
	fs.IntVar(&f.world.nodes, "nodes", 1, "nodes to pretend on this host, each asked by an agent of its own")
	fs.DurationVar(&f.timeout, "timeout", defaultTopoTimeout, "for all hosts to answer (0: for ever)")
	fs.DurationVar(&f.startTimeout, "start-timeout", launch.DefaultStartTimeout, "for an agent to come up on each of them")
	fs.StringVar(&f.snapshot, "snapshot", "", "capture this machine into this .tar.gz, with names, GUIDs, serials and MACs replaced")
	fs.StringVar(&f.vendor, "vendor-topology", "", "NCCL XML of this type of virtual machine, to be laid under what the machine shows")
	fs.StringVar(&f.roots.Sys, "sysfs-root", "", "where the machine's /sys is mounted, if not at /sys")
	fs.StringVar(&f.roots.Proc, "proc-root", "", "where its /proc is mounted, if not at /proc")

	fs.BoolVar(&f.json, "json", false, "one JSON document (schema "+topology.Schema+"), short for --format json")
	fs.StringVar(&f.format, "format", "text", strings.Join(topoFormats, ", "))
	fs.StringVarP(&f.output, "output", "o", "", "write to this file instead of stdout (- is stdout)")
	fs.BoolVar(&f.tree, "tree", false, "draw the tree, short for --format tree")
	fs.BoolVar(&f.ascii, "ascii", false, "no characters beyond ASCII")
	fs.StringVar(&f.color, "color", "auto", "auto (on a terminal), always or never")
	fs.StringVar(&f.vocabulary, "vocabulary", "", "words of the matrix: smi or nccl (default: those that the source can tell)")
	fs.StringVar(&f.explain, "explain", "", "say for one GPU (gpu3) how each answer came about")

	fs.BoolVar(&f.check, "check", false, "look for what is broken; exit status 3 if something is degraded")
	fs.StringVar(&f.expect, "expect", "", "compare with a file or a product ("+strings.Join(topology.MachineNames(), ", ")+"); implies --check")
	fs.BoolVar(&f.measure, "measure", false, "measure GPU pairs and host links, and check the data that crosses them (a second a pair; nothing else should use the GPUs)")
	fs.IntVar(&f.ranks, "ranks", 0, "place this many ranks")
	return cmd
}

// usage refuses a command line.
func (f *topoFlags) usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd.CommandPath(), fmt.Errorf(format, args...)}
}

func (f *topoFlags) validate(cmd *cobra.Command) error {
	switch {
	case f.json && cmd.Flags().Changed("format") && f.format != "json":
		return f.usage(cmd, "--json and --format %s exclude each other", f.format)
	case f.tree && cmd.Flags().Changed("format") && f.format != "tree":
		return f.usage(cmd, "--tree and --format %s exclude each other", f.format)
	case f.json && f.tree:
		return f.usage(cmd, "--json and --tree exclude each other")
	case f.json:
		f.format = "json"
	case f.tree:
		f.format = "tree"
	}
	known := false
	for _, k := range topoFormats {
		known = known || k == f.format
	}
	switch {
	case !known:
		return f.usage(cmd, "--format %s is unknown%s; known: %s", f.format, suggest.DidYouMean(f.format, topoFormats), strings.Join(topoFormats, ", "))
	case f.vocabulary != "" && f.vocabulary != "smi" && f.vocabulary != "nccl":
		return f.usage(cmd, "--vocabulary %s is neither smi nor nccl", f.vocabulary)
	case f.color != "auto" && f.color != "always" && f.color != "never":
		return f.usage(cmd, "--color %s is none of auto, always, never", f.color)
	case f.ranks < 0:
		return f.usage(cmd, "--ranks %d: 1 or more", f.ranks)
	case f.measure && len(f.from) > 0:
		return f.usage(cmd, "--measure measures machines, not files; a document written with --measure --json keeps its figures")
	case f.measure && f.roots.Sys != "":
		return f.usage(cmd, "--measure measures this machine; it cannot be combined with --sysfs-root")
	case f.measure && f.snapshot != "":
		return f.usage(cmd, "--snapshot captures what is there, not figures; --measure --json keeps those")
	case f.snapshot != "" && len(f.from) > 0:
		return f.usage(cmd, "--snapshot captures this machine; it cannot be combined with --from")
	}
	if err := refuseUseless(cmd.Flags(), f.modes(f.gathers(cmd) != "")); err != nil {
		return &usageError{cmd.CommandPath(), err}
	}
	if by := f.gathers(cmd); by != "" {
		switch {
		case f.snapshot != "":
			return f.usage(cmd, "--snapshot captures this machine; run it on each host instead of %s", by)
		case len(f.from) > 0:
			return f.usage(cmd, "--from and %s exclude each other", by)
		}
	}
	return nil
}

func (f *topoFlags) run(cmd *cobra.Command) error {
	if err := f.validate(cmd); err != nil {
		return err
	}
	if f.snapshot != "" {
		if err := f.capture(cmd.Context(), cmd.OutOrStdout()); err != nil {
			return f.failed(cmd, err)
		}
		return nil
	}
	nodes, err := f.nodes(cmd)
	if err != nil {
		return err
	}
	evals := make([]*topology.Eval, len(nodes))
	for i, n := range nodes {
		evals[i] = topology.NewEval(n)
	}
	var want *topology.Expectation
	if f.expect != "" {
		if want, err = topology.ParseExpectation(f.expect); err != nil {
			return f.failed(cmd, err)
		}
	}
	findings := topology.CheckNodes(evals, want)
	if err := f.deliver(cmd, evals, findings); err != nil {
		return err
	}
	if (f.check || f.expect != "") && !topology.Healthy(findings) {
		return exitStatus(exitDegraded)
	}
	return nil
}

// deliver writes the view to where it was asked for. A file is only touched once all of it is there: a view that cannot be
// made costs nobody the one of before.
func (f *topoFlags) deliver(cmd *cobra.Command, evals []*topology.Eval, findings []topology.Finding) error {
	if f.output == "" || f.output == "-" {
		err := f.write(cmd, cmd.OutOrStdout(), evals, findings)
		var broken *fs.PathError
		if errors.As(err, &broken) && broken.Op == "write" {
			return f.failed(cmd, fmt.Errorf("writing the output: %w", err))
		}
		return err
	}
	var view bytes.Buffer
	if err := f.write(cmd, &view, evals, findings); err != nil {
		return err
	}
	if err := os.WriteFile(f.output, view.Bytes(), 0o644); err != nil {
		return f.failed(cmd, fmt.Errorf("writing the output: %w", err))
	}
	return nil
}

// failed says what went wrong after the command line was understood: status 1, not 2.
func (f *topoFlags) failed(cmd *cobra.Command, err error) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "mkrun: %v\n", err)
	return exitStatus(1)
}

func (f *topoFlags) live() topology.LiveOptions {
	return topology.LiveOptions{Roots: f.roots, Vendor: f.vendor, NoNVML: f.roots.Sys != "" && f.roots.Sys != "/sys"}
}

// nodes reads all that was asked for. Its errors end mkrun.
func (f *topoFlags) nodes(cmd *cobra.Command) ([]*topology.Node, error) {
	var nodes []*topology.Node
	var err error
	switch {
	case f.gathers(cmd) != "":
		return f.gather(cmd)
	case len(f.from) > 0:
		nodes, err = topology.LoadAll(f.from)
	default:
		var n *topology.Node
		n, err = gather.Request{Options: f.live(), Measure: f.measure}.Node(cmd.Context())
		nodes = append(nodes, n)
	}
	if err != nil {
		return nil, f.failed(cmd, err)
	}
	return nodes, nil
}

func (f *topoFlags) capture(ctx context.Context, out io.Writer) error {
	var snapshot bytes.Buffer
	n, err := topology.Snapshot(ctx, &snapshot, f.live())
	if err == nil {
		if err = os.WriteFile(f.snapshot, snapshot.Bytes(), 0o644); err != nil {
			err = fmt.Errorf("--snapshot: %w", err)
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s, %s, %s; read it with mkrun topo --from %s\n", f.snapshot, count.Of(len(n.GPUs), "GPU"), count.Of(len(n.NICs), "NIC"), count.Of(len(n.PCI), "PCI device"), f.snapshot)
	return nil
}

// gpuNumber reads what --explain takes: gpu3, GPU3 or 3.
func gpuNumber(s string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(strings.ToLower(s), "gpu"))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("--explain %s: name a GPU, such as gpu3", s)
	}
	return n, nil
}
