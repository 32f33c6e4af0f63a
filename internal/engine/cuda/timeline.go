//go:build cgo

package cuda

// #include "bridge.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/mkrun/mkrun/internal/engine"
)

// lanes and kinds are the words for mk_timeline_lane and mk_timeline_kind.
var (
	lanes = [C.MK_TIMELINE_LANES]string{
		C.MK_LANE_LOAD: "loads", C.MK_LANE_PUSH: "pushes", C.MK_LANE_MULTIPLY_0: "multiplies, first group", C.MK_LANE_MULTIPLY_1: "multiplies, second group",
	}
	kinds = [C.MK_EVENT_KINDS]string{
		C.MK_EVENT_LOAD: "load", C.MK_EVENT_WAIT: "wait for rows", C.MK_EVENT_MULTIPLY: "multiply", C.MK_EVENT_STORE: "store",
		C.MK_EVENT_CREDIT: "wait for credit", C.MK_EVENT_PUSH: "push",
	}
)

// mostEvents is the room for a rank's events: all that the kernel keeps.
const mostEvents = 256 * C.MK_TIMELINE_LANES * 2048

// Record implements engine.Recorder.
func (in *instance) Record(ctx context.Context) (engine.Timeline, error) {
	in.running.Lock()
	defer in.running.Unlock()
	if err := in.aborted(); err != nil {
		return engine.Timeline{}, err
	}
	stop := context.AfterFunc(ctx, func() { in.Abort(context.Cause(ctx)) })
	defer stop()
	defer in.during(ctx)()
	events := make([]C.mk_timeline_event, mostEvents)
	var count, lost C.uint64_t
	var e C.mk_error
	code := C.mkrun_call_mk_ag_gemm_timeline(in.lib, in.op, &in.args, &in.config, in.stream, unsafe.SliceData(events), C.uint64_t(len(events)), &count, &lost, &e)
	if err := in.check(code, &e); err != nil {
		return engine.Timeline{}, in.fail(fmt.Errorf("recording a call: %w", err))
	}
	if err := errors.Join(in.aborted(), in.failure()); err != nil {
		return engine.Timeline{}, in.fail(err)
	}
	t := engine.Timeline{Lost: uint64(lost)}
	for _, v := range events[:min(count, mostEvents)] {
		if int(v.lane) >= len(lanes) || int(v.kind) >= len(kinds) {
			return engine.Timeline{}, fmt.Errorf("the library recorded lane %d, kind %d, which this mkrun does not know", v.lane, v.kind)
		}
		t.Spans = append(t.Spans, engine.Span{
			Worker: int(v.cta), Thread: lanes[v.lane], Kind: kinds[v.kind], What: int(v.what), Start: time.Duration(v.start), End: time.Duration(v.end),
		})
	}
	return t, nil
}
