package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/suggest"
)

// launchFlags are the flags of mkrun launch that do not depend on what is launched.
type launchFlags struct {
	world worldFlags
	hosts hostFlags
	run   runFlags
	insightFlags

	begun        time.Time // when the job was begun; zero: with this process
	timeout      time.Duration
	startTimeout time.Duration
	silence      time.Duration
	abortGrace   time.Duration
	grace        time.Duration

	dir        string
	env        launch.EnvOptions
	outputDir  string
	bind       string
	bindings   bool
	gpus       string
	isolate    bool
	forward    []string
	forwarded  []syscall.Signal // what forward says
	keepGoing  bool
	lonely     time.Duration
	stdin      string
	module     string
	compat     string
	pmi        bool
	restarts   int
	onlyRank   string
	shown      map[int]bool // what onlyRank says; nil: all
	tag        string
	timestamps bool
	json       bool
	verbose    bool
}

// worldFlags say how many ranks there are, and where.
type worldFlags struct {
	nodes int
	ppn   string
}

func (f *worldFlags) add(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.IntVar(&f.nodes, "nodes", 1, "nodes to pretend on this host, each with its own agent and loopback address")
	fs.StringVar(&f.ppn, "ppn", "1", "ranks per node: a number, one for each node as in 4,3, or gpu (mkrun launch): as many as this host has GPUs")
}

// maxRanks keeps a typing error from asking for a million processes.
const maxRanks = 4096

// world is what the flags say; where is on what the ranks are, if they are to be anywhere.
func (f *worldFlags) world(where string) (plan.World, error) {
	if f.nodes < 1 {
		return plan.World{}, fmt.Errorf("--nodes %d: at least one node is needed", f.nodes)
	}
	parts := strings.Split(f.ppn, ",")
	if len(parts) != 1 && len(parts) != f.nodes {
		return plan.World{}, fmt.Errorf("--ppn %s names %d nodes, --nodes says %d", f.ppn, len(parts), f.nodes)
	}
	var w plan.World
	for node := range f.nodes {
		text := strings.TrimSpace(parts[min(node, len(parts)-1)])
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return plan.World{}, fmt.Errorf("--ppn %s: %q is not a number of ranks; give 1 or more", f.ppn, text)
		}
		w.PPN = append(w.PPN, n)
		if n > maxRanks || w.Size() > maxRanks {
			return plan.World{}, fmt.Errorf("--nodes %d --ppn %s: more than %d ranks%s", f.nodes, f.ppn, maxRanks, where)
		}
	}
	return w, nil
}

func newLaunch() *cobra.Command {
	var f launchFlags
	cmd := &cobra.Command{
		Use:   "launch [flags] OPERATOR [operator flags]\n  mkrun launch [flags] -- COMMAND [ARGS]",
		Short: "Start ranks on one or many nodes: a fused operator, or any program",
		Long: `Starts one agent per node and, through it, the ranks. An operator is planned, the plan verified, executed,
checked and timed. A program of your own runs as every rank, with MKRUN_* and torch's RANK, LOCAL_RANK,
WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.

The first failure ends the job with one message. Exit status: 0; the first failing rank's; 128+signal;
1 check failed; 2 bad command line; 124 time-out; 125 a node or mkrun itself; 126/127 program not executable/found.`,
		Example: `  mkrun launch --nodes 2 --ppn 2 --check ag_gemm --shape llama3-8b/mlp-up/tp4 --tokens 128
  mkrun launch --nodes 2 --ppn 2 --json ag_gemm --m 2048 --n 1024 --k 1024 > result.json
  mkrun launch --nodes 2 --ppn 4 --dry-run ag_gemm --shape llama3-70b/attn-qkv/tp8 --tokens 4096
  mkrun launch --ppn 4 --timeout 10m -- python train.py --lr 1e-4
  mkrun launch -H 'node[01-04]:8' --check ag_gemm --m 8192 --n 4096 --k 4096
  mkrun launch --hostfile hosts -n 16 --map-by cyclic -- ./program`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() == 0 && len(args) > 0 || f.module != "" && cmd.ArgsLenAtDash() <= 0 && (len(args) == 0 || cmd.ArgsLenAtDash() == 0) {
				return nil
			}
			return &usageError{cmd.CommandPath(), notAnOperator(cmd, args)}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.module != "" {
				args = append([]string{"python3", "-u", "-m", f.module}, args...)
			}
			if err := f.checkModes(cmd, args[0]); err != nil {
				return err
			}
			return f.launchCommand(cmd, args)
		},
	}
	f.add(cmd)
	for _, op := range operators {
		cmd.AddCommand(newLaunchOperator(op, &f))
	}
	return cmd
}

// add adds the flags, and gives each its default.
func (f *launchFlags) add(cmd *cobra.Command) {
	f.world.add(cmd)
	f.hosts.add(cmd)
	f.hosts.join.nodes = &f.world.nodes
	f.run.add(cmd)
	f.insightFlags.add(cmd)
	fs := cmd.PersistentFlags()
	fs.DurationVar(&f.timeout, "timeout", 0, "end the job this long after the command, e.g. 90s or 2h (0: never)")
	fs.DurationVar(&f.silence, "silence", 0, fmt.Sprintf("give a node up whose agent has said nothing for so long; an agent that hears nothing ends its ranks after half as long again (default %v, more for very many agents on this host)", launch.DefaultSilence))
	fs.DurationVar(&f.startTimeout, "start-timeout", launch.DefaultStartTimeout, "end the job if not all ranks were started by then")
	fs.DurationVar(&f.abortGrace, "abort-grace", launch.DefaultAbortGrace, "between SIGTERM and SIGKILL for the ranks left when one has failed")
	fs.DurationVar(&f.grace, "grace", launch.DefaultGrace, "between your signal (Ctrl-C) and SIGKILL")
	fs.StringVar(&f.dir, "wdir", "", "working directory of the ranks (default: this one)")
	fs.StringArrayVarP(&f.env.Names, "env", "x", nil, "variable for the ranks: NAME, NAME=value or PREFIX*; may be repeated")
	fs.StringVar(&f.env.File, "env-file", "", "file with variables for the ranks, one NAME=value (or NAME) per line")
	fs.StringVar(&f.outputDir, "output-dir", "", "also write rank-N.out and rank-N.err there, on the rank's own host")
	fs.StringVar(&f.bind, "bind", launch.BindAuto, "bind ranks to CPUs: auto (near the rank's GPU, where there are GPUs), none, numa or core")
	fs.BoolVar(&f.bindings, "report-bindings", false, "say on which CPUs and GPU each rank is")
	fs.StringVar(&f.gpus, "gpus", "", "GPUs that the ranks of every node may use: numbers, GPU-UUIDs (may be shortened) or MIG-UUIDs, as in 0,2,GPU-3fa4")
	fs.BoolVar(&f.isolate, "gpu-isolate", false, "let each rank see its own GPU only (copies between GPUs by copy engines then leave NVLink aside)")
	fs.StringVarP(&f.module, "module", "m", "", "run a Python module as ranks (python3 -u -m MODULE); its arguments are behind --")
	fs.StringVar(&f.compat, "compat", "none", "also set the variables of another launcher, for programs that know no others: ompi or slurm")
	fs.BoolVar(&f.pmi, "pmi", true, "answer programs built with MPICH, Intel MPI or MVAPICH (PMI-1), so that they find each other")
	fs.StringSliceVar(&f.forward, "forward-signals", nil, "also pass these signals on, without ending the job, as USR1 and USR2 are: WINCH, ALRM, HUP, ...")
	fs.BoolVar(&f.keepGoing, "keep-going", false, "let the other ranks go on when one fails; the job ends with the first failure's status")
	fs.DurationVar(&f.lonely, "wait-after-exit", 0, "end the job if ranks still run this long after one has ended with status 0 (0: wait)")
	fs.StringVar(&f.stdin, "stdin", "none", "which ranks read what mkrun launch reads: none, all or the number of one; the others read nothing")
	fs.IntVar(&f.restarts, "max-restarts", 0, "start all ranks again this many times after one has failed, with MKRUN_RESTART_COUNT raised by one; at once, then after pauses of 1s, 2s, ... 30s")
	fs.StringVar(&f.onlyRank, "only-rank", "", "show the output of these ranks only, as in 0,4-7")
	fs.StringVar(&f.tag, "tag", "rank", "what is in front of the ranks' output lines: rank, host or none")
	fs.BoolVar(&f.timestamps, "timestamps", false, "put the time at which a line was written in front of it")
	fs.BoolVar(&f.json, "json", false, "one JSON document on stdout and nothing else (none for a command line that is refused); the ranks' output goes to stderr")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "log what launcher and agents do, on stderr")
}

// takesOperators reports whether a command's words are names of operators.
func takesOperators(cmd *cobra.Command) bool { return cmd.Name() == "launch" || cmd.Name() == "plan" }

// notAnOperator says what is wrong with words that are neither an operator nor behind "--".
func notAnOperator(cmd *cobra.Command, args []string) error {
	names := make([]string, 0, len(operators))
	for _, op := range operators {
		names = append(names, op.name)
	}
	known := strings.Join(names, ", ")
	launches := cmd.Name() == "launch"
	switch {
	case len(args) == 0 && launches:
		return fmt.Errorf("nothing to launch: name an operator (%s), or your own program behind \"--\"", known)
	case len(args) == 0:
		return fmt.Errorf("name an operator: %s", known)
	case launches:
		return fmt.Errorf("unknown operator %q%s; known: %s. To run your own program: mkrun launch [flags] -- %s",
			args[0], suggest.DidYouMean(args[0], names), known, strings.Join(args, " "))
	}
	return fmt.Errorf("unknown operator %q%s; known: %s", args[0], suggest.DidYouMean(args[0], names), known)
}

// job fills in what the flags say.
func (f *launchFlags) job(ctx context.Context) (*launch.Job, error) {
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"--timeout", f.timeout}, {"--wait-after-exit", f.lonely}, {"--start-timeout", f.startTimeout}, {"--abort-grace", f.abortGrace}, {"--grace", f.grace}} {
		if d.value < 0 {
			return nil, fmt.Errorf("%s %v is negative", d.flag, d.value)
		}
	}
	if f.silence != 0 && f.silence < launch.MinSilence {
		return nil, fmt.Errorf("--silence %v is less than %v, within which a busy agent may well be silent", f.silence, launch.MinSilence)
	}
	var err error
	dir := f.dir
	if dir == "" {
		if dir, err = os.Getwd(); err != nil {
			return nil, fmt.Errorf("finding the working directory: %w", err)
		}
	}
	id, err := launch.NewID()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("--wdir: %w", err)
	}
	job := &launch.Job{
		ID: id, Dir: dir,
		Silence: f.silence, Timeout: f.timeout, StartTimeout: f.startTimeout, AbortGrace: f.abortGrace, Grace: f.grace,
	}
	if f.world.ppn == "gpu" {
		if f.hosts.named() {
			return nil, errors.New("--ppn gpu counts the GPUs of this host; how many other hosts have is not known before: give a number, or slots")
		}
		gpus, err := launch.CountGPUs(ctx, f.gpus)
		if err != nil {
			return nil, fmt.Errorf("--ppn gpu: %w", err)
		}
		f.world.ppn = strconv.Itoa(gpus)
	}
	if err := f.hosts.place(ctx, &f.world, job); err != nil {
		return nil, err
	}
	if f.onlyRank != "" {
		if f.shown, err = hosts.ParseRanks(f.onlyRank, job.World.Size()); err != nil {
			return nil, fmt.Errorf("--only-rank %w", err)
		}
	}
	if job.Stdin, err = launch.ParseStdin(f.stdin, job.World.Size()); err != nil {
		return nil, err
	}
	if job.Bind, err = launch.ParseBind(f.bind); err != nil {
		return nil, err
	}
	if err := launch.CheckGPUs(f.gpus, f.isolate); err != nil {
		return nil, err
	}
	if f.forwarded, err = launch.ParseSignals(f.forward); err != nil {
		return nil, fmt.Errorf("--forward-signals: %w", err)
	}
	if f.keepGoing && f.restarts > 0 {
		return nil, errors.New("--keep-going and --max-restarts exclude each other")
	}
	job.KeepGoing, job.WaitAfterExit = f.keepGoing, f.lonely
	job.Preflight, job.ConnectOnly = f.preflight || f.connect, f.connect
	job.GPUs, job.GPUIsolate, job.ReportBindings = f.gpus, f.isolate, f.bindings
	if job.Compat, err = launch.ParseCompat(f.compat); err != nil {
		return nil, err
	}
	switch job.MaxRestarts = f.restarts; {
	case f.restarts < 0:
		return nil, fmt.Errorf("--max-restarts %d is negative", f.restarts)
	case f.restarts > 0 && job.Stdin != (launch.Stdin{}):
		return nil, errors.New("--stdin and --max-restarts exclude each other: what ranks have read cannot be read again")
	}
	if f.outputDir != "" {
		if job.OutputDir, err = filepath.Abs(f.outputDir); err != nil {
			return nil, fmt.Errorf("--output-dir: %w", err)
		}
	}
	if job.Env, err = launch.ForwardEnv(os.Environ(), f.env, !job.Remote()); err != nil {
		return nil, err
	}
	return job, nil
}

// checkStreams refuses combinations of output flags that cannot be.
func (f *launchFlags) checkStreams(stdout io.Writer) (stdio.Tag, error) {
	tag, err := stdio.ParseTag(f.tag)
	if err != nil {
		return "", fmt.Errorf("--tag: %w", err)
	}
	f.eventsOut = f.eventsToStdout(stdout)
	if f.json && f.eventsOut {
		return "", fmt.Errorf("--json and --events %s exclude each other: both want stdout for themselves", f.events)
	}
	if f.json && (f.dryRun || f.connect) {
		return "", errors.New("--json and --dry-run exclude each other: nothing was run that a document could tell about")
	}
	return tag, nil
}
