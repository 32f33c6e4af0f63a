package tune

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
)

// A shape that fails, or whose result is wrong, gets no entry; the others do.
func TestSessionGoesOnAfterFailures(t *testing.T) {
	dir := t.TempDir()
	launch := func(_ context.Context, runs []*request.Resolved) (docs []*report.Document, err error) {
		for _, r := range runs {
			d := &report.Document{Status: report.Pass, TimeMS: &report.Times{Median: 2}, Check: &report.Check{}}
			switch r.Run.Shape.M {
			case 65:
				err = errors.New("rank 1 died")
			case 66:
				if r.Run.Check {
					d.Status = report.Fail
				}
			}
			docs = append(docs, d)
		}
		return docs, err
	}
	var out, progress bytes.Buffer
	req := small()
	s := Session{
		Request: req, Shapes: []request.ListedShape{{M: 64, N: 32, K: 16}, {M: 65, N: 32, K: 16}, {M: 66, N: 32, K: 16}, {M: 67, N: 32, K: 16}},
		Calls: 2, Budget: 5, Check: true, Results: filepath.Join(dir, "r.jsonl"), Write: filepath.Join(dir, "w.yaml"), Today: "2026-11-30",
		Launch: launch, Out: &out, Progress: &progress,
	}
	err := s.Run(context.Background())
	var failed *FailedError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "tuning 65x32x16: none of the settings to start with works: rank 1 died") ||
		!strings.Contains(err.Error(), "tuning 66x32x16: what was found (the engine's own choice) is not written down: the result is wrong") {
		t.Errorf("error %v", err)
	}
	op, err := config.LoadOperator("ag_gemm", s.Write)
	if err != nil {
		t.Fatal(err)
	}
	for m, want := range map[int64]bool{64: true, 65: false, 66: false, 67: true} {
		if c := op.Lookup(config.Query{Engine: "cpu", DType: "bf16", M: m, N: 32, K: 16, Nodes: 1, PPN: 2}); c.Exact != want {
			t.Errorf("M=%d has an entry: %v, want %v", m, c.Exact, want)
		}
	}
	if !strings.Contains(out.String(), "65x32x16  failed") || !strings.Contains(out.String(), "67x32x16  2 ") {
		t.Errorf("table:\n%s", out.String())
	}

	if want := "w.yaml: 2 of 4 entries written; "; !strings.Contains(out.String(), want) {
		t.Errorf("the table does not say %q:\n%s", want, out.String())
	}
	// What could not be said is another failure.
	s.Out = brokenWriter{}
	if err := s.Run(context.Background()); errors.As(err, &failed) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v", err)
	}
	s.Out = &out

	// Ended by the user, it says so and keeps what is there.
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("you sent interrupt"))
	s.Results = filepath.Join(dir, "other.jsonl")
	if err := s.Run(ctx); !errors.Is(err, ErrStopped) {
		t.Errorf("error %v", err)
	}
	if data, err := os.ReadFile(s.Results); err != nil || bytes.Count(data, []byte("\n")) != 1 {
		t.Errorf("results %q (%v)", data, err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// What was measured on another day is not said to be of today.
func TestSessionKeepsTheDateOfWhatItFinds(t *testing.T) {
	dir := t.TempDir()
	jobs := 0
	s := Session{
		Request: small(), Shapes: []request.ListedShape{{M: 64, N: 32, K: 16}}, Calls: 2, Budget: 5, Check: true,
		Results: filepath.Join(dir, "r.jsonl"), Write: filepath.Join(dir, "w.yaml"), Out: io.Discard, Progress: io.Discard,
		Launch: func(_ context.Context, runs []*request.Resolved) (docs []*report.Document, err error) {
			jobs++
			for range runs {
				docs = append(docs, &report.Document{Status: report.Pass, TimeMS: &report.Times{Median: 2}, Check: &report.Check{}})
			}
			return docs, nil
		},
	}
	var texts [2]string
	for i, today := range []string{"2026-11-30", "2026-12-01"} {
		s.Today = today
		before := jobs
		if err := s.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if (jobs > before) != (i == 0) {
			t.Errorf("%s: %d jobs", today, jobs-before)
		}
		text, err := os.ReadFile(s.Write)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	if !strings.Contains(texts[0], "date: 2026-11-30") || texts[1] != texts[0] {
		t.Errorf("the first day it writes\n%s, the next day\n%s", texts[0], texts[1])
	}
}

// Whichever job the user's signal finds it in, even one that comes to its end: it does not say that all is done unless it is.
func TestSessionEndedInAnyJob(t *testing.T) {
	// run ends it in a job, and returns how many jobs there were.
	run := func(at int) (jobs int, err error) {
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		dir := t.TempDir()
		s := Session{
			Request: small(), Shapes: []request.ListedShape{{M: 64, N: 32, K: 16}, {M: 65, N: 32, K: 16}}, Calls: 2, Budget: 5, Check: true,
			Results: filepath.Join(dir, "r.jsonl"), Write: filepath.Join(dir, "w.yaml"), Out: io.Discard, Progress: io.Discard, Today: "2026-12-01",
			Launch: func(_ context.Context, runs []*request.Resolved) (docs []*report.Document, err error) {
				if jobs++; jobs == at {
					cancel(errors.New("you sent interrupt"))
				}
				for range runs {
					docs = append(docs, &report.Document{Status: report.Pass, TimeMS: &report.Times{Median: 2}, Check: &report.Check{}})
				}
				return docs, nil
			},
		}
		err = s.Run(ctx)
		return jobs, err
	}
	all, err := run(0)
	if err != nil || all < 4 {
		t.Fatalf("%d jobs, %v", all, err)
	}
	for at := 1; at < all; at++ {
		if jobs, err := run(at); !errors.Is(err, ErrStopped) || jobs != at {
			t.Errorf("ended in job %d of %d: %d jobs, %v", at, all, jobs, err)
		}
	}
	if _, err := run(all); err != nil {
		t.Errorf("ended in the last job: %v", err)
	}
}

func TestSessionRefuses(t *testing.T) {
	for name, change := range map[string]func(*Session){
		"budget": func(s *Session) { s.Budget = 0 },
		"calls":  func(s *Session) { s.Calls = 0 },
		"shape":  func(s *Session) { s.Shapes[0].K = 12 },
		"folder": func(s *Session) { s.Write = filepath.Join(filepath.Dir(s.Write), "none", "w.yaml") },
		"file":   func(s *Session) { s.Write = filepath.Join(filepath.Dir(s.Write), "r.jsonl") },
	} {
		dir := t.TempDir()
		s := Session{
			Request: small(), Shapes: []request.ListedShape{{M: 64, N: 32, K: 16}}, Calls: 1, Budget: 1,
			Results: filepath.Join(dir, "r.jsonl"), Write: filepath.Join(dir, "w.yaml"), Today: "2026-11-30",
			Launch: func(context.Context, []*request.Resolved) ([]*report.Document, error) {
				t.Errorf("%s: something was launched", name)
				return nil, ErrStopped
			},
		}
		change(&s)
		var refused *RefusedError
		if err := s.Run(context.Background()); !errors.As(err, &refused) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
