package engine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// Every span is in the trace, on a thread that is named, in microseconds.
func TestWriteTrace(t *testing.T) {
	var text strings.Builder
	timeline := Timeline{Lost: 2, Spans: []Span{
		{Worker: 0, Thread: "loads", Kind: "wait for rows", What: 5, Start: 1500 * time.Nanosecond, End: 2750 * time.Nanosecond},
		{Worker: 131, Thread: "pushes", Kind: "push", What: 1, Start: 0, End: time.Microsecond},
		{Worker: 0, Thread: "loads", Kind: "load", Start: time.Microsecond, End: 4 * time.Microsecond},
	}}
	if err := timeline.WriteTrace(&text, 3); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Lost   int
		Events []struct {
			Name, Ph string
			PID, TID int
			TS, Dur  float64
			Args     struct {
				Of   int
				Name string
			}
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal([]byte(text.String()), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Lost != 2 || len(doc.Events) != 6 {
		t.Fatalf("%s", text.String())
	}
	names := map[int]string{}
	for _, e := range doc.Events {
		if e.PID != 3 {
			t.Errorf("%+v is of another rank", e)
		}
		if e.Name == "thread_name" {
			names[e.TID] = e.Args.Name
		}
	}
	wait := doc.Events[2]
	if wait.Name != "wait for rows" || wait.Ph != "X" || wait.TS != 1.5 || wait.Dur != 1.25 || wait.Args.Of != 5 || names[wait.TID] != "CTA 0 loads" {
		t.Errorf("%+v on %q", wait, names[wait.TID])
	}
	if last := doc.Events[5]; last.TID != wait.TID || names[doc.Events[4].TID] != "CTA 131 pushes" {
		t.Errorf("%+v, %v", last, names)
	}
}
