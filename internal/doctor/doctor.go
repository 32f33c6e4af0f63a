// Package doctor looks at this machine and says what mkrun can do here, what will not work, and
// what to do about it.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/version"
)

// Severity of a finding.
type Severity string

// Severities, from best to worst.
const (
	OK   Severity = "ok"   // as it should be, or not needed here
	Warn Severity = "warn" // something will not work or will be slow
	Fail Severity = "fail" // not even the CPU engine can run
)

// Finding is one thing that was looked at.
type Finding struct {
	Code     string   `json:"code"` // stable: scripts may match it
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`             // one sentence: what is here
	Action   string   `json:"action,omitempty"` // what to do; only when something is amiss
}

// Engine says whether an engine can run here.
type Engine struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"` // codes of the findings that stand in the way
}

// Schema names the layout of Report as JSON. Keys are only ever added under the same name.
const Schema = "mkrun.doctor/1"

// Report is the whole result.
type Report struct {
	Schema   string    `json:"schema"`
	Status   Severity  `json:"status"` // the worst of the findings
	Build    string    `json:"build"`
	Engines  []Engine  `json:"engines"`
	Driver   string    `json:"driver,omitempty"` // NVIDIA's, e.g. 580.82.07
	GPUs     []GPU     `json:"gpus"`
	NICs     []NIC     `json:"nics"`
	Findings []Finding `json:"findings"`
}

// Run examines this machine and writes the report to w, as text or as one JSON document. The exit
// status is 0 when the CPU engine can run, else 1.
func Run(ctx context.Context, w io.Writer, asJSON bool) (exit int) {
	return run(ctx, thisHost(), w, asJSON)
}

func run(ctx context.Context, h host, w io.Writer, asJSON bool) int {
	r := examine(ctx, h)
	var err error
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		_, err = io.WriteString(w, r.text())
	}
	if err != nil || r.Status == Fail {
		return 1
	}
	return 0
}

// Look examines what of this machine matters to any job: cores, memory, limits, GPUs and NICs.
func Look(ctx context.Context) *Report { return look(ctx, thisHost()) }

func look(ctx context.Context, h host) *Report {
	r := &Report{
		Schema: Schema,
		Status: OK,
		Build:  version.Get().BuildID(),
		GPUs:   []GPU{},
		NICs:   []NIC{},
	}
	r.cores(h)
	r.memory(h)
	r.limits(h)
	r.sharedMemory(h)
	r.gpus(ctx, h)
	r.nics(h)
	return r
}

func examine(ctx context.Context, h host) *Report {
	r := look(ctx, h)
	r.loopback(h)
	r.dataPlane(ctx, h)
	r.python(ctx, h)
	for _, f := range r.Findings {
		r.Status = worse(r.Status, f.Severity)
	}
	r.Engines = []Engine{
		r.engine("cpu", func(f Finding) bool { return f.Severity == Fail }),
		r.engine("cuda", r.blocksCUDA),
	}
	return r
}

func (r *Report) engine(name string, blocks func(Finding) bool) Engine {
	var codes []string
	for _, f := range r.Findings {
		if blocks(f) && !slices.Contains(codes, f.Code) {
			codes = append(codes, f.Code)
		}
	}
	return Engine{Name: name, Ready: len(codes) == 0, Why: strings.Join(codes, ", ")}
}

func worse(a, b Severity) Severity {
	rank := []Severity{OK, Warn, Fail}
	return rank[max(slices.Index(rank, a), slices.Index(rank, b))]
}

func (r *Report) ok(code, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{code, OK, fmt.Sprintf(format, args...), ""})
}

func (r *Report) bad(code string, s Severity, action, format string, args ...any) {
	r.Findings = append(r.Findings, Finding{code, s, fmt.Sprintf(format, args...), action})
}

// text renders the report for people.
func (r *Report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mkrun %s\n\n", r.Build)
	wide := 0
	for _, f := range r.Findings {
		wide = max(wide, len(f.Code))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", f.Severity, wide, f.Code, f.Text)
		if f.Action != "" {
			fmt.Fprintf(&b, "%-4s  %-*s  -> %s\n", "", wide, "", f.Action)
		}
	}
	b.WriteString("\n")
	for _, e := range r.Engines {
		state := "can run here"
		if !e.Ready {
			state = "cannot run here: see " + e.Why
		}
		fmt.Fprintf(&b, "engine %-4s  %s\n", e.Name, state)
	}
	return b.String()
}
