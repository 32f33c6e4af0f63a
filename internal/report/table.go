package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mkrun/mkrun/internal/count"
)

// WriteTable writes the result of an operator for people: one row per rank and a total.
func (d *Document) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  M=%d N=%d K=%d %s  %s, %s  engine %s, net %s\n",
		d.Operator, d.Shape.M, d.Shape.N, d.Shape.K, d.DType, count.Of(d.World.Nodes, "node"), count.Of(d.World.Size, "rank"), d.Engine, d.Net)
	if d.NetWhy != "" {
		fmt.Fprintf(&b, "net %s: %s\n", d.Net, d.NetWhy)
	}
	if d.Plan != nil {
		fmt.Fprintf(&b, "plan: %s, %s, %s, verified   config: %s   started in %.0f ms\n",
			count.Of(d.Plan.Transfers, "transfer"), count.Of(d.Plan.Segments, "segment"), count.Of(d.Plan.Flags, "flag"), d.Config.Source, d.StartMS)
	}
	b.WriteByte('\n')
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "rank\tnode\ttime ms\tGFLOP/s\tin node\tbetween nodes\trel. error\t\t")
	var flops float64
	for _, r := range d.Ranks {
		relative, status := "not checked", ran(Status(r.Status), r.RelError != nil)
		if r.RelError != nil {
			relative = fmt.Sprintf("%.2e", *r.RelError)
		}
		fmt.Fprintf(tw, "%d\t%d\t%.3f\t%.1f\t%s\t%s\t%s\t%s\t\n", r.Rank, r.Node, r.TimeMS, r.GFlops,
			Size(r.IntraBytes), Size(r.InterBytes), relative, status)
		flops += r.GFlops * r.TimeMS
	}
	if d.TimeMS != nil {
		relative, status := "not checked", ran(d.Status, d.Check != nil)
		if d.Check != nil {
			relative = fmt.Sprintf("%.2e", d.Check.RelError)
		}
		rate := 0.0
		if d.TimeMS.Median > 0 {
			rate = flops / d.TimeMS.Median
		}
		fmt.Fprintf(tw, "all\t\t%.3f\t%.1f\t%s\t%s\t%s\t%s\t\n", d.TimeMS.Median, rate,
			Size(d.Bytes.Intra), Size(d.Bytes.Inter), relative, status)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	if d.TimeMS != nil {
		fmt.Fprintf(&b, "\ntime of a call (slowest rank): median %.3f ms, 95%% within %.3f ms, longest %.3f ms\n",
			d.TimeMS.Median, d.TimeMS.P95, d.TimeMS.Max)
	}
	if line := d.deviceLine(); line != "" {
		fmt.Fprintln(&b, line)
	}
	if d.Bytes != nil && d.Bytes.InterRatio != nil {
		fmt.Fprintf(&b, "between nodes: %s, %.2f times the least possible\n", Size(d.Bytes.Inter), *d.Bytes.InterRatio)
	}
	if d.Check != nil {
		fmt.Fprintf(&b, "check: worst tile %.2e, tolerance %.2e\n", d.Check.WorstTileError, d.Check.Tolerance)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

// deviceLine says, of a run on GPUs, with which settings it ran, what a call costs the host, and how long roles waited; of
// ranks that differ, the slowest. "" for others.
func (d *Document) deviceLine() string {
	if d.Settings == nil {
		return ""
	}
	var host float64
	launches := 0
	waited := map[string]float64{}
	for _, r := range d.Ranks {
		host, launches = max(host, r.HostUS), max(launches, r.Launches)
		for role, ms := range r.WaitedMS {
			waited[role] = max(waited[role], ms)
		}
	}
	line := fmt.Sprintf("mover %v, tiles of %v columns, %v CTAs; of the host %.0f us a call", d.Settings["mover"], d.Settings["tile"], d.Settings["ctas"], host)
	switch launches {
	case 0:
	case 1:
		line += " for one kernel"
	default:
		line += fmt.Sprintf(" for %d kernels and copies", launches)
	}
	for _, role := range slices.Sorted(maps.Keys(waited)) {
		line += fmt.Sprintf("; %s waited %.3f ms", role, waited[role])
	}
	return line
}

// ran is a status for people: what was not checked has not passed.
func ran(s Status, checked bool) string {
	if s == Pass && !checked {
		return "RAN"
	}
	return strings.ToUpper(string(s))
}

// Size writes a number of bytes in units of 1024, with three significant digits.
func Size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), -1
	for v >= 1024 && unit < len(units)-1 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.3g %ciB", v, units[unit])
}
