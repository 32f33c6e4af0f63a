package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mkrun/mkrun/internal/plan"
)

// WriteTable writes the document for people, a row for each shape.
func (d *Document) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s on %v, engine %s; %s; %s\n", d.Operator, d.DType, plan.World{PPN: d.World.PPN}, d.Engine, d.Machine, d.Date)
	fmt.Fprintf(&b, "ms, median of %d calls, the slower rank", d.Calls)
	if len(d.Versus) > 0 {
		fmt.Fprintf(&b, "; %s; [5 %% 95 %%]; %s", loopText(d.Loop), d.Software)
	}
	b.WriteString("\n\n")
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	head := []string{"M, N, K", "LAUNCH"}
	if len(d.Versus) > 0 {
		head = append(head, "PRODUCT")
		for _, name := range d.Versus {
			head = append(head, strings.ToUpper(name))
		}
		head = append(head, "OURS", "/BEST", "/PRODUCT", "EXPOSED (BEST)", "HOST US")
	}
	fmt.Fprintln(tw, strings.Join(append(head, "TFLOP/S", "SETTINGS"), "\t"))
	for i := range d.Rows {
		fmt.Fprintln(tw, strings.Join(d.row(&d.Rows[i]), "\t"))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	for _, r := range d.Rows {
		for _, f := range r.failures() {
			fmt.Fprintf(&b, "\n%s, %s", r.sizes(), f)
		}
	}
	if !strings.HasSuffix(b.String(), "\n") {
		b.WriteString("\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}

func loopText(loop string) string {
	if loop == LoopQueued {
		return "queued: the host ran ahead of the device"
	}
	return "eager: submitted as a caller would"
}

func (r *Row) sizes() string { return fmt.Sprintf("%d, %d, %d", r.Shape.M, r.Shape.N, r.Shape.K) }

func (d *Document) row(r *Row) []string {
	cells := []string{r.sizes(), ms(r.Launch)}
	if len(d.Versus) > 0 {
		product := Figure{Error: "none"}
		if r.Product != nil {
			product = *r.Product
		}
		cells = append(cells, ms(product))
		for _, name := range d.Versus {
			cells = append(cells, ms(r.Baselines[name]))
		}
		ours := ms(r.Ours)
		if r.Ours.ok() {
			ours += fmt.Sprintf(" [%.4f %.4f]", r.Ours.P5, r.Ours.P95)
		}
		cells = append(cells, ours, number("%.3f", r.RatioBest), number("%.3f", r.RatioGEMM),
			fmt.Sprintf("%s (%s)", number("%.2f", r.Exposed), number("%.2f", r.ExposedBest)), number("%.0f", r.hostUS()))
	}
	return append(cells, number("%.3g", r.TFLOPS), r.Settings)
}

// hostUS is what a call takes the thread that submits it; nil where ours could not be timed.
func (r *Row) hostUS() *float64 {
	if !r.Ours.ok() {
		return nil
	}
	return &r.Ours.HostUS
}

func ms(f Figure) string {
	if !f.ok() {
		return "-"
	}
	return fmt.Sprintf("%.4f", f.MS)
}

func number(format string, p *float64) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf(format, *p)
}

// failures says what could not be timed, and why.
func (r *Row) failures() (list []string) {
	add := func(name string, f Figure) {
		if f.Error != "" {
			list = append(list, name+": "+f.Error)
		}
	}
	add("launch", r.Launch)
	if r.Ours.Error != r.Launch.Error {
		add("ours", r.Ours)
	}
	if r.Product != nil {
		add("product", *r.Product)
	}
	for _, name := range sortedKeys(r.Baselines) {
		add(name, r.Baselines[name])
	}
	return list
}
