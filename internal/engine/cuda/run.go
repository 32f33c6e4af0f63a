//go:build cgo

package cuda

// #include "bridge.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// Sync implements engine.Instance: a barrier of all ranks on their devices, right before what Run puts behind it.
func (in *instance) Sync(ctx context.Context) error {
	in.running.Lock()
	defer in.running.Unlock()
	if err := in.aborted(); err != nil {
		return err
	}
	err := in.barrier(ctx)
	if reason := in.aborted(); err != nil && reason != nil {
		return reason
	}
	return err
}

// barrier lines up the ranks on their devices; those of other nodes that NICs reach, by the library's all-gather.
func (in *instance) barrier(ctx context.Context) error {
	defer in.during(ctx)()
	var e C.mk_error
	err := in.check(C.mkrun_call_mk_barrier(in.lib, in.context, in.stream, &e), &e)
	if refused := (*Error)(nil); errors.As(err, &refused) && refused.Code == CodeAborted {
		if given := in.failure(); given != nil { // an earlier barrier was given up, or a call: the record knows for whom
			return given
		}
	}
	return err
}

// Run implements engine.Instance.
func (in *instance) Run(ctx context.Context) (engine.Stats, error) {
	in.running.Lock()
	defer in.running.Unlock()
	stats, err := in.calls(ctx, 1, func(int) error { return nil })
	if err != nil {
		return engine.Stats{}, err
	}
	return stats[0], nil
}

// batch bounds the calls that are queued at once: fewer kernels and copies than the driver takes before it makes the
// host wait.
const batch = 32

// hostLead is how long the device is held up for each call of a batch, so that the host is ahead of it: what a launch with
// its copies takes.
const hostLead = 60 * time.Microsecond

// Queue implements engine.Queuer.
func (in *instance) Queue(ctx context.Context, calls int) ([]engine.Stats, error) {
	in.running.Lock()
	defer in.running.Unlock()
	var all []engine.Stats
	for left := calls; left > 0; left -= batch {
		n := min(left, batch)
		if err := in.hold(time.Duration(n) * hostLead); err != nil {
			return nil, err
		}
		stats, err := in.calls(ctx, n, func(int) error { return in.barrier(ctx) })
		if err != nil {
			return nil, err
		}
		all = append(all, stats...)
	}
	return all, nil
}

func (in *instance) hold(d time.Duration) error {
	var e C.mk_error
	return in.check(C.mkrun_call_mk_stream_hold(in.lib, in.context, in.stream, C.uint64_t(d.Nanoseconds()), &e), &e)
}

// calls queues calls, each behind what before puts there, and waits for the device.
func (in *instance) calls(ctx context.Context, n int, before func(int) error) ([]engine.Stats, error) {
	stop := context.AfterFunc(ctx, func() { in.Abort(context.Cause(ctx)) })
	defer stop()
	if err := in.aborted(); err != nil {
		return nil, err
	}
	if err := in.makeEvents(2 * n); err != nil {
		return nil, err
	}
	stats := make([]engine.Stats, n)
	var e C.mk_error
	for i := range stats {
		if err := before(i); err != nil {
			return nil, in.fail(err)
		}
		if err := in.record(2 * i); err != nil {
			return nil, in.fail(err)
		}
		start := time.Now()
		code := C.mkrun_call_mk_ag_gemm_launch(in.lib, in.op, &in.args, &in.config, in.stream, &e)
		stats[i].Host = time.Since(start)
		if err := in.check(code, &e); err != nil {
			return nil, in.fail(err)
		}
		if err := in.record(2*i + 1); err != nil {
			return nil, in.fail(err)
		}
	}
	if err := in.check(C.mkrun_call_mk_stream_synchronize(in.lib, in.context, in.stream, &e), &e); err != nil {
		return nil, in.fail(err)
	}
	if err := in.aborted(); err != nil {
		return nil, err
	}
	if err := in.failure(); err != nil {
		return nil, in.fail(err)
	}
	return stats, in.fail(in.fillStats(stats))
}

// fail aborts the instance on an error, so that nothing waits for it any more.
func (in *instance) fail(err error) error {
	if err == nil {
		return nil
	}
	in.Abort(err)
	return in.aborted()
}

func (in *instance) makeEvents(n int) error {
	var e C.mk_error
	for len(in.events) < n {
		var event *C.mk_event
		if err := in.check(C.mkrun_call_mk_event_create(in.lib, in.context, &event, &e), &e); err != nil {
			return err
		}
		in.events = append(in.events, event)
	}
	return nil
}

func (in *instance) record(event int) error {
	var e C.mk_error
	return in.check(C.mkrun_call_mk_event_record(in.lib, in.context, in.events[event], in.stream, &e), &e)
}

// fillStats adds the device's times to calls that are done, and the waits of the last one to all.
func (in *instance) fillStats(stats []engine.Stats) error {
	var e C.mk_error
	for i := range stats {
		var ms C.float
		if err := in.check(C.mkrun_call_mk_event_elapsed(in.lib, in.context, in.events[2*i], in.events[2*i+1], &ms, &e), &e); err != nil {
			return fmt.Errorf("time of a call: %w", err)
		}
		stats[i].Time = time.Duration(float64(ms) * float64(time.Millisecond))
		stats[i].IntraBytes, stats[i].InterBytes = in.moved()
	}
	waits := C.mk_ag_gemm_waits{size: C.sizeof_mk_ag_gemm_waits, version: C.MK_VERSION}
	if err := in.check(C.mkrun_call_mk_ag_gemm_waited(in.lib, in.op, &waits, &e), &e); err != nil {
		return fmt.Errorf("waiting times: %w", err)
	}
	last := &stats[len(stats)-1]
	last.Launches = int(waits.launches)
	for role, cycles := range waits.mean {
		if who, known := waiters[C.uint32_t(role)]; known && waits.life > 0 {
			last.Waited[who.role] += time.Duration(float64(last.Time) * float64(cycles) / float64(waits.life))
		}
	}
	for i := range stats {
		stats[i].Waited, stats[i].Launches = last.Waited, last.Launches
	}
	return nil
}

// moved is what a call writes to ranks of this node and of others.
func (in *instance) moved() (intra, inter int64) {
	size := in.cfg.DType.Size()
	for _, queue := range in.cfg.Plan.Ranks[in.cfg.Rank].Queues {
		for i := range queue {
			switch t := &queue[i]; t.Kind {
			case plan.Copy:
				intra += t.Dst.Elements(in.cfg.Shape) * size
			case plan.Send:
				inter += t.Dst.Elements(in.cfg.Shape) * size
			}
		}
	}
	return intra, inter
}
