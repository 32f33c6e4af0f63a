package tune

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mkrun/mkrun/internal/config"
)

// Time is what was measured of some settings.
type Time struct {
	MS     float64 `json:"ms,omitempty"`    // median of a call
	Failed string  `json:"error,omitempty"` // why nothing was measured
}

// Measure times settings next to each other, in one run, so that their times can be compared. An error ends the search.
type Measure func(ctx context.Context, settings []config.Settings, calls int) ([]Time, error)

// Search looks for the fastest settings of one shape.
type Search struct {
	Space   Space
	Measure Measure
	Calls   int // timed for each settings; the last comparison has twice as many
	Budget  int // how many settings are timed at most, as often as they are, the last comparison included
	// Say tells about progress; may be nil.
	Say func(Progress)
}

// Progress is how far a search is.
type Progress struct {
	Step   string // what is tried
	Timed  int    // settings so far
	Best   config.Settings
	BestMS float64
}

// Found is what a search came to.
type Found struct {
	Settings config.Settings
	MS       float64
	OwnMS    float64 // of the engine's own choice, in the same run; 0 if it failed
	Timed    int     // settings that were timed, as often as they were
	Pruned   int     // that were left out
	Checked  bool    // the result was compared with a reference
}

// How the search prunes.
const (
	behind    = 1.15 // a start this far behind the best is not followed
	followed  = 2    // starts that are, beside the engine's own choice
	gain      = 0.99 // what a setting must reach of the time without it to be taken: noise is not written into files
	passes    = 2    // through the knobs, the second only if the first changed something
	finalists = 3
)

// Run searches: all starts next to each other; from the best of them knob by knob, each value next to the best so far;
// at last the engine's own choice and what was found once more, next to each other.
func (s *Search) Run(ctx context.Context) (Found, error) {
	r := run{Search: s, seen: make(map[config.Settings]bool)}
	room := s.Budget - 2 // but for the last comparison of two
	if room < 1 {
		room = s.Budget - 1 // the engine's own choice alone, once more
	}
	if room < 1 {
		r.pruned = len(s.Space.Starts) - 1
		for _, knob := range s.Space.Knobs {
			r.pruned += len(knob.others(s.Space.Starts[0]))
		}
		return r.final(ctx, nil)
	}
	first := s.Space.Starts[:min(room, len(s.Space.Starts))]
	r.pruned += len(s.Space.Starts) - len(first)
	starts, err := r.time(ctx, "starts", first)
	if err != nil {
		return Found{}, err
	}
	if len(starts) == 0 {
		return Found{}, fmt.Errorf("none of the settings to start with works: %s", r.why)
	}
	var ends []config.Settings
	follow := r.follow(starts)
	if room := max(1, s.Budget-r.tried-1); len(follow) > room {
		r.pruned += len(follow) - room
		follow = follow[:room]
	}
	r.kept = 1 + len(follow)
	for _, start := range follow {
		end, err := r.descend(ctx, start.settings)
		if err != nil {
			return Found{}, err
		}
		if !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	return r.final(ctx, ends)
}

// follow chooses from the starts that work, which come the fastest first. The engine's own choice is one of the others and
// is followed under that one's name, so that also those knobs turn that mean something beside it alone; so the others are
// held against each other, not against it. If it leaves all of them far behind, none of them is what it chose: then it is
// followed too, before them.
func (r *run) follow(starts []timed) []timed {
	own := slices.IndexFunc(starts, func(t timed) bool { return t.settings == r.Space.Starts[0] })
	if own < 0 || len(starts) == 1 {
		return r.near(starts)
	}
	near := r.near(slices.Delete(slices.Clone(starts), own, own+1))
	if near[0].ms > behind*starts[own].ms {
		near = slices.Insert(near, 0, starts[own])
	}
	return near
}

// near are the starts that are not far behind the first.
func (r *run) near(starts []timed) (list []timed) {
	for _, start := range starts {
		if len(list) == followed || start.ms > behind*starts[0].ms {
			r.pruned++
			continue
		}
		list = append(list, start)
	}
	return list
}

type run struct {
	*Search
	seen   map[config.Settings]bool
	best   timed
	timed  int
	tried  int // timed or failed
	kept   int // of the budget, for the last comparison
	pruned int
	why    string // of the last failure
}

type timed struct {
	settings config.Settings
	ms       float64
}

// time measures settings and returns those that work, the fastest first.
func (r *run) time(ctx context.Context, step string, settings []config.Settings) ([]timed, error) {
	return r.timeCalls(ctx, step, settings, r.Calls)
}

func (r *run) timeCalls(ctx context.Context, step string, settings []config.Settings, calls int) ([]timed, error) {
	times, err := r.Measure(ctx, settings, calls)
	if err != nil {
		return nil, err
	}
	if len(times) != len(settings) {
		return nil, fmt.Errorf("%d of %d settings were timed", len(times), len(settings))
	}
	var list []timed
	for i, t := range times {
		r.seen[settings[i]] = true
		r.tried++
		if t.Failed != "" {
			r.why = t.Failed
			continue
		}
		r.timed++
		list = append(list, timed{settings[i], t.MS})
	}
	slices.SortStableFunc(list, func(a, b timed) int { return cmp.Compare(a.ms, b.ms) })
	if len(list) > 0 && (r.best.ms == 0 || list[0].ms < r.best.ms) {
		r.best = list[0]
	}
	if r.Say != nil {
		r.Say(Progress{Step: step, Timed: r.timed, Best: r.best.settings, BestMS: r.best.ms})
	}
	return list, nil
}

// descend turns one knob after the other, and keeps what is faster.
func (r *run) descend(ctx context.Context, at config.Settings) (config.Settings, error) {
	for range passes {
		changed := false
		for _, knob := range r.Space.Knobs {
			var others []config.Settings
			for _, other := range knob.others(at) {
				if !r.seen[other] {
					others = append(others, other)
				}
			}
			if len(others) == 0 {
				continue
			}
			if r.tried+len(others)+1+r.kept > r.Budget {
				r.pruned += len(others)
				continue
			}
			list, err := r.time(ctx, knob.Name, append([]config.Settings{at}, others...))
			if err != nil {
				return at, err
			}
			now := slices.IndexFunc(list, func(t timed) bool { return t.settings == at })
			if now < 0 {
				return at, fmt.Errorf("%s worked before, and now does not: %s", Describe(at), r.why)
			}
			if list[0].ms < gain*list[now].ms {
				at, changed = list[0].settings, true
			}
		}
		if !changed {
			break
		}
	}
	return at, nil
}

// final holds what was found against the engine's own choice.
func (r *run) final(ctx context.Context, ends []config.Settings) (Found, error) {
	own := r.Space.Starts[0]
	settings := append([]config.Settings{own}, slices.DeleteFunc(ends, func(s config.Settings) bool { return s == own })...)
	list, err := r.timeCalls(ctx, "comparison", settings, 2*r.Calls)
	if err != nil {
		return Found{}, err
	}
	switch {
	case len(list) == 0 && len(ends) == 0:
		return Found{}, fmt.Errorf("the engine's own choice does not work: %s", r.why)
	case len(list) == 0:
		return Found{}, fmt.Errorf("what was found does not work any more: %s", r.why)
	}
	found := Found{Settings: list[0].settings, MS: list[0].ms, Timed: r.timed, Pruned: r.pruned}
	if i := slices.IndexFunc(list, func(t timed) bool { return t.settings == own }); i >= 0 {
		found.OwnMS = list[i].ms
		if found.MS >= gain*found.OwnMS { // no better than leaving the choice to the engine
			found.Settings, found.MS = own, found.OwnMS
		}
	}
	return found, nil
}
