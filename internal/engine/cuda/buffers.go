//go:build cgo

package cuda

// #include "bridge.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"unsafe"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

type pinner = runtime.Pinner

// pitch is what leading dimensions are multiples of, in elements: 16 bytes, for the kernels' tensor maps.
const pitch = 8

// layout lists the caller's buffers of a rank, not yet allocated.
func layout(cfg engine.Config) ([]*matrix, error) {
	var list []*matrix
	size := cfg.Plan.World.Size()
	for i := range cfg.Plan.Buffers {
		b := &cfg.Plan.Buffers[i]
		if b.InHeap() {
			continue
		}
		m := &matrix{name: b.Name, kind: b.Kind, rows: b.RowSpan(cfg.Rank, size).Len(cfg.Shape), cols: cfg.Shape.Of(b.Cols)}
		m.ld = (m.cols + pitch - 1) / pitch * pitch
		m.packed = m.ld == m.cols
		hi, lo := bits.Mul64(uint64(m.rows), uint64(m.ld)*uint64(cfg.DType.Size()))
		if hi != 0 || lo > math.MaxInt64 || m.ld < m.cols {
			return nil, fmt.Errorf("buffer %s of %d x %d has more bytes than 64-bit sizes can count", b.Name, m.rows, m.cols)
		}
		m.bytes = int64(lo)
		list = append(list, m)
	}
	return list, nil
}

// describe is what the library is told of an operator; the plan's image stays where it is until unpinned.
func describe(cfg *engine.Config, image []byte) (C.mk_ag_gemm_desc, *pinner) {
	pin := new(pinner)
	pin.Pin(&image[0])
	return C.mk_ag_gemm_desc{
		size: C.sizeof_mk_ag_gemm_desc, version: C.MK_VERSION,
		plan: unsafe.Pointer(&image[0]), plan_bytes: C.uint64_t(len(image)),
		max_m: C.int64_t(cfg.Shape.M), max_k: C.int64_t(cfg.Shape.K),
	}, pin
}

// contextBytes is what a CUDA context, the loaded kernels and the operator's scratch take beside heap and buffers: about
// 500 MiB on an H200.
const contextBytes = 768 << 20

// DeviceMemory is the number of bytes of GPU memory that Open takes for a rank. Of cfg it needs Rank, Plan, Shape and DType. It
// needs no GPU.
func (l *Library) DeviceMemory(cfg engine.Config) (int64, error) {
	image, err := cfg.Plan.EncodeRank(cfg.Rank)
	if err != nil {
		return 0, err
	}
	desc, pin := describe(&cfg, image)
	defer pin.Unpin()
	return deviceMemory(l.c, &cfg, &desc)
}

func deviceMemory(lib *C.mkrun_library, cfg *engine.Config, desc *C.mk_ag_gemm_desc) (int64, error) {
	matrices, err := layout(*cfg)
	if err != nil {
		return 0, err
	}
	var e C.mk_error
	var heap C.uint64_t
	if err := check(C.mkrun_call_mk_ag_gemm_heap_bytes(lib, desc, &heap, &e), &e); err != nil {
		return 0, err
	}
	need := uint64(heap) + contextBytes
	for _, m := range matrices {
		if need += uint64(m.bytes); need > math.MaxInt64 {
			return 0, errors.New("the buffers overflow 64-bit sizes")
		}
	}
	return int64(need), nil
}

// checkMemory refuses what the GPU has no memory for now, before anything is allocated.
func (in *instance) checkMemory(desc *C.mk_ag_gemm_desc) error {
	need, err := deviceMemory(in.lib, &in.cfg, desc)
	if err != nil {
		return err
	}
	var e C.mk_error
	var available C.uint64_t
	if err := check(C.mkrun_call_mk_device_free_bytes(in.lib, C.int32_t(in.cfg.Device), &available, &e), &e); err != nil {
		return err
	}
	if uint64(need) > uint64(available) {
		s := in.cfg.Shape
		return fmt.Errorf("not enough GPU memory: a rank needs %.1f GiB for M=%d N=%d K=%d, and its GPU has %.1f GiB free",
			gib(need), s.M, s.N, s.K, gib(int64(available)))
	}
	return nil
}

func gib(n int64) float64 { return float64(n) / (1 << 30) }

// fillArgs tells a launch where the operands are.
func (in *instance) fillArgs() {
	s := in.cfg.Shape
	in.args = C.mk_ag_gemm_args{
		size: C.sizeof_mk_ag_gemm_args, version: C.MK_VERSION,
		m: C.int64_t(s.M), n: C.int64_t(s.N), k: C.int64_t(s.K),
		element: element(in.cfg.DType),
	}
	for _, m := range in.matrices {
		switch m.name {
		case "a":
			in.args.a, in.args.lda = m.at, C.int64_t(m.ld)
		case "b":
			in.args.b, in.args.ldb = m.at, C.int64_t(m.ld)
		case "c":
			in.args.c, in.args.ldc = m.at, C.int64_t(m.ld)
		}
	}
}

func element(d engine.DType) C.int32_t {
	if d == engine.FP16 {
		return C.MK_F16
	}
	return C.MK_BF16
}

// buffer finds a buffer of the rank.
func (in *instance) buffer(name string, kind plan.BufferKind) (*matrix, error) {
	for _, m := range in.matrices {
		if m.name == name && m.kind == kind {
			return m, nil
		}
	}
	return nil, fmt.Errorf("operator %s has no %v buffer %q", in.cfg.Plan.Operator, kind, name)
}

// SetInput implements engine.Instance.
func (in *instance) SetInput(name string, elements []uint16) error {
	in.running.Lock()
	defer in.running.Unlock()
	m, err := in.buffer(name, plan.BufInput)
	if err != nil {
		return err
	}
	if int64(len(elements)) != m.rows*m.cols {
		return fmt.Errorf("input %s of rank %d has %d elements, got %d", name, in.cfg.Rank, m.rows*m.cols, len(elements))
	}
	if len(elements) == 0 {
		return nil
	}
	if !m.packed {
		return fmt.Errorf("input %s has rows of %d elements, which is not a multiple of %d", name, m.cols, pitch)
	}
	return in.copy(m.at, unsafe.Pointer(&elements[0]), m.bytes)
}

// Poison implements engine.Instance. All bits set are a NaN in each of the types.
func (in *instance) Poison(name string) error {
	in.running.Lock()
	defer in.running.Unlock()
	m, err := in.buffer(name, plan.BufOutput)
	if err != nil || m.bytes == 0 {
		return err
	}
	var e C.mk_error
	return in.check(C.mkrun_call_mk_fill(in.lib, in.context, m.at, 0xff, C.uint64_t(m.bytes), in.stream, &e), &e)
}

// Output implements engine.Instance.
func (in *instance) Output(name string) ([]uint16, error) {
	in.running.Lock()
	defer in.running.Unlock()
	m, err := in.buffer(name, plan.BufOutput)
	if err != nil || m.bytes == 0 {
		return nil, err
	}
	out := make([]uint16, m.rows*m.ld)
	if err := in.copy(unsafe.Pointer(&out[0]), m.at, m.bytes); err != nil {
		return nil, err
	}
	if m.packed {
		return out, nil
	}
	for row := int64(1); row < m.rows; row++ {
		copy(out[row*m.cols:(row+1)*m.cols], out[row*m.ld:row*m.ld+m.cols])
	}
	return out[:m.rows*m.cols], nil
}

func (in *instance) copy(to, from unsafe.Pointer, bytes int64) error {
	var e C.mk_error
	return in.check(C.mkrun_call_mk_copy(in.lib, in.context, to, from, C.uint64_t(bytes), in.stream, &e), &e)
}
