// Package bench times an operator on some shapes, beside what users could call instead, and shows the result as a table,
// a document and a picture.
package bench

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
)

// Schema names the layout of Document. Keys are only ever added under the same name.
const Schema = "mkrun.bench/1"

// Document is what was measured. What does not apply is null.
type Document struct {
	Schema   string       `json:"schema"`
	Operator string       `json:"operator"`
	Engine   string       `json:"engine"`
	DType    string       `json:"dtype"`
	World    report.World `json:"world"`
	Machine  string       `json:"machine"`
	Date     string       `json:"date"` // YYYY-MM-DD
	Software string       `json:"software"`
	Loop     string       `json:"loop"`  // eager: submitted as a caller would; queued: the host ran ahead of the device
	Calls    int          `json:"calls"` // timed of each
	Versus   []string     `json:"versus"`
	Rows     []Row        `json:"rows"`
}

// Row is one shape.
type Row struct {
	Name     string     `json:"name"` // as it was asked for
	Shape    plan.Shape `json:"shape"`
	Source   string     `json:"source"`   // where the settings came from
	Settings string     `json:"settings"` // in words

	// Launch is the operator as mkrun launch runs it, Ours its kernel in one loop with Product (a matrix product alone,
	// on operands that are gathered already) and Baselines; without baselines these are null, and Ours is Launch.
	Launch    Figure            `json:"launch"`
	Ours      Figure            `json:"ours"`
	Product   *Figure           `json:"product"`
	Baselines map[string]Figure `json:"baselines"`

	TFLOPS      *float64 `json:"tflops"`       // of a rank, Ours
	Best        string   `json:"best"`         // the fastest baseline
	RatioBest   *float64 `json:"ratio_best"`   // Ours / Best
	RatioGEMM   *float64 `json:"ratio_gemm"`   // Ours / Product
	Exposed     *float64 `json:"exposed"`      // share of Ours that is not hidden behind the product
	ExposedBest *float64 `json:"exposed_best"` // the same of Best
}

// Figure is the time of a call: median, and of which 5 and 95 % of calls take less, of the slower rank, in ms.
type Figure struct {
	MS     float64 `json:"ms,omitempty"`
	P5     float64 `json:"p5,omitempty"`
	P95    float64 `json:"p95,omitempty"`
	HostUS float64 `json:"host_us,omitempty"` // that a call takes the thread that submits it
	Error  string  `json:"error,omitempty"`   // why there is no time
}

func (f Figure) ok() bool { return f.Error == "" && f.MS > 0 }

// Failed reports whether something of the operator could not be timed, or was wrong. (A baseline that fails is no
// failure of ours.)
func (d *Document) Failed() bool {
	for i := range d.Rows {
		if !d.Rows[i].Launch.ok() || !d.Rows[i].Ours.ok() {
			return true
		}
	}
	return false
}

// compare fills in what follows from the times.
func (r *Row) compare() {
	if r.Ours.ok() {
		rate := r.rate(r.Ours)
		r.TFLOPS = &rate
	}
	best := Figure{}
	for name, f := range r.Baselines {
		if f.ok() && (r.Best == "" || f.MS < best.MS || f.MS == best.MS && name < r.Best) {
			r.Best, best = name, f
		}
	}
	ratio := func(a, b float64) *float64 { q := a / b; return &q }
	if r.Ours.ok() && best.ok() {
		r.RatioBest = ratio(r.Ours.MS, best.MS)
	}
	if r.Product == nil || !r.Product.ok() {
		return
	}
	if r.Ours.ok() {
		r.RatioGEMM = ratio(r.Ours.MS, r.Product.MS)
		r.Exposed = ratio(r.Ours.MS-r.Product.MS, r.Ours.MS)
	}
	if best.ok() {
		r.ExposedBest = ratio(best.MS-r.Product.MS, best.MS)
	}
}

// rate is how many TFLOP/s of a rank a time stands for.
func (r *Row) rate(f Figure) float64 {
	return 2e-9 * float64(r.Shape.M) * float64(r.Shape.N) * float64(r.Shape.K) / f.MS
}

// WriteJSON writes the document, and nothing else.
func (d *Document) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(d); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}
