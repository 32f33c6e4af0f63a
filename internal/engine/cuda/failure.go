//go:build cgo

package cuda

// #include "bridge.h"
import "C"

import (
	"errors"
	"fmt"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// waiters says who waits inside a kernel, by mk_wait_role: in which role of the plan, and doing what.
var waiters = map[C.uint32_t]struct {
	role plan.Role
	task string
}{
	C.MK_WAIT_PRODUCER: {plan.RoleCompute, "loading operands"},
	C.MK_WAIT_PUSH:     {plan.RoleIntra, "pushing to a peer"},
	C.MK_WAIT_CREDIT:   {plan.RoleIntra, "copying to a peer by copy engine"},
	C.MK_WAIT_SUM:      {plan.RoleCompute, "adding the parts of a split tile"},
	C.MK_WAIT_SEND:     {plan.RoleSend, "sending to another node"},
	C.MK_WAIT_NOTICE:   {plan.RoleSend, "returning credits"},
}

// failure says why the kernels gave up: the record of this rank's first wait that ran out of time, or that another rank
// has stopped all. It is nil if they did not.
func (in *instance) failure() error {
	record := C.mk_wait_record{size: C.sizeof_mk_wait_record, version: C.MK_VERSION}
	var e C.mk_error
	err := in.check(C.mkrun_call_mk_ag_gemm_status(in.lib, in.op, &record, &e), &e)
	if refused := (*Error)(nil); !errors.As(err, &refused) || refused.Code != CodeAborted {
		return err
	}
	if record.valid == 0 {
		return &engine.PeerError{Rank: in.cfg.Rank, Peer: -1, Err: err}
	}
	who, known := waiters[record.role]
	w := &engine.WaitError{
		Rank: in.cfg.Rank, Role: "sync", Task: fmt.Sprintf("CTA %d", record.cta), Flag: "barrier",
		Seen: uint64(record.seen), Wanted: uint64(record.wanted), Signals: "another rank", After: in.cfg.WaitTimeout.Round(time.Millisecond),
	}
	if known {
		w.Role, w.Task = who.role.String(), fmt.Sprintf("CTA %d, %s", record.cta, who.task)
	}
	p := in.cfg.Plan
	switch flag := int(record.flag); {
	case record.role == C.MK_WAIT_BARRIER && int(record.block) < p.World.Size():
		w.Task, w.Signals, w.Owing = "barrier on the devices", fmt.Sprintf("rank %d", record.block), []int{int(record.block)}
	case record.flag != C.MK_NO_FLAG && flag < len(p.Flags):
		w.Flag, w.Signals = p.Flags[flag].Name, p.Owes(in.cfg.Rank, plan.FlagID(flag))
		w.Owing = p.Owing(in.cfg.Rank, plan.FlagID(flag))
	case record.role == C.MK_WAIT_SUM:
		w.Flag, w.Signals = fmt.Sprintf("sums at heap offset %d", record.flag_offset), "another CTA of this rank"
	}
	return w
}
