package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Recorder is an instance that can say what happened inside a call.
type Recorder interface {
	// Record makes one call more, behind a barrier, and says what its workers did. All ranks call it.
	Record(ctx context.Context) (Timeline, error)
}

// Timeline is one call on one rank.
type Timeline struct {
	Spans []Span
	Lost  uint64 // spans that there was no room for
}

// Span is what one thread of a worker did from one moment to another, since the rank's first worker began.
type Span struct {
	Worker     int    // CTA
	Thread     string // which of its threads
	Kind       string
	What       int // which unit of work, segment or copy
	Start, End time.Duration
}

// WriteTrace writes the timeline of a rank in the form of Chrome's trace viewer: a process for each rank, a thread for each
// thread of a worker.
func (t Timeline) WriteTrace(w io.Writer, rank int) error {
	type args struct {
		Of   int    `json:"of,omitempty"`
		Name string `json:"name,omitempty"`
	}
	type event struct {
		Name  string  `json:"name"`
		Phase string  `json:"ph"`
		PID   int     `json:"pid"`
		TID   int     `json:"tid"`
		TS    float64 `json:"ts"` // microseconds
		Dur   float64 `json:"dur,omitempty"`
		Args  args    `json:"args"`
	}
	type thread struct {
		worker int
		name   string
	}
	doc := struct {
		Unit   string  `json:"displayTimeUnit"`
		Lost   uint64  `json:"lost"`
		Events []event `json:"traceEvents"`
	}{"ns", t.Lost, []event{{Name: "process_name", Phase: "M", PID: rank, Args: args{Name: fmt.Sprintf("rank %d", rank)}}}}
	numbers := map[thread]int{}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	for _, s := range t.Spans {
		at := thread{s.Worker, s.Thread}
		n, known := numbers[at]
		if !known {
			n = len(numbers)
			numbers[at] = n
			doc.Events = append(doc.Events, event{Name: "thread_name", Phase: "M", PID: rank, TID: n, Args: args{Name: fmt.Sprintf("CTA %d %s", s.Worker, s.Thread)}})
		}
		doc.Events = append(doc.Events, event{Name: s.Kind, Phase: "X", PID: rank, TID: n, TS: us(s.Start), Dur: us(s.End - s.Start), Args: args{Of: s.What}})
	}
	if err := json.NewEncoder(w).Encode(doc); err != nil {
		return fmt.Errorf("writing the timeline: %w", err)
	}
	return nil
}
