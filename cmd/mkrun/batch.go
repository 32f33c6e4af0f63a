package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
	"github.com/mkrun/mkrun/internal/stdio"
	"github.com/mkrun/mkrun/internal/tune"
)

// batchFlags are the flags of commands that launch an operator many times: tune and bench.
type batchFlags struct {
	launch launchFlags
	net    netFlags
	shapes []string
	dtype  string
}

func (f *batchFlags) add(cmd *cobra.Command, calls int) {
	f.launch.add(&cobra.Command{}) // defaults of the flags that these commands have not
	f.launch.world.add(cmd)
	f.launch.hosts.add(cmd)
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.launch.run.engine, "engine", "auto", "what executes the plans: auto, cpu or cuda")
	fs.IntVar(&f.launch.run.iters, "iters", calls, "timed calls of each")
	fs.IntVar(&f.launch.run.warmup, "warmup", 2, "calls before the timed ones")
	fs.BoolVar(&f.launch.run.shareGPUs, "share-gpus", false, "let ranks share a GPU where there are fewer")
	fs.StringVar(&f.launch.gpus, "gpus", "", "GPUs that the ranks of every node may use: numbers, GPU-UUIDs (may be shortened) or MIG-UUIDs, as in 0,2,GPU-3fa4")
	fs.Uint64Var(&f.launch.run.seed, "seed", 1, "of the random data")
	fs.DurationVar(&f.launch.timeout, "job-timeout", 10*time.Minute, "end a job that takes longer")
	fs.StringSliceVar(&f.shapes, "shapes", nil, "MxNxK, LAYER@TOKENS as in llama3-8b/mlp-up/tp4@128, or a file with one in each line; several with commas")
	fs.StringVar(&f.dtype, "dtype", "bf16", "element type: bf16 or fp16")
	f.net.add(cmd, fs)
	_ = cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions([]string{"auto", "cpu", "cuda"}, cobra.ShellCompDirectiveNoFileComp))
	f.launch.json = true // nothing on stdout
}

// work is the shapes to launch for and what all launches have in common, or what is wrong with the command line.
func (f *batchFlags) work(cmd *cobra.Command, operatorName string) ([]request.ListedShape, request.Request, error) {
	shapes, err := request.ParseShapes(f.shapes)
	if err != nil {
		return nil, request.Request{}, &usageError{cmd.CommandPath(), fmt.Errorf("--shapes: %w", err)}
	}
	net, err := f.net.take(cmd, f.launch.run.seed)
	if err != nil {
		return nil, request.Request{}, err
	}
	req, err := f.request(cmd.Context(), operatorName)
	if err != nil {
		return nil, request.Request{}, &usageError{cmd.CommandPath(), err}
	}
	req.Net, req.WaitTimeout = net, f.net.wait
	return shapes, req, nil
}

// request is what all launches have in common.
func (f *batchFlags) request(ctx context.Context, operatorName string) (request.Request, error) {
	if join := f.launch.hosts.join; join.file != "" || join.at != "" || join.given("node-rank") {
		return request.Request{}, errors.New("--join is for one job, and many are launched here: run this once, with -H or --batch")
	}
	if f.launch.timeout < 0 {
		return request.Request{}, fmt.Errorf("--job-timeout %v is negative", f.launch.timeout)
	}
	job, err := f.launch.job(ctx)
	if err != nil {
		return request.Request{}, err
	}
	if job.Numbers != nil {
		return request.Request{}, errors.New("--map-by cyclic is for programs of your own: operators number ranks node by node")
	}
	return request.Request{
		GPUs: gpusOf(job), Remote: job.Remote(), CUDA: engine.CUDA{ShareGPUs: f.launch.run.shareGPUs},
		Operator: operatorName, World: job.World, DType: f.dtype, Engine: f.launch.run.engine,
		Iters: f.launch.run.iters, Warmup: f.launch.run.warmup, Seed: f.launch.run.seed,
	}, nil
}

// userSignal is why a context ended: the user's signal.
type userSignal syscall.Signal

func (s userSignal) Error() string { return "you sent " + syscall.Signal(s).String() }

// untilSignal is a context that ends when the user tells mkrun to end, also between jobs. (Jobs see such signals
// themselves, and end in order.)
func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		select {
		case s := <-signals:
			cancel(userSignal(s.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// stopped is the exit status of a command that the user ended, with what was told; 0 if it was not.
func stopped(ctx context.Context) int {
	var s userSignal
	if errors.As(context.Cause(ctx), &s) {
		return stdio.StatusOfSignal(syscall.Signal(s))
	}
	return 0
}

// jobError is why a job of runs did not end well.
type jobError struct {
	status int // the exit status of a launch that ends so
	text   string
}

func (e *jobError) Error() string { return e.text }

// run does runs one after the other in one job. The error has tune.ErrStopped in its chain if the user ended the job, else
// a jobError if the job failed.
func (f *batchFlags) run(cmd *cobra.Command, runs []*request.Resolved) ([]*report.Document, error) {
	tag, err := f.launch.checkStreams(cmd.OutOrStdout())
	if err != nil {
		return nil, err
	}
	job, err := f.launch.job(cmd.Context())
	if err != nil {
		return nil, err
	}
	if job.Run, err = request.EncodeBatch(runs); err != nil {
		return nil, err
	}
	job.Argv, job.Session = []string{launch.Self, launch.RankCommand}, true
	takeGPUs(job, runs[0])
	takeNICs(job, runs[0])
	f.launch.begun = time.Now() // the bounds of a job count from its own beginning, and this may be one of many
	outcome, err := runJob(cmd, &f.launch, job, tag)
	if err != nil {
		return nil, err
	}
	if outcome.Cause != nil {
		text := strings.TrimPrefix(launch.CauseText(outcome.Cause), "mkrun: ")
		err := &jobError{outcome.ExitStatus(), strings.Replace(text, "(--timeout)", "(--job-timeout)", 1)} // what it is called here
		if launch.Failure(outcome.Cause).Kind == "user_signal" {
			return nil, fmt.Errorf("%w: %w", tune.ErrStopped, err)
		}
		return nil, err
	}
	return request.BatchDocuments(runs, outcome.Reports)
}
