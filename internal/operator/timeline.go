package operator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mkrun/mkrun/internal/engine"
)

// record makes one call more whose insides are written into the folder that was asked for, as rank-N.json.
func (s *session) record(ctx context.Context) error {
	recorder, ok := s.instance.(engine.Recorder)
	if !ok {
		return errors.New("this engine records no timeline")
	}
	if err := s.boot.Barrier(ctx); err != nil {
		return fmt.Errorf("waiting for all ranks before the call that is recorded: %w", err)
	}
	timeline, err := recorder.Record(ctx)
	if err != nil {
		return err
	}
	return writeTimeline(filepath.Join(s.spec.Timeline, fmt.Sprintf("rank-%d.json", s.rank)), timeline, s.rank)
}

func writeTimeline(name string, t engine.Timeline, rank int) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("making the folder for the timeline: %w", err)
	}
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("writing the timeline: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	if err := t.WriteTrace(w, rank); err != nil {
		return err
	}
	return w.Flush()
}
