package tune

import (
	"context"
	"errors"
	"fmt"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
)

// Launch does runs one after the other in one job, and returns their results in order.
type Launch func(ctx context.Context, runs []*request.Resolved) ([]*report.Document, error)

// ErrStopped is in the chain of an error of Launch after which nothing more is to be launched: the user ended the job.
var ErrStopped = errors.New("stopped")

// Runner measures settings by launching the operator with them.
type Runner struct {
	Request request.Request // of the shape; what the settings say goes over it
	Launch  Launch
}

// rounds is in how many turns the calls of settings that are held against each other are timed, so that what changes on
// the machine meanwhile (heat, clocks, other programs) is shared fairly.
const rounds = 2

// Measure times settings next to each other: each in turn, several times. Settings that cannot run, or whose results are
// wrong, fail by themselves; when a job fails, each is tried in a job of its own.
func (r Runner) Measure(ctx context.Context, settings []config.Settings, calls int) ([]Time, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", ErrStopped, context.Cause(ctx))
	}
	times := make([]Time, len(settings))
	var runs []*request.Resolved
	var at []int // of a run, in settings
	for i, s := range settings {
		run, err := Apply(r.Request, s, (calls+rounds-1)/rounds).Resolve()
		if err != nil {
			times[i].Failed = err.Error()
			continue
		}
		runs, at = append(runs, run), append(at, i)
	}
	if len(runs) == 0 {
		return times, nil
	}
	err := r.together(ctx, runs, at, times)
	switch {
	case err == nil:
		return times, nil
	case errors.Is(err, ErrStopped) || ctx.Err() != nil:
		return nil, err
	case len(runs) == 1:
		times[at[0]].Failed = err.Error()
		return times, nil
	}
	for i, run := range runs {
		if err := r.together(ctx, []*request.Resolved{run}, at[i:i+1], times); err != nil {
			if errors.Is(err, ErrStopped) || ctx.Err() != nil {
				return nil, err
			}
			times[at[i]].Failed = err.Error()
		}
	}
	return times, nil
}

// WrongError says that settings do not do: they cannot run, or give wrong results.
type WrongError struct{ Why string }

func (e *WrongError) Error() string { return e.Why }

// Check launches the operator once with settings and compares the result with an fp32 reference. The error is a
// *WrongError if the settings do not do; after any other nothing is known.
func (r Runner) Check(ctx context.Context, s config.Settings) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrStopped, context.Cause(ctx))
	}
	req := Apply(r.Request, s, 1)
	req.Check = true
	run, err := req.Resolve()
	if err != nil {
		return &WrongError{err.Error()}
	}
	docs, err := r.Launch(ctx, []*request.Resolved{run})
	switch {
	case err != nil && (errors.Is(err, ErrStopped) || ctx.Err() != nil):
		return err
	case err != nil:
		return &WrongError{err.Error()}
	case docs[0].Status != report.Pass:
		return &WrongError{fmt.Sprintf("the result is wrong: relative error %.2g, of the worst tile %.2g; at most %.2g is allowed",
			docs[0].Check.RelError, docs[0].Check.WorstTileError, docs[0].Check.Tolerance)}
	}
	return nil
}

// together times runs in one job.
func (r Runner) together(ctx context.Context, runs []*request.Resolved, at []int, times []Time) error {
	var all []*request.Resolved
	for range rounds {
		all = append(all, runs...)
	}
	docs, err := r.Launch(ctx, all)
	if err != nil {
		return err
	}
	if len(docs) != len(all) {
		return fmt.Errorf("%d of %d runs came to an end", len(docs), len(all))
	}
	for i := range runs {
		t := Time{}
		for round := range rounds {
			doc := docs[round*len(runs)+i]
			if doc.Status != report.Pass {
				t.Failed = "the result is wrong"
			}
			t.MS += doc.TimeMS.Median / rounds
		}
		if t.Failed != "" {
			t.MS = 0
		}
		times[at[i]] = t
	}
	return nil
}

// Apply is a request with these settings and nothing that is configured.
func Apply(r request.Request, s config.Settings, calls int) request.Request {
	r.Bare, r.Iters = true, calls
	r.Algorithm, r.Chunks, r.Tile = s.Algorithm, s.Chunks, max(s.TileM, s.TileN)
	r.Workers = [plan.NumRoles]int{
		plan.RoleCompute: s.Compute, plan.RoleIntra: s.Intra, plan.RoleSend: s.Send, plan.RoleReduce: s.Reduce,
	}
	r.CUDA.Mover = s.Mover
	r.CUDA.Cluster, r.CUDA.RasterGroup, r.CUDA.PushGroup = s.CUDA.Cluster, s.CUDA.RasterGroup, s.CUDA.PushGroup
	r.CUDA.RowBlock, r.CUDA.KBlock, r.CUDA.SplitK = s.CUDA.RowBlock, s.CUDA.KBlock, s.CUDA.SplitK
	return r
}
