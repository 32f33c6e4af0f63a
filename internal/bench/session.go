package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
	"github.com/mkrun/mkrun/internal/request"
	"github.com/mkrun/mkrun/internal/suggest"
	"github.com/mkrun/mkrun/internal/tune"
	"github.com/mkrun/mkrun/internal/version"
)

// Session is what is to be timed.
type Session struct {
	Request request.Request // without a shape
	Shapes  []request.ListedShape
	Versus  []string
	Loop    string
	Calls   int
	Today   string // YYYY-MM-DD

	Launch   tune.Launch
	Ready    func(context.Context) error                  // why Script cannot run, before anything does: Ready
	Script   func(context.Context, Job) (*Timings, error) // times the baselines: Python
	Progress io.Writer
}

// rounds is in how many turns the script times its variants, each with as many of the calls.
const rounds = 4

// RefusedError says that what was asked for cannot be, before anything was started.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// Run times shape by shape with launches, then, if there are baselines, everything in one loop. What cannot be timed has
// its reason in the document.
func (s *Session) Run(ctx context.Context) (*Document, error) {
	runs, d, err := s.plan()
	if err != nil {
		return nil, &RefusedError{err}
	}
	if len(s.Versus) > 0 {
		if err := s.Ready(ctx); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		} else if err != nil {
			return nil, &RefusedError{fmt.Errorf("--vs %s: %w; leave --vs out to time %s alone", strings.Join(s.Versus, ","), err, d.Operator)}
		}
	}
	for i, run := range runs {
		fmt.Fprintf(s.Progress, "bench: %s (%d of %d), launched\n", d.Rows[i].Name, i+1, len(runs))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		docs, err := s.Launch(ctx, []*request.Resolved{run})
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			d.Rows[i].Launch = Figure{Error: err.Error()}
		default:
			d.Rows[i].Launch = launched(docs[0])
			if d.World.Nodes > 1 {
				d.Rows[i].Settings += ", net " + docs[0].Net
			}
		}
	}
	if err := s.versus(ctx, runs, d); err != nil {
		return nil, err
	}
	for i := range d.Rows {
		if len(s.Versus) == 0 {
			d.Rows[i].Ours = d.Rows[i].Launch
		}
		d.Rows[i].compare()
	}
	return d, nil
}

func launched(doc *report.Document) Figure {
	if doc.Status != report.Pass {
		return Figure{Error: "the result is wrong"}
	}
	return Figure{MS: doc.TimeMS.Median, P95: doc.TimeMS.P95}
}

// plan resolves all shapes, and refuses what cannot be.
func (s *Session) plan() ([]*request.Resolved, *Document, error) {
	for _, name := range s.Versus {
		if _, ok := baselines[name]; !ok {
			return nil, nil, fmt.Errorf("--vs %s is not known%s; known: %s", name, suggest.DidYouMean(name, Baselines()), strings.Join(Baselines(), ", "))
		}
	}
	if s.Loop != LoopEager && s.Loop != LoopQueued {
		return nil, nil, fmt.Errorf("--loop %s is not known; known: %s, %s", s.Loop, LoopEager, LoopQueued)
	}
	if s.Loop == LoopQueued && len(s.Versus) == 0 {
		return nil, nil, fmt.Errorf("--loop %s is how calls are timed beside others: without --vs it means nothing", s.Loop)
	}
	var runs []*request.Resolved
	d := &Document{
		Schema: Schema, Operator: s.Request.Operator, DType: s.Request.DType, Date: s.Today, Software: "mkrun " + version.Get().BuildID(),
		Loop: s.Loop, Calls: s.Calls, Versus: append([]string{}, s.Versus...),
	}
	for _, shape := range s.Shapes {
		req := shape.Of(s.Request)
		req.Iters = s.Calls
		run, err := req.Resolve()
		if err != nil {
			return nil, nil, fmt.Errorf("shape %v: %w", shape, err)
		}
		settings, err := s.configured(req, run)
		if err != nil {
			return nil, nil, fmt.Errorf("shape %v: %w", shape, err)
		}
		runs = append(runs, run)
		d.Rows = append(d.Rows, Row{Name: shape.String(), Shape: run.Run.Shape, Source: run.Source, Settings: tune.Describe(settings)})
		d.Engine, d.Machine = run.Engine, run.Machine()
		d.World = report.World{Nodes: run.Run.World.Nodes(), PPN: run.Run.World.PPN, Size: run.Run.World.Size()}
	}
	if len(s.Versus) == 0 {
		return runs, d, nil
	}
	switch {
	case d.Engine != "cuda":
		return nil, nil, fmt.Errorf("--vs %s: those run on GPUs, and the engine is %s (%s); leave --vs out to time %s alone",
			strings.Join(s.Versus, ","), d.Engine, runs[0].EngineWhy, d.Operator)
	case d.Operator != "ag_gemm" || d.World.Nodes > 1:
		return nil, nil, fmt.Errorf("--vs: baselines are there for ag_gemm on one node, not for %s on %v (they would not go over the emulated links between nodes)",
			d.Operator, s.Request.World)
	case s.Request.CUDA.ShareGPUs:
		return nil, nil, errors.New("--vs: the baselines cannot share GPUs: leave --share-gpus out")
	}
	for i := range d.Rows {
		if m, ranks := d.Rows[i].Shape.M, int64(d.World.Size); m%ranks != 0 {
			return nil, nil, fmt.Errorf("shape %v: --vs: the baselines gather the same number of rows from each rank: M is %d, and must be a multiple of %d", s.Shapes[i], m, ranks)
		}
	}
	return runs, d, nil
}

// configured is what the configuration says for a run.
func (s *Session) configured(req request.Request, run *request.Resolved) (config.Settings, error) {
	fabric := ""
	if run.Run.World.Nodes() > 1 {
		fabric = run.Net
	}
	q, _, err := req.Query(run.Engine, fabric)
	if err != nil {
		return config.Settings{}, err
	}
	op, err := config.LoadOperator(req.Operator, req.Config)
	if err != nil {
		return config.Settings{}, err
	}
	return op.Lookup(q).Settings, nil
}

// versus times the kernel and the baselines in one loop, and fills in the rows.
func (s *Session) versus(ctx context.Context, runs []*request.Resolved, d *Document) error {
	if len(s.Versus) == 0 {
		return nil
	}
	job, err := s.job(runs)
	if err != nil {
		return err
	}
	t, err := s.Script(ctx, job)
	if err != nil {
		return err
	}
	d.Machine = fmt.Sprintf("%d x %s", t.GPUs, t.Device)
	d.Software += fmt.Sprintf(", PyTorch %s, CUDA %s", t.Torch, t.CUDA)
	d.Calls = rounds * job.Calls
	for i := range d.Rows {
		r := &d.Rows[i]
		times := t.Results[shapeKey(r.Shape)]
		find := func(name string) Figure {
			if f, ok := times[name]; ok {
				return f.figure()
			}
			return Figure{Error: "the script did not time it"}
		}
		product := find("gemm")
		r.Ours, r.Product, r.Baselines = find("configured"), &product, make(map[string]Figure)
		for _, name := range s.Versus {
			r.Baselines[name] = find(baselines[name])
		}
	}
	return nil
}

// job is what the script is asked for.
func (s *Session) job(runs []*request.Resolved) (Job, error) {
	job := Job{
		Versus: s.Versus, DType: s.Request.DType, Loop: s.Loop, Rounds: rounds, Calls: (s.Calls + rounds - 1) / rounds,
		Ranks: s.Request.World.Size(), Plans: make(map[int][][]byte),
	}
	job.Library = runs[0].Run.Library
	if runs[0].GPUs != nil {
		job.GPUs = runs[0].GPUs[0] // all ranks see those of all, in their order
	}
	var err error
	if job.Plans[1], err = encode(s.Request.World, 1); err != nil { // the script begins with it
		return job, err
	}
	for i, run := range runs {
		settings, err := s.configured(s.Shapes[i].Of(s.Request), run)
		if err != nil {
			return job, err
		}
		chunks := run.Run.Chunks
		job.Shapes, job.Configs, job.Chunks = append(job.Shapes, run.Run.Shape), append(job.Configs, settings), append(job.Chunks, chunks)
		if job.Plans[chunks], err = encode(s.Request.World, chunks); err != nil {
			return job, err
		}
	}
	alone, err := encode(plan.Uniform(1, 1), 1)
	if err != nil {
		return job, err
	}
	job.Alone = alone[0]
	return job, nil
}

// encode is the plan that the library follows, for each rank.
func encode(w plan.World, chunks int) ([][]byte, error) {
	p, err := plan.AGGemm(w, chunks)
	if err != nil {
		return nil, err
	}
	var ranks [][]byte
	for rank := range w.Size() {
		b, err := p.EncodeRank(rank)
		if err != nil {
			return nil, fmt.Errorf("encoding the plan of rank %d: %w", rank, err)
		}
		ranks = append(ranks, b)
	}
	return ranks, nil
}
