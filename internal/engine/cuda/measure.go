//go:build cgo

package cuda

// #include "bridge.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/mkrun/mkrun/internal/topology"
)

// A Library is a topology.Meter: it measures the links of the GPUs that this process sees.
var _ topology.Meter = (*Library)(nil)

// UUIDs implements topology.Meter.
func (l *Library) UUIDs() ([]string, error) {
	devices, err := l.Devices()
	if err != nil {
		return nil, err
	}
	uuids := make([]string, 0, len(devices))
	for _, d := range devices {
		uuids = append(uuids, d.UUID)
	}
	return uuids, nil
}

// Pair implements topology.Meter.
func (l *Library) Pair(a, b int) ([2]topology.MeasuredPath, error) {
	var e C.mk_error
	var paths [2]C.mk_measure_path
	var out [2]topology.MeasuredPath
	err := check(C.mkrun_call_mk_measure_pair(l.c, C.int32_t(a), C.int32_t(b), &paths[0], &e), &e)
	for i, p := range paths {
		out[i] = topology.MeasuredPath{
			Direct: p.direct != 0, CopyGBs: float64(p.copy_gbs), BothGBs: float64(p.both_gbs), StoreGBs: float64(p.store_gbs),
			LoadUS: float64(p.load_us), SignalUS: float64(p.signal_us),
			Words: uint64(p.words), WrongCopy: uint64(p.wrong_copy), WrongStore: uint64(p.wrong_store), WrongLoad: uint64(p.wrong_load),
		}
	}
	return out, err
}

// FanOut implements topology.Meter.
func (l *Library) FanOut(gpus []int, cases []topology.MeasuredFan) ([]topology.MeasuredFan, error) {
	var e C.mk_error
	devices := make([]C.int32_t, len(gpus))
	for i, g := range gpus {
		devices[i] = C.int32_t(g)
	}
	fans := make([]C.mk_measure_fan, len(cases))
	for i, c := range cases {
		fans[i] = C.mk_measure_fan{
			size: C.sizeof_mk_measure_fan, version: C.MK_VERSION,
			sources: C.int32_t(c.Sources), peers: C.int32_t(c.Peers), ctas: C.int32_t(c.CTAs), depth: C.int32_t(c.Depth),
		}
	}
	code := C.mkrun_call_mk_measure_fan_out(l.c, unsafe.SliceData(devices), C.int32_t(len(devices)), unsafe.SliceData(fans), C.int32_t(len(fans)), &e)
	if err := check(code, &e); err != nil {
		return nil, err
	}
	out := slices.Clone(cases)
	for i, f := range fans {
		out[i].GBs, out[i].Words, out[i].Wrong = float64(f.gbs), uint64(f.words), uint64(f.wrong)
	}
	return out, nil
}

// HostLink implements topology.Meter.
func (l *Library) HostLink(gpu int) (topology.MeasuredHost, error) {
	var e C.mk_error
	var h C.mk_measure_host
	err := check(C.mkrun_call_mk_measure_host_link(l.c, C.int32_t(gpu), &h, &e), &e)
	return topology.MeasuredHost{
		ToDeviceGBs: float64(h.to_device_gbs), ToHostGBs: float64(h.to_host_gbs),
		BothToDeviceGBs: float64(h.both_to_device_gbs), BothToHostGBs: float64(h.both_to_host_gbs), SignalUS: float64(h.signal_us),
		Words: uint64(h.words), WrongToDevice: uint64(h.wrong_to_device), WrongToHost: uint64(h.wrong_to_host),
	}, err
}
