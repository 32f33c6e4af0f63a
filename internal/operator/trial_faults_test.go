package operator

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// replanned is an engine that is given another plan than the one that was verified. All ranks edit theirs alike.
type replanned struct {
	engine.Engine
	edit func(p *plan.Plan)
}

func (e replanned) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	e.edit(cfg.Plan)
	return e.Engine.Open(ctx, cfg)
}

// editTasks calls edit for all tasks until it says that it is done.
func editTasks(p *plan.Plan, edit func(rank int, queue *[]plan.Task, i int) bool) {
	for rank := range p.Ranks {
		for role := range p.Ranks[rank].Queues {
			queue := &p.Ranks[rank].Queues[role]
			for i := range *queue {
				if edit(rank, queue, i) {
					return
				}
			}
		}
	}
}

// dropCredit loses the first signal that returns a landing buffer for the next call.
func dropCredit(p *plan.Plan) {
	var credit plan.Signal
	editTasks(p, func(rank int, queue *[]plan.Task, i int) bool {
		at := slices.IndexFunc((*queue)[i].Waits, func(w plan.Wait) bool { return w.Lag > 0 })
		if at >= 0 {
			credit = plan.Signal{Rank: rank, Flag: (*queue)[i].Waits[at].Flag}
		}
		return at >= 0
	})
	editTasks(p, func(_ int, queue *[]plan.Task, i int) bool {
		t := &(*queue)[i]
		at := slices.Index(t.Signals, credit)
		if at >= 0 {
			t.Signals = slices.Delete(slices.Clone(t.Signals), at, at+1)
		}
		return at >= 0
	})
}

// skipWaits has products and sums of rank 0 not wait for what they are made of.
func skipWaits(p *plan.Plan) {
	editTasks(p, func(rank int, queue *[]plan.Task, i int) bool {
		t := &(*queue)[i]
		if rank == 0 && (t.Kind == plan.Compute || t.Kind == plan.Reduce) {
			t.Waits = slices.DeleteFunc(slices.Clone(t.Waits), func(w plan.Wait) bool { return w.Lag == 0 })
		}
		return false
	})
}

// takeCredit writes into landing buffers without waiting until they were read.
func takeCredit(p *plan.Plan) {
	editTasks(p, func(_ int, queue *[]plan.Task, i int) bool {
		t := &(*queue)[i]
		t.Waits = slices.DeleteFunc(slices.Clone(t.Waits), func(w plan.Wait) bool { return w.Lag > 0 })
		return false
	})
}

// sendTwice has a copy made again, which changes nothing but the bytes that move.
func sendTwice(p *plan.Plan) {
	editTasks(p, func(_ int, queue *[]plan.Task, i int) bool {
		t := (*queue)[i]
		if t.Kind != plan.Copy {
			return false
		}
		t.Signals = nil
		*queue = slices.Insert(slices.Clone(*queue), i, t)
		return true
	})
}

// dropTile leaves out the product of one segment, but raises its flags.
func dropTile(p *plan.Plan) {
	editTasks(p, func(rank int, queue *[]plan.Task, i int) bool {
		t := &(*queue)[i]
		if rank == 0 && t.Kind == plan.Compute {
			*t = plan.Task{Kind: plan.Notify, Peer: t.Peer, Waits: t.Waits, Signals: t.Signals}
			return true
		}
		return false
	})
}

// The driver of the fuzz catches faults of plans and engines, in every operator.
func TestTrialsCatchFaults(t *testing.T) {
	edited := func(edit func(*plan.Plan)) func(int, engine.Engine) engine.Engine {
		return func(_ int, e engine.Engine) engine.Engine { return replanned{e, edit} }
	}
	for _, v := range variants {
		for name, c := range map[string]struct {
			fault func(rank int, e engine.Engine) engine.Engine
			want  string
			skip  bool
		}{
			"lost credit": {edited(dropCredit), "should have raised it", v.algorithm == plan.TwoShot},
			"no wait":     {edited(skipWaits), "", false},
			"no credit":   {edited(takeCredit), "", v.algorithm == plan.TwoShot},
			"sent twice":  {edited(sendTwice), "declared are", v.operator == "gemm_rs"},
			"no tile":     {edited(dropTile), "wrong result", false},
			"other bits": {func(rank int, e engine.Engine) engine.Engine {
				if rank != 1 {
					return e
				}
				return faulty{e, func(_ int, out []uint16) { out[3] ^= 1 }}
			}, "other bits", false},
		} {
			if c.skip {
				continue
			}
			t.Run(v.operator+v.algorithm+"/"+name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, 1))
				patience := time.Minute
				if name == "lost credit" { // which shows when a wait ends
					patience = 2 * time.Second
				}
				var err error
				for try := 0; err == nil && try < 500; try++ { // that a wait is missing shows when the other rank is late: nearly always at once, on a single core at times late
					tr := trial{mapped: true, slow: 1, pace: late} // of mapped memory the race detector says nothing
					tr.spec = testSpec(plan.Shape{M: 60, N: 40, K: 64}, 2, 2)
					if name == "no credit" { // which shows when ranks that are ahead write while another still reads
						tr.loose, tr.pace, tr.spec.Shape.K, tr.spec.Iters = true, narrow, 256, 20
					}
					tr.spec.Operator, tr.spec.Algorithm, tr.spec.Seed, tr.spec.WaitTimeout = v.operator, v.algorithm, r.Uint64(), patience
					err = tr.check(t, c.fault)
				}
				if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "plain:") {
					t.Errorf("got %v, want %q", err, c.want)
				}
				t.Log(err)
			})
		}
	}
}
