//go:build cgo

package measure

// #cgo CFLAGS: -I${SRCDIR}/../../cuda/include
// #cgo linux LDFLAGS: -ldl
// #include <stdlib.h>
// #include "bridge.h"
import "C"

import (
	"encoding/hex"
	"errors"
	"fmt"
	"unsafe"

	"github.com/mkrun/mkrun/internal/dataplane"
	"github.com/mkrun/mkrun/internal/topology"
)

// library is the data plane library, open.
type library struct {
	c *C.mkrun_meter // in C memory; as long as the process
}

func open(path string) (topology.Meter, error) {
	if path == "" {
		var err error
		if path, err = dataplane.Find(); err != nil {
			return nil, fmt.Errorf("no CUDA data plane to measure with: %w", err)
		}
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	l := &library{c: (*C.mkrun_meter)(C.calloc(1, C.sizeof_mkrun_meter))}
	var why [512]C.char
	if C.mkrun_meter_open(name, l.c, &why[0], C.size_t(len(why))) != 0 {
		C.free(unsafe.Pointer(l.c))
		return nil, fmt.Errorf("the CUDA data plane %s cannot be used: %s", path, C.GoString(&why[0]))
	}
	return l, nil
}

func check(code C.int, e *C.mk_error) error {
	if code == C.MK_OK {
		return nil
	}
	return errors.New(C.GoString(&e.text[0]))
}

// UUIDs implements topology.Meter.
func (l *library) UUIDs() ([]string, error) {
	var e C.mk_error
	var count C.int32_t
	if err := check(C.mkrun_device_count(l.c, &count, &e), &e); err != nil {
		return nil, err
	}
	uuids := make([]string, 0, count)
	for i := range count {
		var info C.mk_device_info
		if err := check(C.mkrun_device_query(l.c, i, &info, &e), &e); err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		h := hex.EncodeToString(C.GoBytes(unsafe.Pointer(&info.uuid[0]), C.int(len(info.uuid))))
		uuids = append(uuids, fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:]))
	}
	return uuids, nil
}

// Pair implements topology.Meter.
func (l *library) Pair(a, b int) ([2]topology.MeasuredPath, error) {
	var e C.mk_error
	var paths [2]C.mk_measure_path
	var out [2]topology.MeasuredPath
	err := check(C.mkrun_pair(l.c, C.int32_t(a), C.int32_t(b), &paths[0], &e), &e)
	for i, p := range paths {
		out[i] = topology.MeasuredPath{
			Direct: p.direct != 0, CopyGBs: float64(p.copy_gbs), BothGBs: float64(p.both_gbs), StoreGBs: float64(p.store_gbs),
			LoadUS: float64(p.load_us), SignalUS: float64(p.signal_us),
			Words: uint64(p.words), WrongCopy: uint64(p.wrong_copy), WrongStore: uint64(p.wrong_store), WrongLoad: uint64(p.wrong_load),
		}
	}
	return out, err
}

// HostLink implements topology.Meter.
func (l *library) HostLink(gpu int) (topology.MeasuredHost, error) {
	var e C.mk_error
	var h C.mk_measure_host
	err := check(C.mkrun_host_link(l.c, C.int32_t(gpu), &h, &e), &e)
	return topology.MeasuredHost{
		ToDeviceGBs: float64(h.to_device_gbs), ToHostGBs: float64(h.to_host_gbs),
		BothToDeviceGBs: float64(h.both_to_device_gbs), BothToHostGBs: float64(h.both_to_host_gbs), SignalUS: float64(h.signal_us),
		Words: uint64(h.words), WrongToDevice: uint64(h.wrong_to_device), WrongToHost: uint64(h.wrong_to_host),
	}, err
}
