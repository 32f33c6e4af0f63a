package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
)

// operatorDef is what the command line says about an operator.
type operatorDef struct {
	name, short, long string
	m, n, k           string // what the sizes mean
	layer             string // an example of --shape
}

var operators = []operatorDef{
	{
		name:  "ag_gemm",
		short: "AllGather, then a matrix product: C = (all rows of A) x B^T",
		long: `AllGather + GEMM: every rank holds a part of A's rows and its own B, and ends with its own columns of the
product of all of A, as in the first layer of a tensor-parallel MLP.

     rank 0          rank r                      on every rank r
   A: M/W x K  ...  A: M/W x K   --gather-->   A: M x K   x   B: N x K (transposed)   =   C: M x N

M counts the rows of all ranks together (split as evenly as can be); N and K are one rank's. Products start
with the rank's own rows and follow the others as they arrive.`,
		m: "rows of A over all ranks (>= 1)",
		n: "rows of B = columns of C on each rank (>= 1)",
		k: "columns of A and B (a multiple of 8)", layer: "llama3-8b/mlp-up/tp4",
	},
	{
		name:  "gemm_rs",
		short: "A matrix product, then ReduceScatter: each rank gets its rows of the sum of all ranks' A x B^T",
		long: `GEMM + ReduceScatter: every rank holds its part of the depth of A and B, and ends with its own rows of the sum of
all ranks' products, as in the last layer of a tensor-parallel MLP.

     on every rank r                                                    rank r ends with its rows
   A_r: M x K   x   B_r: N x K (transposed)   =   M x N   --sum, scatter-->   C: M/W x N

M counts the rows of A, the same on all ranks (C's are split as evenly as can be); N and K are one rank's: the
depth of the whole product is W x K. Products of a node are added before they cross to another, in fp32 and in
the order of ranks; what must leave first is computed first.`,
		m: "rows of A on each rank = rows of C over all ranks (>= 1)",
		n: "rows of B on each rank = columns of C (>= 1)",
		k: "columns of A and B on each rank, its part of the depth (a multiple of 8)", layer: "llama3-8b/mlp-down/tp4",
	},
	{
		name:  "gemm_ar",
		short: "A matrix product, then AllReduce: every rank gets the sum of all ranks' A x B^T",
		long: `GEMM + AllReduce: every rank holds its part of the depth of A and B, and ends with the whole sum of all ranks'
products, as in the last layer of a tensor-parallel MLP without sequence parallelism.

     on every rank r                                               on every rank, the same bits
   A_r: M x K   x   B_r: N x K (transposed)   =   M x N   --sum-->   C: M x N

M counts the rows of A and C, the same on all ranks; N and K are one rank's: the depth of the whole product is
W x K. "two-shot" is gemm_rs and a gather of its result; "one-shot" sends more bytes in fewer steps, for small
results: up to which size is configured for each world.`,
		m: "rows of A and C on each rank (>= 1)",
		n: "rows of B on each rank = columns of C (>= 1)",
		k: "columns of A and B on each rank, its part of the depth (a multiple of 8)", layer: "llama3-8b/mlp-down/tp4",
	},
}

// operatorFlags are the flags of one operator.
type operatorFlags struct {
	def operatorDef
	req request.Request
	net netFlags
}

// addShape adds what says how large the operator is and which settings it gets.
func (f *operatorFlags) addShape(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.req.Operator = f.def.name
	fs.Int64Var(&f.req.M, "m", 0, f.def.m)
	fs.Int64Var(&f.req.N, "n", 0, f.def.n)
	fs.Int64Var(&f.req.K, "k", 0, f.def.k)
	fs.StringVar(&f.req.DType, "dtype", "bf16", "element type: bf16 or fp16; sums are fp32")
	fs.StringVar(&f.req.Layer, "shape", "", "a real model's layer instead of --n and --k, e.g. "+f.def.layer)
	fs.Int64Var(&f.req.Tokens, "tokens", 0, "the M of a named layer")
	fs.StringVar(&f.req.Config, "config", "", "file with settings instead of the built-in configs/"+f.def.name+".yaml")
	fs.IntVar(&f.req.Chunks, "chunks", 0, "pieces each shard travels in, at most 64, or as many as a launch takes of a plan (0: as configured)")
	if known := operator.Algorithms(f.def.name); known != nil {
		fs.StringVar(&f.req.Algorithm, "algorithm", "", "how: auto (by the size of the result), "+strings.Join(known, " or ")+" (default: as configured)")
		_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(append([]string{"auto"}, known...), cobra.ShellCompDirectiveNoFileComp))
	}
	if operator.Sums(f.def.name) {
		fs.TextVar(&f.req.Partials, "partials", plan.ElemOperand, "type in which partial sums travel: operand (that of --dtype) or fp32")
		_ = cmd.RegisterFlagCompletionFunc("partials", cobra.FixedCompletions([]string{"operand", "fp32"}, cobra.ShellCompDirectiveNoFileComp))
	}
	_ = cmd.RegisterFlagCompletionFunc("shape", completeShapes)
	_ = cmd.RegisterFlagCompletionFunc("dtype", cobra.FixedCompletions([]string{"bf16", "fp16"}, cobra.ShellCompDirectiveNoFileComp))
}

func completeShapes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	shapes, err := config.LoadShapes()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return shapes.Names(), cobra.ShellCompDirectiveNoFileComp
}

// refuseZero tells a size that was given as 0 from one that was not given.
func (f *operatorFlags) refuseZero(cmd *cobra.Command) error {
	for _, name := range []string{"m", "n", "k", "tokens"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "0" {
			return &usageError{cmd.CommandPath(), fmt.Errorf("--%s 0: must be at least 1", name)}
		}
	}
	return nil
}

// addRun adds what says how the operator is run.
func (f *operatorFlags) addRun(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.IntVar(&f.req.Tile, "tile", 0, "rows and columns of C a worker computes at once; on GPUs columns: 64, 128 or 256, or 32 where no rank has more than 64 rows (0: as configured)")
	fs.IntVar(&f.req.Workers[plan.RoleCompute], "compute-workers", 0, "workers that compute, per rank: goroutines, or CTAs on a GPU (0: as configured)")
	fs.IntVar(&f.req.Workers[plan.RoleIntra], "intra-workers", 0, "workers that copy inside the node, per rank (0: as configured)")
	fs.IntVar(&f.req.Workers[plan.RoleSend], "send-workers", 0, "workers that send to other nodes, per rank (0: as configured)")
	if operator.Sums(f.def.name) {
		fs.IntVar(&f.req.Workers[plan.RoleReduce], "reduce-workers", 0, "workers that add partial sums, per rank (0: as configured)")
	}
	fs.StringVar(&f.req.CUDA.Mover, "mover", "", "who moves bytes between GPUs of a node: sm or ce (copy engine); default: as configured")
	_ = cmd.RegisterFlagCompletionFunc("mover", cobra.FixedCompletions([]string{"sm", "ce"}, cobra.ShellCompDirectiveNoFileComp))
	f.net.add(cmd, fs)
	fs.StringVar(&f.req.Timeline, "timeline", "", "on GPUs: make one call more, and write what its CTAs did and when into this folder, as rank-N.json for Chrome's trace viewer (ui.perfetto.dev), on each rank's host")
}

// runFlags are the flags before the operator that only operators know.
type runFlags struct {
	engine        string
	check         bool
	iters, warmup int
	seed          uint64
	shareGPUs     bool
}

func (f *runFlags) add(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.engine, "engine", "auto", "what executes the plan: auto, cpu or cuda")
	fs.BoolVar(&f.check, "check", false, "compare the result with an fp32 reference on fresh random data")
	fs.IntVar(&f.iters, "iters", 5, "timed calls")
	fs.IntVar(&f.warmup, "warmup", 1, "calls before the timed ones")
	fs.Uint64Var(&f.seed, "seed", 1, "of the random data and of the reordering")
	fs.BoolVar(&f.shareGPUs, "share-gpus", false, "let ranks share a GPU where there are fewer; needs MPS to be fast")
	_ = cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions([]string{"auto", "cpu", "cuda"}, cobra.ShellCompDirectiveNoFileComp))
}

func newLaunchOperator(def operatorDef, f *launchFlags) *cobra.Command {
	op := &operatorFlags{def: def}
	cmd := &cobra.Command{
		Use:   def.name + " [flags]",
		Short: def.short,
		Long:  def.long,
		Example: fmt.Sprintf(`  mkrun launch --nodes 2 --ppn 2 --check %[1]s --m 512 --n 256 --k 1024
  mkrun launch --nodes 2 --ppn 2 --iters 20 %[1]s --shape %[2]s --tokens 128
  mkrun launch --nodes 2 %[1]s --m 512 --n 256 --k 1024 --net-bandwidth 0.1 --net-latency 1ms --net-reorder`, def.name, def.layer),
		Args: noMoreArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.launchOperator(cmd, op) },
	}
	op.addShape(cmd)
	op.addRun(cmd)
	return cmd
}

// noMoreArgs refuses words behind a command that takes flags only.
func noMoreArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{cmd.CommandPath(), fmt.Errorf("%q is not understood: %s takes flags only", args[0], cmd.Name())}
	}
	return nil
}

// launchOperator runs an operator as ranks of mkrun's own.
func (f *launchFlags) launchOperator(cmd *cobra.Command, op *operatorFlags) error {
	if err := op.refuseZero(cmd); err != nil {
		return err
	}
	net, err := op.net.take(cmd, f.run.seed)
	if err != nil {
		return err
	}
	if err := f.checkModes(cmd, ""); err != nil {
		return err
	}
	tag, err := f.checkStreams(cmd.OutOrStdout())
	if err != nil {
		return &usageError{cmd.CommandPath(), err}
	}
	if joined, err := f.hosts.join.run(cmd.Context(), cmd, f.startTimeout); joined {
		return err
	}
	job, err := f.job(cmd.Context())
	if err != nil {
		return f.refuse(cmd, err)
	}
	req := op.req
	if req.Timeline != "" {
		if req.Timeline, err = filepath.Abs(req.Timeline); err != nil {
			return &usageError{cmd.CommandPath(), fmt.Errorf("--timeline: %w", err)}
		}
	}
	req.World, req.Engine, req.Check = job.World, f.run.engine, f.run.check
	req.Net, req.WaitTimeout = net, op.net.wait
	req.Iters, req.Warmup, req.Seed = f.run.iters, f.run.warmup, f.run.seed
	req.CUDA.ShareGPUs, req.GPUs, req.Remote = f.run.shareGPUs, gpusOf(job), job.Remote()
	resolve := req.Resolve
	if f.dryRun {
		resolve = req.ResolvePlan // starts nothing, so what this host has does not matter
	}
	resolved, err := resolve()
	if err != nil {
		return &usageError{cmd.CommandPath(), err}
	}
	if f.isolate && resolved.Engine == operator.EngineCUDA {
		return &usageError{cmd.CommandPath(), errors.New("--gpu-isolate is for programs of your own: the ranks of an operator must see each other's GPUs")}
	}
	if job.Run, err = resolved.Run.Encode(); err != nil {
		return err
	}
	job.Argv, job.Session = []string{launch.Self, launch.RankCommand}, true
	takeGPUs(job, resolved)
	takeNICs(job, resolved)
	if f.dryRun {
		if err := dryRun(cmd.Context(), cmd.OutOrStdout(), job); err != nil {
			return err
		}
		return describe(cmd.OutOrStdout(), fmt.Sprintf("\nengine %s (%s)", resolved.Engine, resolved.EngineWhy), resolved)
	}
	if !f.json {
		announce(cmd.ErrOrStderr(), resolved)
	}
	outcome, err := runJob(cmd, f, job, tag)
	var reports [][]byte
	if outcome != nil {
		reports = outcome.Reports
	}
	doc := resolved.Outline(reports)
	if err == nil && outcome.Cause == nil && !job.ConnectOnly {
		var whole *report.Document
		if whole, err = resolved.Document(reports); err == nil {
			doc = whole
		}
	}
	for i := range doc.Ranks {
		doc.Ranks[i].Rank = job.Number(doc.Ranks[i].Rank)
	}
	return f.conclude(cmd, doc, outcome, err)
}

// gpusOf are the GPUs that the user named for the ranks of the (first) node; nil if none were.
func gpusOf(job *launch.Job) []string {
	if gpus := job.HostGPUs(0); gpus != "" {
		return strings.Split(gpus, ",")
	}
	return nil
}

// takeNICs tells the agents which NICs the user named, so that proxies run near those. The names of backend ofi are not those
// of RDMA devices, and tcp and emu have none.
func takeNICs(job *launch.Job, r *request.Resolved) {
	if net := r.Run.Net; slices.Contains([]string{operator.NetAuto, "efa", "ibverbs"}, net.Backend) {
		job.NetDevices = net.Devices
	}
}

// takeGPUs gives each rank of a job the GPU that was chosen for it, if the run is for GPUs.
func takeGPUs(job *launch.Job, r *request.Resolved) {
	if r.GPUs != nil {
		job.RankGPUs, job.RankDevices, job.GPUs, job.GPUIsolate = r.GPUs, r.Run.Devices, "", false
	}
}

// announce says what is about to run.
func announce(w io.Writer, r *request.Resolved) {
	s := r.Run.Shape
	fmt.Fprintf(w, "mkrun: %s M=%d N=%d K=%d %v on %v; engine %s (%s)\n", r.Run.Operator, s.M, s.N, s.K, r.Run.DType, r.Run.World, r.Engine, r.EngineWhy)
	if r.Layer != "" {
		fmt.Fprintf(w, "mkrun: %s\n", r.Layer)
	}
}

// describe prints the summary of a resolved run's plan, below a line about the engine.
func describe(w io.Writer, engine string, r *request.Resolved) error {
	if _, err := fmt.Fprintf(w, "%s\nsettings from %s: %s\n\n", engine, r.Source, r.SourceWhy); err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	return plan.Summary(w, r.Plan, r.Run.Shape, r.Run.DType.Size())
}
