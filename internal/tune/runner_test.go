package tune

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
)

func small() request.Request {
	return request.Request{
		Operator: "ag_gemm", World: plan.Uniform(1, 2), M: 64, N: 32, K: 16, DType: "bf16", Engine: "cpu", Warmup: 1, WaitTimeout: time.Second,
	}
}

// Settings are timed in turn, twice each; those that cannot be, or are wrong, fail alone.
func TestRunner(t *testing.T) {
	var jobs []string
	ms := map[int]float64{1: 3, 2: 5}
	launch := func(_ context.Context, runs []*request.Resolved) (docs []*report.Document, err error) {
		var job []string
		for _, r := range runs {
			chunks := r.Run.Chunks
			job = append(job, fmt.Sprintf("%d*%d", chunks, r.Run.Iters))
			if chunks == 7 {
				err = errors.New("rank 1 died")
			}
			status := report.Pass
			if chunks == 3 {
				status = report.Fail
			}
			docs = append(docs, &report.Document{Status: status, TimeMS: &report.Times{Median: ms[chunks] + float64(len(docs)/4)}})
		}
		jobs = append(jobs, strings.Join(job, " "))
		return docs, err
	}
	r := Runner{Request: small(), Launch: launch}
	chunks := func(list ...int) (s []config.Settings) {
		for _, n := range list {
			s = append(s, config.Settings{Chunks: n})
		}
		return s
	}
	times, err := r.Measure(context.Background(), chunks(1, 2, 99, 3), 7)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(jobs, []string{"1*4 2*4 3*4 1*4 2*4 3*4"}) {
		t.Errorf("jobs %q", jobs)
	}
	if times[0].MS != 3 || times[1].MS != 5.5 || !strings.Contains(times[2].Failed, "99 chunks") || times[3].Failed == "" || times[3].MS != 0 {
		t.Errorf("times %+v", times)
	}

	jobs = nil
	times, err = r.Measure(context.Background(), chunks(1, 7, 2), 2)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(jobs, []string{"1*1 7*1 2*1 1*1 7*1 2*1", "1*1 1*1", "7*1 7*1", "2*1 2*1"}) {
		t.Errorf("jobs %q", jobs)
	}
	if times[0].MS != 3 || times[1].Failed != "rank 1 died" || times[2].MS != 5 {
		t.Errorf("times %+v", times)
	}

	jobs = nil
	if times, err = r.Measure(context.Background(), chunks(99, 98), 2); err != nil || len(jobs) != 0 || times[1].Failed == "" {
		t.Errorf("nothing that can run: %+v, %v, jobs %q", times, err, jobs)
	}
	r.Launch = func(context.Context, []*request.Resolved) ([]*report.Document, error) {
		jobs = append(jobs, "")
		return nil, fmt.Errorf("%w: you sent SIGINT", ErrStopped)
	}
	if _, err := r.Measure(context.Background(), chunks(1, 2), 2); !errors.Is(err, ErrStopped) || len(jobs) != 1 {
		t.Errorf("after a stop: %v, %d jobs", err, len(jobs))
	}
}

// What was found is checked once; a wrong result and a job that fails are told, and remembered.
func TestCheck(t *testing.T) {
	jobs := 0
	verdict := &report.Document{Status: report.Pass, Check: &report.Check{RelError: 1, WorstTileError: 2, Tolerance: 3}}
	var fails error
	r := Runner{Request: small(), Launch: func(_ context.Context, runs []*request.Resolved) ([]*report.Document, error) {
		jobs++
		if !runs[0].Run.Check {
			t.Error("the run has no check")
		}
		return []*report.Document{verdict}, fails
	}}
	j := open(t, t.TempDir()+"/r.jsonl")
	check := func(shape string, s config.Settings) string {
		t.Helper()
		err := j.Check(shape, r.Check)(context.Background(), s)
		var wrong *WrongError
		if err != nil && !errors.As(err, &wrong) {
			t.Fatal(err)
		}
		if wrong == nil {
			return ""
		}
		return wrong.Why
	}
	if wrong := check("a", config.Settings{}); wrong != "" || jobs != 1 {
		t.Errorf("%q after %d jobs", wrong, jobs)
	}
	verdict.Status = report.Fail
	if wrong := check("a", config.Settings{}); wrong != "" || jobs != 1 {
		t.Errorf("checked again: %q after %d jobs", wrong, jobs)
	}
	if wrong := check("b", config.Settings{}); !strings.Contains(wrong, "of the worst tile 2; at most 3") || jobs != 2 {
		t.Errorf("%q after %d jobs", wrong, jobs)
	}
	// A result is wrong whenever the user's signal comes.
	ended, cancel := context.WithCancel(context.Background())
	end := r
	end.Launch = func(ctx context.Context, runs []*request.Resolved) ([]*report.Document, error) {
		cancel()
		return r.Launch(ctx, runs)
	}
	var wrong *WrongError
	if err := end.Check(ended, config.Settings{}); !errors.As(err, &wrong) {
		t.Errorf("ended while a wrong result was checked: %v", err)
	}
	jobs = 2
	fails = errors.New("rank 0 died")
	if wrong := check("c", config.Settings{}); wrong != "rank 0 died" {
		t.Errorf("%q", wrong)
	}
	if wrong := check("d", config.Settings{Chunks: 99}); !strings.Contains(wrong, "99 chunks") || jobs != 3 {
		t.Errorf("%q after %d jobs", wrong, jobs)
	}
	fails = ErrStopped
	if err := j.Check("e", r.Check)(context.Background(), config.Settings{}); !errors.Is(err, ErrStopped) {
		t.Errorf("error %v", err)
	}
}

// Nothing that is configured gets into what is measured.
func TestApplyIsBare(t *testing.T) {
	run, err := Apply(small(), config.Settings{Chunks: 2, TileM: 32, TileN: 32, Intra: 3}, 4).Resolve()
	if err != nil {
		t.Fatal(err)
	}
	if run.Run.Chunks != 2 || run.Run.Tile != 32 || run.Run.Workers[plan.RoleIntra] != 3 || run.Run.Iters != 4 || strings.Contains(run.Source, "embedded") {
		t.Errorf("run %+v from %s", run.Run, run.Source)
	}
}
