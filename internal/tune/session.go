package tune

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/request"
	"github.com/mkrun/mkrun/internal/version"
)

// Session tunes an operator for several shapes.
type Session struct {
	Request request.Request // without a shape
	Shapes  []request.ListedShape
	Calls   int
	Budget  int
	Check   bool   // compare what is found with a reference before it is written down
	Results string // results file
	Write   string // configuration file
	Today   string // YYYY-MM-DD
	Launch  Launch

	Out      io.Writer // the table at the end
	Progress io.Writer // a line for each step
}

// RefusedError says that what was asked for cannot be, before anything was started.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

// FailedError says of which shapes there is no entry, and why: no launch worked, or the result of what was found is wrong.
type FailedError struct{ Err error }

func (e *FailedError) Error() string { return e.Err.Error() }

// Run tunes shape by shape. After each, its entry is in the configuration file.
func (s *Session) Run(ctx context.Context) error {
	entries, header, err := s.plan()
	if err != nil {
		return &RefusedError{err}
	}
	if s.Budget < 1 || s.Calls < 1 {
		return &RefusedError{fmt.Errorf("%d calls of at most %d settings: there must be at least 1", s.Calls, s.Budget)}
	}
	if filepath.Clean(s.Write) == filepath.Clean(s.Results) {
		return &RefusedError{fmt.Errorf("%s cannot be the results file and the configuration file", s.Write)}
	}
	if err := WriteEntries(s.Write, s.Request.Operator, nil); err != nil {
		return &RefusedError{err} // before time is spent on what could not be written
	}
	journal, err := OpenJournal(s.Results, header)
	if err != nil {
		return &RefusedError{err}
	}
	defer func() { _ = journal.Close() }() // each line was synced
	journal.Today = s.Today
	var failed []error
	for i, shape := range s.Shapes {
		err := s.tune(ctx, journal, i, shape, &entries[i])
		switch {
		case err != nil && (errors.Is(err, ErrStopped) || ctx.Err() != nil):
			return err
		case err != nil: // the other shapes may do
			entries[i].Found = Found{}
			failed = append(failed, fmt.Errorf("tuning %v: %w", shape, err))
			continue
		}
		if err := WriteEntries(s.Write, s.Request.Operator, entries[i:i+1]); err != nil {
			return err
		}
	}
	err = errors.Join(failed...)
	switch tableErr := s.table(entries, journal); {
	case tableErr != nil:
		return errors.Join(err, tableErr)
	case err != nil:
		return &FailedError{err}
	}
	return nil
}

// plan resolves every shape as it is run with the engine's own choice, so that what cannot run is known before anything
// is started.
func (s *Session) plan() (entries []Entry, h Header, err error) {
	for _, shape := range s.Shapes {
		run, err := Apply(shape.Of(s.Request), config.Settings{}, 1).Resolve()
		if err != nil {
			return nil, h, fmt.Errorf("shape %v: %w", shape, err)
		}
		spec := run.Run
		ppn := 0
		for _, n := range spec.World.PPN {
			ppn = max(ppn, n)
		}
		fabric := ""
		if spec.World.Nodes() > 1 {
			fabric = run.Net
		}
		e := Entry{
			Kind: Kind{
				Engine: run.Engine, Operator: spec.Operator, M: spec.Shape.M, N: spec.Shape.N, K: spec.Shape.K,
				Nodes: spec.World.Nodes(), Ranks: spec.World.Size(), Sums: operator.Sums(spec.Operator), Algorithms: operator.Algorithms(spec.Operator),
				Cores: runtime.NumCPU(), SMs: run.SMs(),
			},
			DType: spec.DType.String(), PPN: ppn, Net: fabric, Calls: s.Calls, Date: s.Today, On: run.Machine(),
		}
		entries = append(entries, e)
		h = Header{
			Operator: spec.Operator, Engine: run.Engine, DType: e.DType, PPN: spec.World.PPN, Machine: e.On, Net: run.Net,
			Build: version.Get().BuildID(), Calls: s.Calls, Seed: spec.Seed,
		}
	}
	return entries, h, nil
}

// tune searches for one shape.
func (s *Session) tune(ctx context.Context, journal *Journal, i int, shape request.ListedShape, e *Entry) error {
	space, err := NewSpace(e.Kind)
	if err != nil {
		return err
	}
	began := time.Now()
	runner := Runner{Request: shape.Of(s.Request), Launch: s.Launch}
	search := Search{
		Space: space, Calls: s.Calls, Budget: s.Budget, Measure: journal.Measure(shape.String(), runner.Measure),
		Say: func(p Progress) {
			fmt.Fprintf(s.Progress, "tune: %v (%d of %d), %s: %s timed, best %.4g ms with %s, %.0f s\n",
				shape, i+1, len(s.Shapes), p.Step, count.Of(p.Timed, "setting"), p.BestMS, Describe(p.Best), time.Since(began).Seconds())
		},
	}
	e.Found, err = search.Run(ctx)
	e.Date = journal.Date // of the last comparison, which may be from before
	if err != nil || !s.Check {
		return err
	}
	err = journal.Check(shape.String(), runner.Check)(ctx, e.Found.Settings)
	var wrong *WrongError
	if errors.As(err, &wrong) {
		err = fmt.Errorf("what was found (%s) is not written down: %w", Describe(e.Found.Settings), wrong)
	}
	e.Found.Checked = err == nil
	return err
}

// table says what was found.
func (s *Session) table(entries []Entry, j *Journal) error {
	tw := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SHAPE\tMS\tENGINE'S OWN\tRATIO\tTIMED\tSETTINGS")
	written := 0
	for i, e := range entries {
		if e.Found.MS > 0 {
			written++
		} else {
			fmt.Fprintf(tw, "%v\tfailed\t\t\t\t\n", s.Shapes[i])
			continue
		}
		own, ratio := "failed", "-"
		if f := e.Found; f.OwnMS > 0 {
			own, ratio = fmt.Sprintf("%.4g", f.OwnMS), fmt.Sprintf("%.3f", f.MS/f.OwnMS)
		}
		fmt.Fprintf(tw, "%v\t%.4g\t%s\t%s\t%d\t%s\n", s.Shapes[i], e.Found.MS, own, ratio, e.Found.Timed, Describe(e.Found.Settings))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	what := "entries written"
	switch {
	case written == 0:
		what = "nothing written"
	case written < len(entries):
		what = fmt.Sprintf("%d of %d entries written", written, len(entries))
	}
	_, err := fmt.Fprintf(s.Out, "\n%s: %s; %s: %d measurements, %d of them from before\n", s.Write, what, s.Results, j.Added+j.Found, j.Found)
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}
