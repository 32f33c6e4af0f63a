package cuda_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/operator"
	"github.com/mkrun/mkrun/internal/plan"
)

// A call that is recorded says what every segment and copy of the plan took, in a file for each rank, and the results are as
// right as without.
func TestTimeline(t *testing.T) {
	t.Setenv("HOSTLIB_LOST", "4")
	s := spec(plan.Shape{M: 128, N: 64, K: 32}, 2)
	s.Timeline = filepath.Join(t.TempDir(), "deep", "timeline")
	results, errs := run(t, s, onHostlib)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	for rank, r := range results {
		if r.Status != operator.Pass {
			t.Errorf("rank %d: %+v", rank, r)
		}
		data, err := os.ReadFile(filepath.Join(s.Timeline, fmt.Sprintf("rank-%d.json", rank)))
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Lost   int
			Events []struct {
				Name    string
				PID     int
				TS, Dur float64
			} `json:"traceEvents"`
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for _, e := range doc.Events {
			count[e.Name]++
			if e.PID != rank || e.TS < 0 || e.Dur < 0 {
				t.Errorf("rank %d: %+v", rank, e)
			}
		}
		queues := p.Ranks[rank].Queues
		if count["multiply"] != len(queues[plan.RoleCompute]) || count["push"] != len(queues[plan.RoleIntra]) || doc.Lost != 4 {
			t.Errorf("rank %d: %v, %d lost; the plan has %d segments and %d copies", rank, count, doc.Lost, len(queues[plan.RoleCompute]), len(queues[plan.RoleIntra]))
		}
	}
}

// What cannot be recorded or written is an error that says why.
func TestTimelineFailures(t *testing.T) {
	s := spec(plan.Shape{M: 64, N: 32, K: 16}, 1)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Timeline = file
	if _, errs := run(t, s, onHostlib); errs[0] == nil || !strings.Contains(errs[0].Error(), "making the folder for the timeline") {
		t.Errorf("%v", errs[0])
	}
	t.Setenv("HOSTLIB_LANE", "9")
	s.Timeline = t.TempDir()
	if _, errs := run(t, s, onHostlib); errs[0] == nil || !strings.Contains(errs[0].Error(), "lane 11, kind 2, which this mkrun does not know") {
		t.Errorf("%v", errs[0])
	}
}
