//go:build cgo

// Package cuda executes plans on NVIDIA GPUs: it opens the data plane (libmkernel.so) at run time and drives one rank
// through its C interface, cuda/include/mkernel.h. Nothing of CUDA is linked, so one mkrun serves machines with and
// without it; a build without cgo has no CUDA engine and says so.
//
//	library.go    the library: opening it, what GPUs it sees
//	bridge.*      calls through its function pointers, for cgo
//	allgather.go  the all-gather among ranks that it calls back
//	engine.go     opening and closing a rank
//	run.go        calls and their times
//	device.go     which rank gets which GPU
//	failure.go    what its records say, in the plan's words
//	settings.go   from settings of mkrun to those of the library
package cuda

// #include "bridge.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime/cgo"
	"sync"
	"unsafe"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/mknet"
	"github.com/mkrun/mkrun/internal/plan"
)

// Engine opens ranks on GPUs.
type Engine struct{ lib *Library }

// New opens the data plane, as OpenLibrary does.
func New(path string) (*Engine, error) {
	lib, err := OpenLibrary(path)
	if err != nil {
		return nil, err
	}
	return &Engine{lib}, nil
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return "cuda" }

// matrix is a buffer of the rank in device memory, row-major.
type matrix struct {
	name           string
	kind           plan.BufferKind
	rows, cols, ld int64
	at             unsafe.Pointer // nil if there are no elements
	bytes          int64
	packed         bool // rows follow one another without a gap
}

// instance is one rank's open operator.
type instance struct {
	lib      *C.mkrun_library
	cfg      engine.Config
	boot     *gatherer
	handle   cgo.Handle
	life     context.Context // ends at abort or close, with the reason
	kill     context.CancelCauseFunc
	context  *C.mk_context
	stream   C.mk_stream
	op       *C.mk_ag_gemm
	args     C.mk_ag_gemm_args
	config   C.mk_ag_gemm_config
	matrices []*matrix
	events   []*C.mk_event // of timed calls: a start and an end for each

	running sync.Mutex // held by everything but Abort
	closing sync.Once
	mu      sync.Mutex // guards op against an Abort, which may come at any time
}

var errClosed = errors.New("the instance is closed")

// Open implements engine.Engine. It fails, before any kernel runs, when the GPU or its memory is not enough, when ranks
// were given different plans, or when a peer does not answer before ctx or Config.WaitTimeout ends.
func (e *Engine) Open(ctx context.Context, cfg engine.Config) (engine.Instance, error) {
	in, err := e.prepare(cfg)
	if err != nil {
		return nil, err
	}
	defer in.during(ctx)()
	if err := in.open(); err != nil {
		in.Abort(err)
		return nil, errors.Join(fmt.Errorf("opening the cuda engine: %w", err), in.Close())
	}
	return in, nil
}

func (e *Engine) prepare(cfg engine.Config) (*instance, error) {
	if cfg.Plan == nil || cfg.Bootstrap == nil {
		return nil, errors.New("a plan and a bootstrap are needed")
	}
	if err := Supports(cfg.Plan.Operator); err != nil {
		return nil, err
	}
	size := cfg.Plan.World.Size()
	if cfg.Rank < 0 || cfg.Rank >= size {
		return nil, fmt.Errorf("rank %d is not in a world of %d ranks", cfg.Rank, size)
	}
	if cfg.WaitTimeout <= 0 {
		return nil, errors.New("the wait time-out must be positive: every wait is bounded")
	}
	in := &instance{lib: e.lib.c, cfg: cfg, boot: &gatherer{boot: cfg.Bootstrap, size: size}}
	var err error
	if in.config, err = libraryConfig(cfg); err != nil {
		return nil, err
	}
	if in.matrices, err = layout(cfg); err != nil {
		return nil, err
	}
	in.life, in.kill = context.WithCancelCause(context.Background())
	in.handle = cgo.NewHandle(in.boot)
	return in, nil
}

func (in *instance) open() error {
	cfg := &in.cfg
	image, err := cfg.Plan.EncodeRank(cfg.Rank)
	if err != nil {
		return err
	}
	desc, pin := describe(cfg, image)
	defer pin.Unpin()
	info, err := query(in.lib, cfg.Device)
	if err != nil {
		return err
	}
	if err := CheckWorkers(cfg.Workers, info.SMs); err != nil {
		return err
	}
	if err := in.checkMemory(&desc); err != nil {
		return err
	}
	var e C.mk_error
	var heap C.uint64_t
	if err := in.check(C.mkrun_call_mk_ag_gemm_heap_bytes(in.lib, &desc, &heap, &e), &e); err != nil {
		return err
	}
	if err := in.makeContext(heap); err != nil {
		return err
	}
	if err := in.check(C.mkrun_call_mk_stream_create(in.lib, in.context, &in.stream, &e), &e); err != nil {
		return err
	}
	for _, m := range in.matrices {
		if err := in.check(C.mkrun_call_mk_allocate(in.lib, in.context, C.uint64_t(m.bytes), &m.at, &e), &e); err != nil {
			return fmt.Errorf("buffer %s: %w", m.name, err)
		}
	}
	var op *C.mk_ag_gemm
	if err := in.check(C.mkrun_call_mk_ag_gemm_create(in.lib, in.context, &desc, &op, &e), &e); err != nil {
		return err
	}
	in.mu.Lock()
	in.op = op
	in.mu.Unlock()
	in.fillArgs()
	// What the library chooses is asked for here, so that what it refuses is refused before a launch.
	if cfg.Shape.M > 0 && cfg.Shape.N > 0 && cfg.Shape.K > 0 {
		return in.check(C.mkrun_call_mk_ag_gemm_choose(in.lib, in.op, &in.args, &in.config, &e), &e)
	}
	return nil
}

func (in *instance) makeContext(heap C.uint64_t) error {
	w := in.cfg.Plan.World
	ranks := make([]C.int32_t, w.Nodes())
	for i, n := range w.PPN {
		ranks[i] = C.int32_t(n)
	}
	args := C.mkrun_context_args{
		rank: C.int32_t(in.cfg.Rank), world: C.int32_t(w.Size()), device: C.int32_t(in.cfg.Device),
		heap_bytes: heap, timeout_ns: C.uint64_t(in.cfg.WaitTimeout.Nanoseconds()),
		nodes: C.int32_t(len(ranks)), bootstrap: C.uintptr_t(in.handle),
		net_bandwidth: C.double(in.cfg.Net.BandwidthGBs * 1e9), net_latency_ns: C.uint64_t(in.cfg.Net.Latency.Nanoseconds()),
	}
	if in.cfg.CUDA.ShareGPUs {
		args.share_gpus = 1
	}
	switch backend := in.cfg.Net.Backend; {
	case len(ranks) == 1:
	case emulated(backend) && !in.cfg.Net.Reorder && !in.cfg.Net.OfEmu(): // all that the link has is said above
		args.network = C.MK_NETWORK_EMU
	default:
		if emulated(backend) {
			backend = NetEmu
		}
		o, err := mknet.OptionsFor(in.cfg, backend, 0)
		if err != nil {
			return err
		}
		o.Emu.Piece = 0 // the library's, also where links keep no order: a copy engine needs microseconds for each, however small
		desc, free := o.Native()
		defer free()
		args.network, args.net = C.MK_NETWORK_NIC, desc
	}
	var pin pinner
	defer pin.Unpin()
	pin.Pin(&ranks[0])
	args.node_ranks = &ranks[0]
	var e C.mk_error
	return in.check(C.mkrun_context_create(in.lib, &args, &in.context, &e), &e)
}

// emulated reports whether the nodes are pretended; whoever asks resolves auto.
func emulated(backend string) bool { return backend == "" || backend == "auto" || backend == NetEmu }

// Network implements engine.Networked.
func (in *instance) Network() (name, why string) {
	if in.cfg.Plan.World.Nodes() == 1 {
		return "none", ""
	}
	if name = in.cfg.Net.Backend; emulated(name) {
		name = NetEmu
	}
	var text [2048]C.char
	var e C.mk_error
	if err := in.check(C.mkrun_call_mk_context_network(in.lib, in.context, &text[0], C.uint64_t(len(text)), &e), &e); err != nil {
		return name, err.Error()
	}
	why = C.GoString(&text[0])
	if rule := in.cfg.NICs.Rule; rule != "" && mknet.ChoosesNear(in.cfg.Net, name) {
		why += "; why these NICs: " + rule
	}
	return name, why
}

// check turns the result of a call into an error; where the ranks could not talk, the reason that only this side knows is added.
func (in *instance) check(code C.int, e *C.mk_error) error {
	err := check(code, e)
	if refused := (*Error)(nil); errors.As(err, &refused) && refused.Code == CodeBootstrap && in.boot.err != nil {
		return fmt.Errorf("%w: %w", err, in.boot.err)
	}
	return err
}

// Abort implements engine.Instance. The first reason stays.
func (in *instance) Abort(reason error) {
	in.kill(reason)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.op != nil {
		var e C.mk_error
		_ = C.mkrun_call_mk_ag_gemm_abort(in.lib, in.op, &e) // kernels leave by themselves when their waits end
	}
}

// aborted is the reason of the abort, or nil.
func (in *instance) aborted() error { return context.Cause(in.life) }

// Close implements engine.Instance. After an abort it does not wait for the peers.
func (in *instance) Close() error {
	var err error
	in.closing.Do(func() {
		broken := in.aborted() != nil
		if broken {
			in.Abort(errClosed) // kernels that wait for peers leave
		}
		in.running.Lock() // until Run has left
		defer in.running.Unlock()
		ctx, cancel := context.WithTimeoutCause(context.Background(), in.cfg.WaitTimeout, fmt.Errorf("no answer for %v", in.cfg.WaitTimeout))
		defer cancel()
		if broken {
			cancel()
		}
		in.boot.ctx = ctx
		if err = in.free(); broken {
			err = nil // what cannot be had any more is no second failure
		}
		in.kill(errClosed)
		in.handle.Delete()
	})
	return err
}

// free gives everything back, in the order that the library wants: what the ranks made together, together.
func (in *instance) free() error {
	var e C.mk_error
	var errs []error
	do := func(code C.int) { errs = append(errs, in.check(code, &e)) }
	in.mu.Lock()
	op := in.op
	in.op = nil
	in.mu.Unlock()
	if op != nil {
		do(C.mkrun_call_mk_ag_gemm_destroy(in.lib, op, &e))
	}
	if in.context == nil {
		return errors.Join(errs...)
	}
	for _, event := range in.events {
		do(C.mkrun_call_mk_event_destroy(in.lib, in.context, event, &e))
	}
	for _, m := range in.matrices {
		if m.at != nil {
			do(C.mkrun_call_mk_free(in.lib, in.context, m.at, &e))
		}
	}
	if in.stream != nil {
		do(C.mkrun_call_mk_stream_destroy(in.lib, in.context, in.stream, &e))
	}
	do(C.mkrun_call_mk_context_destroy(in.lib, in.context, &e))
	in.context = nil
	return errors.Join(errs...)
}
