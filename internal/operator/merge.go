package operator

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/mkrun/mkrun/internal/plan"
	"github.com/mkrun/mkrun/internal/report"
)

// Merge makes the document of a job from the results of all its ranks, in any order. A call takes as
// long as its slowest rank; errors are the worst of any rank. Start time, source of the settings and the
// cause of a failed job are the launcher's to add.
func Merge(spec RunSpec, p *plan.Plan, net string, results []RankResult) (*report.Document, error) {
	size := spec.World.Size()
	if len(results) != size {
		return nil, fmt.Errorf("%d of %d ranks reported a result", len(results), size)
	}
	byRank := slices.Clone(results)
	slices.SortFunc(byRank, func(a, b RankResult) int { return a.Rank - b.Rank })
	moved, err := p.Bytes(spec.Shape, spec.DType.Size())
	if err != nil {
		return nil, err
	}
	counts := p.Counts()
	d := &report.Document{
		Schema: report.Schema, Status: report.Pass, Operator: spec.Operator, Algorithm: p.Algorithm, Shape: &spec.Shape, DType: spec.DType.String(),
		World:  report.World{Nodes: spec.World.Nodes(), PPN: spec.World.PPN, Size: size},
		Engine: byRank[0].Engine, Net: net, Seed: spec.Seed,
		Bytes: &report.Bytes{InterMinimum: moved.InterMinimum},
		Plan:  &report.Plan{Transfers: counts.Transfers, Segments: counts.Segments, Flags: counts.Flags, Verified: true},
	}
	if spec.Check {
		d.Check = &report.Check{}
	}
	d.Settings = byRank[0].Settings
	if byRank[0].Net != "" {
		d.Net, d.NetWhy = byRank[0].Net, byRank[0].NetWhy
	}
	slowest := make([]int64, spec.Iters)
	for i, r := range byRank {
		if r.Rank != i {
			return nil, fmt.Errorf("the results of ranks do not cover the job: rank %d is missing or was reported twice", min(i, r.Rank))
		}
		switch {
		case r.Status == Error:
			return nil, fmt.Errorf("rank %d did not run to its end: %s", i, r.Reason)
		case len(r.TimesNS) != spec.Iters:
			return nil, fmt.Errorf("rank %d reported %d times for %d calls", i, len(r.TimesNS), spec.Iters)
		case spec.Check && !r.Checked:
			return nil, fmt.Errorf("rank %d did not check its result", i)
		case r.Status != Pass:
			d.Status = report.Fail
		}
		for call, ns := range r.TimesNS {
			slowest[call] = max(slowest[call], ns)
		}
		if d.Check != nil {
			d.Check.RelError = max(d.Check.RelError, r.RelError)
			d.Check.WorstTileError = max(d.Check.WorstTileError, r.WorstTileError)
			d.Check.WorstRowError = max(d.Check.WorstRowError, r.WorstRowError)
			d.Check.Tolerance = r.Tolerance
		}
		d.Bytes.Intra += r.IntraBytes
		d.Bytes.Inter += r.InterBytes
		d.Ranks = append(d.Ranks, rankRow(spec, r))
	}
	d.Bytes.Ratio()
	d.Digest = digest(byRank)
	d.TimeMS, err = times(slowest)
	return d, err
}

// digest is one for the outputs of all ranks, in their order.
func digest(byRank []RankResult) string {
	h := sha256.New()
	for _, r := range byRank {
		fmt.Fprintln(h, r.OutputHash)
	}
	return fmt.Sprintf("sha256:%x", h.Sum(nil))
}

func rankRow(spec RunSpec, r RankResult) report.Rank {
	node, local := spec.World.Place(r.Rank)
	row := report.Rank{Rank: r.Rank, Node: node, LocalRank: local, Status: string(r.Status), IntraBytes: r.IntraBytes, InterBytes: r.InterBytes}
	if r.Checked {
		row.RelError = &r.RelError
	}
	row.HostUS, row.Launches = float64(r.HostNS)/1e3, r.Launches
	row.WaitedMS = map[string]float64{}
	for role, ns := range r.WaitedNS {
		if ns > 0 {
			row.WaitedMS[plan.Role(role).String()] = float64(ns) / 1e6
		}
	}
	median := quantile(slices.Sorted(slices.Values(r.TimesNS)), 0.5)
	row.TimeMS = median / 1e6
	if median > 0 {
		row.GFlops = float64(r.Flops) / median
	}
	return row
}

func times(ns []int64) (*report.Times, error) {
	if len(ns) == 0 {
		return nil, errors.New("no call was timed")
	}
	ns = slices.Sorted(slices.Values(ns))
	return &report.Times{Median: quantile(ns, 0.5) / 1e6, P95: quantile(ns, 0.95) / 1e6, Max: float64(ns[len(ns)-1]) / 1e6}, nil
}

// quantile interpolates between the two nearest of sorted values.
func quantile(sorted []int64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return float64(sorted[len(sorted)-1])
	}
	return float64(sorted[i]) + (at-float64(i))*float64(sorted[i+1]-sorted[i])
}
