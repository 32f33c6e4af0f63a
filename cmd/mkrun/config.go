package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/configs"
	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/request"
	"github.com/mkrun/mkrun/internal/suggest"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check configuration files, and show which entry a shape gets and why",
		Long: `Configuration files say how many workers, which tiles and how many chunks an operator uses, by engine, shape and
world. Those in configs/ are built into mkrun; --config FILE of launch and plan uses another. The nearest entry
is used; flags override it.`,
		Example: `  mkrun config check mine.yaml
  mkrun config show --nodes 2 --ppn 8 ag_gemm --shape llama3-70b/mlp-up/tp16 --tokens 8192`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return &usageError{cmd.CommandPath(), fmt.Errorf("unknown command %q%s; known: check, show, schema", args[0],
				suggest.DidYouMean(args[0], []string{"check", "show", "schema"}))}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigCheck(), newConfigShow(), newConfigSchema())
	return cmd
}

func newConfigCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Find the mistakes in configuration files (without FILE: those built in)",
		Long: `Reads each file as a launch would: unknown keys, ranges without a value, splits that leave no compute worker,
entries that cannot be told apart. Every mistake is told with its line and column. Exit status 2 if there is one.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			files, mistakes, err := readFiles(names)
			if err != nil {
				return &usageError{cmd.CommandPath(), err}
			}
			bad := false
			for i, f := range files {
				holds, err := "", mistakes[i]
				if err == nil {
					holds, err = config.CheckFile(f.Name, f.Data)
				}
				if err != nil {
					bad = true
					fmt.Fprintln(cmd.ErrOrStderr(), err)
					continue
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ok (%s)\n", f.Name, holds); err != nil {
					return fmt.Errorf("writing the result: %w", err)
				}
			}
			if bad {
				return exitStatus(exitUsage)
			}
			return nil
		},
	}
}

// readFiles reads the named files, or those built in if none is named. The mistakes are, by file, why it cannot be read.
func readFiles(names []string) (files []config.File, mistakes []error, err error) {
	if len(names) == 0 {
		files, err = config.BuiltIn()
		return files, make([]error, len(files)), err
	}
	for _, name := range names {
		file, err := config.ReadFile(name)
		files, mistakes = append(files, file), append(mistakes, err)
	}
	return files, mistakes, nil
}

func newConfigSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of operator files, for editors",
		Args:  noMoreArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := configs.FS.ReadFile("schema.json")
			if err != nil {
				return fmt.Errorf("reading the built-in schema: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	}
}

// showFlags are what mkrun config show asks the configuration about.
type showFlags struct {
	world  worldFlags
	engine string
	fabric string
}

func newConfigShow() *cobra.Command {
	var f showFlags
	cmd := &cobra.Command{
		Use:   "show [flags] OPERATOR [operator flags]",
		Short: "Show which entry a shape gets, why, and by how far the others lost",
		Example: `  mkrun config show --nodes 2 --ppn 2 ag_gemm --m 4096 --n 1024 --k 4096
  mkrun config show --engine cuda --nodes 2 --ppn 8 --fabric efa ag_gemm --shape llama3-70b/mlp-up/tp16 --tokens 8192`,
		Args: func(cmd *cobra.Command, args []string) error {
			return &usageError{cmd.CommandPath(), notConfigured(args)}
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f.world.add(cmd)
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.engine, "engine", "auto", "the engine to ask for: auto (what a launch here would take), cpu or cuda; it need not be here")
	fs.StringVar(&f.fabric, "fabric", "", "what joins the nodes: tcp, ibverbs, efa, ofi or emu (the cpu engine's is tcp)")
	for _, def := range operators {
		op := &operatorFlags{def: def}
		sub := &cobra.Command{
			Use: def.name + " [flags]", Short: "Show which entry a shape of " + def.name + " gets", Args: noMoreArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				if err := op.refuseZero(cmd); err != nil {
					return err
				}
				if err := f.show(cmd.OutOrStdout(), op.req); err != nil {
					return &usageError{cmd.CommandPath(), err}
				}
				return nil
			},
		}
		op.addShape(sub)
		cmd.AddCommand(sub)
	}
	return cmd
}

func notConfigured(args []string) error {
	names := make([]string, 0, len(operators))
	for _, op := range operators {
		names = append(names, op.name)
	}
	if len(args) == 0 {
		return fmt.Errorf("name an operator: %s", strings.Join(names, ", "))
	}
	return fmt.Errorf("unknown operator %q%s; known: %s", args[0], suggest.DidYouMean(args[0], names), strings.Join(names, ", "))
}

// show looks the request up and writes what was found.
func (f *showFlags) show(w io.Writer, req request.Request) error {
	world, err := f.world.world("")
	if err != nil {
		return err
	}
	req.World = world
	engineName := f.engine
	switch engineName {
	case "auto":
		if engineName, _, err = request.ChooseEngine("auto"); err != nil {
			return err
		}
	case "cpu", "cuda":
	default:
		return fmt.Errorf("unknown engine %q; known: auto, cpu, cuda", engineName)
	}
	fabric, err := f.between(engineName, world.Nodes())
	if err != nil {
		return err
	}
	q, layer, err := req.Query(engineName, fabric)
	if err != nil {
		return err
	}
	if q.M < 1 || q.N < 1 || q.K < 1 {
		return fmt.Errorf("the sizes M=%d N=%d K=%d must each be at least 1", q.M, q.N, q.K)
	}
	op, err := config.LoadOperator(req.Operator, req.Config)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  M=%d N=%d K=%d %s on %v; engine %s, fabric %s\n", req.Operator, q.M, q.N, q.K, q.DType, world, q.Engine, noneIfEmpty(fabric))
	if layer != "" {
		fmt.Fprintln(&b, layer)
	}
	list := op.Candidates(q)
	choice := op.Lookup(q)
	fmt.Fprintf(&b, "\nused: %s\n      %s\n", choice.Source, choice.Why)
	if len(list) > 0 && list[0].Note != "" {
		fmt.Fprintf(&b, "      %s\n", list[0].Note)
	}
	b.WriteByte('\n')
	writeSettings(&b, choice.Settings, req)
	if len(list) > 1 {
		b.WriteString("\nnext, and why they lost:\n")
		for _, c := range list[1:] {
			fmt.Fprintf(&b, "  %s\n      %s: %s\n", c.Source, c.Lost, c.Why)
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// between is the fabric that a query names.
func (f *showFlags) between(engineName string, nodes int) (string, error) {
	switch known := config.Fabrics(); {
	case nodes == 1 && f.fabric != "":
		return "", errors.New("--fabric joins nodes, and there is one: leave it out, or give --nodes")
	case nodes == 1:
		return "", nil
	case f.fabric == "" && engineName == "cuda":
		return "", fmt.Errorf("--fabric is missing: what joins the nodes; one of %s", strings.Join(known, ", "))
	case f.fabric == "" || engineName == "cpu" && f.fabric == "tcp":
		return "tcp", nil
	case engineName == "cpu":
		return "", fmt.Errorf("--fabric %s: the CPU engine knows tcp only; with --engine cuda, others", f.fabric)
	default:
		for _, name := range known {
			if name == f.fabric {
				return name, nil
			}
		}
		return "", fmt.Errorf("unknown fabric %q%s; known: %s", f.fabric, suggest.DidYouMean(f.fabric, known), strings.Join(known, ", "))
	}
}

// writeSettings writes what each setting is and what says so.
func writeSettings(b *strings.Builder, s config.Settings, req request.Request) {
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SETTING\tVALUE\tFROM")
	row := func(name string, value int, otherwise string) {
		if value == 0 {
			fmt.Fprintf(tw, "%s\t-\t%s\n", name, otherwise)
		} else {
			fmt.Fprintf(tw, "%s\t%d\tentry\n", name, value)
		}
	}
	const own = "not set: the engine's own"
	row("compute workers", s.Compute, "not set: all that the other roles leave")
	row("intra workers", s.Intra, own)
	row("send workers", s.Send, own)
	row("reduce workers", s.Reduce, own)
	row("tile rows", s.TileM, own)
	row("tile columns", s.TileN, own)
	row("tile depth", s.TileK, own)
	row("stages", s.Stages, own)
	switch chunks := req.Chunks; {
	case chunks != 0 && s.Chunks != 0:
		fmt.Fprintf(tw, "chunks\t%d\t--chunks, instead of %d of the entry\n", chunks, s.Chunks)
	case chunks != 0:
		fmt.Fprintf(tw, "chunks\t%d\t--chunks\n", chunks)
	default:
		row("chunks", s.Chunks, "not set: by the number of rows")
	}
	word := func(name, value, otherwise string) {
		if value == "" {
			fmt.Fprintf(tw, "%s\t-\t%s\n", name, otherwise)
		} else {
			fmt.Fprintf(tw, "%s\t%s\tentry\n", name, value)
		}
	}
	word("mover", s.Mover, own)
	for _, c := range []struct {
		name  string
		value int
	}{
		{"cluster", s.CUDA.Cluster}, {"raster group", s.CUDA.RasterGroup}, {"push group", s.CUDA.PushGroup},
		{"row block", s.CUDA.RowBlock}, {"K block", s.CUDA.KBlock}, {"split of K", s.CUDA.SplitK},
	} {
		if c.value != 0 {
			row(c.name, c.value, own)
		}
	}
	if algorithms := config.Algorithms(req.Operator); algorithms != nil {
		if req.Algorithm != "" {
			fmt.Fprintf(tw, "algorithm\t%s\t--algorithm\n", req.Algorithm)
		} else {
			word("algorithm", s.Algorithm, "not set: auto, by the size of the result")
		}
		upTo := ""
		if s.OneShotBytes != 0 {
			upTo = fmt.Sprintf("%d bytes", s.OneShotBytes)
		}
		word("one-shot up to", upTo, "not set: auto never takes it")
	}
	_ = tw.Flush() // into memory: never fails
}

func noneIfEmpty(fabric string) string {
	if fabric == "" {
		return "none"
	}
	return fabric
}
