package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/engine/cpu"
	"github.com/mkrun/mkrun/internal/engine/cuda"
	"github.com/mkrun/mkrun/internal/engine/enginetest"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
)

func spec(s plan.Shape, ranks int) operator.RunSpec {
	return operator.RunSpec{
		Operator: "ag_gemm", Engine: operator.EngineCUDA, Shape: s, World: plan.Uniform(1, ranks), Chunks: 2,
		Check: true, Warmup: 1, Iters: 3, Seed: 7, WaitTimeout: time.Minute,
	}
}

// run runs all ranks of a job in this process, each on an engine of its own.
func run(t *testing.T, s operator.RunSpec, open func(rank int) (engine.Engine, error)) ([]operator.RankResult, []error) {
	t.Helper()
	size := s.World.Size()
	boot := enginetest.NewWorld(size)
	defer func() {
		if err := boot.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	results, errs := make([]operator.RankResult, size), make([]error, size)
	var wg sync.WaitGroup
	for rank := range size {
		e, err := open(rank)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			results[rank], errs[rank] = operator.Run(ctx, e, s, operator.Rank{Rank: rank, Bootstrap: boot.Rank(rank)})
			if errs[rank] != nil {
				cancel(fmt.Errorf("rank %d failed", rank))
			}
		})
	}
	wg.Wait()
	return results, errs
}

func onHostlib(int) (engine.Engine, error) { return cuda.New(hostlib) }

// The whole way of a run, up to the kernels: the results are right, and close to those of the CPU engine on the same data.
func TestRunsThePlan(t *testing.T) {
	for _, tt := range []struct {
		name  string
		shape plan.Shape
		world plan.World
		dtype engine.DType
	}{
		{"one rank", plan.Shape{M: 64, N: 32, K: 16}, plan.Uniform(1, 1), engine.BF16},
		{"two ranks", plan.Shape{M: 128, N: 64, K: 32}, plan.Uniform(1, 2), engine.BF16},
		{"tails", plan.Shape{M: 131, N: 57, K: 72}, plan.Uniform(1, 2), engine.BF16},
		{"fewer rows than ranks", plan.Shape{M: 2, N: 9, K: 8}, plan.Uniform(1, 3), engine.BF16},
		{"fp16, four ranks", plan.Shape{M: 90, N: 40, K: 40}, plan.Uniform(1, 4), engine.FP16},
		{"two nodes", plan.Shape{M: 70, N: 40, K: 40}, plan.Uniform(2, 1), engine.BF16},
		{"uneven nodes", plan.Shape{M: 70, N: 40, K: 40}, plan.World{PPN: []int{2, 1}}, engine.BF16},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := spec(tt.shape, 1)
			s.World = tt.world
			s.DType = tt.dtype
			results, errs := run(t, s, onHostlib)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if r.Status != operator.Pass || !r.Checked || len(r.TimesNS) != s.Iters {
					t.Errorf("rank %d: %+v", r.Rank, r)
				}
				if r.Settings["mover"] != "sm" || r.HostNS <= 0 || r.Launches != 1 || r.TimesNS[0] <= 0 {
					t.Errorf("rank %d: settings %v, host %d ns, times %v", r.Rank, r.Settings, r.HostNS, r.TimesNS)
				}
			}
			p, err := s.Plan()
			if err != nil {
				t.Fatal(err)
			}
			doc, err := operator.Merge(s, p, "emu", results)
			if err != nil {
				t.Fatal(err)
			}
			moved, err := p.Bytes(s.Shape, s.DType.Size())
			if err != nil || doc.Bytes.Intra != moved.Intra || doc.Bytes.Inter != moved.Inter {
				t.Errorf("the ranks report %d and %d bytes in and between nodes, the plan declares %+v (%v)", doc.Bytes.Intra, doc.Bytes.Inter, moved, err)
			}
			s.Engine, s.Workers = operator.EngineCPU, [plan.NumRoles]int{1, 1, 1, 1}
			local := cpu.NewLocal()
			onCPU, errs := run(t, s, func(int) (engine.Engine, error) { return local, nil })
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for rank := range onCPU {
				if diff := results[rank].RelError - onCPU[rank].RelError; diff > onCPU[rank].Tolerance || -diff > onCPU[rank].Tolerance {
					t.Errorf("rank %d: relative error %g, on the CPU engine %g", rank, results[rank].RelError, onCPU[rank].RelError)
				}
			}
		})
	}
}

// A result that is not written where it should be is seen.
func TestAnElementThatIsMissingIsSeen(t *testing.T) {
	t.Setenv("HOSTLIB_NAN", "1")
	results, errs := run(t, spec(plan.Shape{M: 64, N: 32, K: 16}, 2), onHostlib)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Status != operator.Fail || !strings.Contains(r.Reason, "NaN") {
			t.Errorf("rank %d: %s (%s)", r.Rank, r.Status, r.Reason)
		}
	}
}

// A flag that never comes ends the run on all ranks: the one that waited says for what, by its name in the plan.
func TestALostFlagIsNamed(t *testing.T) {
	s := spec(plan.Shape{M: 64, N: 32, K: 16}, 2)
	s.WaitTimeout = 3 * time.Second // in which both ranks, on a busy machine too, come to the call
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	lost, name := -1, ""
	for i, f := range p.Flags {
		if strings.HasPrefix(f.Name, "arrived shard 0") {
			lost, name = i, f.Name
			break
		}
	}
	t.Setenv("HOSTLIB_DROP", fmt.Sprintf("%d at 1", lost))
	_, errs := run(t, s, onHostlib)
	var wait *engine.WaitError
	if !errors.As(errs[1], &wait) {
		t.Fatalf("rank 1 says %v, want a wait that ran out", errs[1])
	}
	if wait.Rank != 1 || wait.Flag != name || wait.Role != "compute" || wait.Wanted != 1 || wait.Seen != 0 ||
		!strings.Contains(wait.Task, "CTA 3") || !strings.Contains(wait.Signals, "rank 0") {
		t.Errorf("the wait is told as %+v", wait)
	}
	if errs[0] == nil {
		t.Error("rank 0 ended well, though its peer gave up")
	}
}

// An abort from outside ends a run that waits, with the reason.
func TestAbortEndsAWait(t *testing.T) {
	instances := openTwo(t, time.Minute)
	reason := errors.New("the user has had enough")
	done := make(chan error)
	go func() { // its peer never comes
		_, err := instances[0].Run(t.Context())
		done <- err
	}()
	instances[0].Abort(reason)
	if err := <-done; !errors.Is(err, reason) {
		t.Errorf("the run ended with %v, want the reason of the abort", err)
	}
	if _, err := instances[0].Run(t.Context()); !errors.Is(err, reason) {
		t.Errorf("a later run ended with %v, want the reason of the abort", err)
	}
	instances[1].Abort(reason)
	for rank, in := range instances {
		if err := in.Close(); err != nil {
			t.Errorf("closing rank %d: %v", rank, err)
		}
		in.Abort(reason) // may come at any time
	}
}

// openTwo opens both ranks of a small job, whose meeting point lasts as long as the test.
func openTwo(t *testing.T, patience time.Duration) []engine.Instance {
	t.Helper()
	s := spec(plan.Shape{M: 64, N: 32, K: 16}, 2)
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	boot := enginetest.NewWorld(2)
	t.Cleanup(func() { _ = boot.Close() })
	instances := make([]engine.Instance, 2)
	var wg sync.WaitGroup
	for rank := range instances {
		wg.Go(func() {
			e, err := cuda.New(hostlib)
			if err == nil {
				instances[rank], err = e.Open(t.Context(), engine.Config{Rank: rank, Plan: p, Shape: s.Shape, WaitTimeout: patience, Bootstrap: boot.Rank(rank)})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return instances
}

// A barrier that a rank does not come to is over after the bound of waits, and is told as a wait for that rank.
func TestABarrierIsBounded(t *testing.T) {
	instances := openTwo(t, 2*time.Second)                 // also for opening
	if err := instances[0].Sync(t.Context()); err != nil { // put into the stream: what becomes of it is seen later
		t.Fatal(err)
	}
	var wait *engine.WaitError
	if err := instances[0].Sync(t.Context()); !errors.As(err, &wait) || wait.Flag != "barrier" || wait.Role != "sync" ||
		wait.Task != "barrier on the devices" || wait.Signals != "rank 1" || !slices.Equal(wait.Owing, []int{1}) || wait.Seen != 0 || wait.Wanted != 1 {
		t.Errorf("the next barrier gives %v, want a wait for rank 1 that ran out", err)
	}
	if _, err := instances[0].Run(t.Context()); !errors.As(err, &wait) || !slices.Equal(wait.Owing, []int{1}) {
		t.Errorf("a call behind that barrier gives %v, want the wait for rank 1", err)
	}
	for rank, in := range instances {
		in.Abort(errors.New("the end of the test"))
		if err := in.Close(); err != nil {
			t.Errorf("closing rank %d: %v", rank, err)
		}
	}
}

// What cannot run is refused when a rank opens, in words.
func TestOpenRefusals(t *testing.T) {
	good := spec(plan.Shape{M: 64, N: 32, K: 16}, 1)
	for name, tt := range map[string]struct {
		env    map[string]string
		change func(*engine.Config)
		want   string
	}{
		"no GPU":        {map[string]string{"HOSTLIB_GPUS": "0"}, nil, "does not exist"},
		"no memory":     {map[string]string{"HOSTLIB_FREE": "1000000"}, nil, "not enough GPU memory: a rank needs 0.8 GiB for M=64 N=32 K=16, and its GPU has 0.0 GiB free"},
		"mover":         {nil, func(c *engine.Config) { c.CUDA.Mover = "epilogue" }, `the mover is "epilogue"`},
		"tile":          {nil, func(c *engine.Config) { c.Tile = 96 }, "32, 64, 128 or 256"},
		"CTAs":          {nil, func(c *engine.Config) { c.Workers[plan.RoleCompute] = 5 }, "5 compute workers are more CTAs than the GPU has SMs for this process: 4"},
		"negative CTAs": {nil, func(c *engine.Config) { c.Workers[plan.RoleCompute] = -1 }, "-1"},
		"rank":          {nil, func(c *engine.Config) { c.Rank = 1 }, "not in a world of 1"},
		"time-out":      {nil, func(c *engine.Config) { c.WaitTimeout = 0 }, "time-out must be positive"},
		"no plan":       {nil, func(c *engine.Config) { c.Plan = nil }, "a plan and a bootstrap"},
		"operator": {nil, func(c *engine.Config) {
			var err error
			if c.Plan, err = plan.GemmRS(plan.Uniform(1, 1), plan.SumOptions{Chunks: 1}); err != nil {
				t.Fatal(err)
			}
		}, "no gemm_rs yet"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			p, err := good.Plan()
			if err != nil {
				t.Fatal(err)
			}
			boot := enginetest.NewWorld(1)
			defer func() { _ = boot.Close() }()
			cfg := engine.Config{Plan: p, Shape: good.Shape, WaitTimeout: time.Second, Bootstrap: boot.Rank(0)}
			if tt.change != nil {
				tt.change(&cfg)
			}
			e, err := cuda.New(hostlib)
			if err != nil {
				t.Fatal(err)
			}
			if in, err := e.Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
				if err == nil {
					_ = in.Close()
				}
			}
		})
	}
}

// A rank that waits for peers that never come gives up, and says what it waited for.
func TestOpenIsBounded(t *testing.T) {
	s := spec(plan.Shape{M: 64, N: 32, K: 16}, 2)
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	boot := enginetest.NewWorld(2)
	defer func() { _ = boot.Close() }()
	e, err := cuda.New(hostlib)
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Open(t.Context(), engine.Config{Plan: p, Shape: s.Shape, WaitTimeout: 50 * time.Millisecond, Bootstrap: boot.Rank(0)})
	if err == nil || !strings.Contains(err.Error(), "all-gather") || !strings.Contains(err.Error(), "no answer for 50ms") {
		t.Errorf("error %v, want one about the other ranks", err)
	}
}
