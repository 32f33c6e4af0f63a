//go:build cgo

package cuda

// #cgo CFLAGS: -I${SRCDIR}/../../../cuda/include
// #cgo linux LDFLAGS: -ldl
// #include <stdlib.h>
// #include "bridge.h"
import "C"

import (
	"encoding/hex"
	"fmt"
	"sync"
	"unsafe"

	"github.com/mkrun/mkrun/internal/dataplane"
)

// ABI is the version of the data plane's C interface that this mkrun was built with.
const ABI = uint32(C.MK_VERSION)

var _ [C.MK_MOST_RANKS]struct{} = [MostRanks]struct{}{} // the same number

// Library is the data plane library, open.
type Library struct {
	Path string
	c    *C.mkrun_library // in C memory: what C is given must not be among Go pointers
}

var (
	libraries   = map[string]*Library{}
	librariesMu sync.Mutex
)

// OpenLibrary opens the data plane library: the file given, or, for "", the one that dataplane.Find finds. Opening it again
// gives the same one; it is never closed. It needs neither a GPU nor a driver.
func OpenLibrary(path string) (*Library, error) {
	if path == "" {
		var err error
		if path, err = dataplane.Find(); err != nil {
			return nil, fmt.Errorf("no CUDA data plane: %w", err)
		}
	}
	librariesMu.Lock()
	defer librariesMu.Unlock()
	if l := libraries[path]; l != nil {
		return l, nil
	}
	if err := dataplane.Whole(path); err != nil {
		return nil, fmt.Errorf("the CUDA data plane %s cannot be used: %w", path, err)
	}
	l := &Library{Path: path, c: (*C.mkrun_library)(C.malloc(C.sizeof_mkrun_library))}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	var version C.uint32_t
	failed := C.mkrun_open(name, l.c, &version, &why[0], C.size_t(len(why))) != 0
	switch {
	case failed:
		return nil, fmt.Errorf("the CUDA data plane %s cannot be used: %s", path, C.GoString(&why[0]))
	case uint32(version) != ABI:
		return nil, fmt.Errorf("the CUDA data plane %s has version %d of the interface, this mkrun speaks version %d: build both from one source (make build cuda)",
			path, version, ABI)
	}
	libraries[path] = l
	return l, nil
}

// check turns the result of a call into an error.
func check(code C.int, e *C.mk_error) error {
	if code == C.MK_OK {
		return nil
	}
	return &Error{Code: Code(code), Text: C.GoString(&e.text[0])}
}

// Devices lists the GPUs that this process sees. A missing or old driver is an Error.
func (l *Library) Devices() ([]Device, error) {
	var e C.mk_error
	var count C.int32_t
	if err := check(C.mkrun_call_mk_device_count(l.c, &count, &e), &e); err != nil {
		return nil, err
	}
	list := make([]Device, 0, count)
	for i := range int(count) {
		d, err := query(l.c, i)
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", i, err)
		}
		list = append(list, d)
	}
	return list, nil
}

// query describes one GPU.
func query(lib *C.mkrun_library, ordinal int) (Device, error) {
	var e C.mk_error
	info := C.mk_device_info{size: C.sizeof_mk_device_info, version: C.MK_VERSION}
	if err := check(C.mkrun_call_mk_device_query(lib, C.int32_t(ordinal), &info, &e), &e); err != nil {
		return Device{}, err
	}
	return Device{
		Ordinal: ordinal, Name: C.GoString(&info.name[0]), UUID: uuid(C.GoBytes(unsafe.Pointer(&info.uuid[0]), C.int(len(info.uuid)))),
		Major: int(info.major), Minor: int(info.minor), SMs: int(info.sms), Cooperative: info.cooperative != 0,
		ClockKHz: int(info.clock_khz), Driver: int(info.driver), Bytes: int64(info.total_bytes),
	}, nil
}

// uuid writes 16 bytes the way NVIDIA's tools do.
func uuid(b []byte) string {
	h := hex.EncodeToString(b)
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// Reaches reports whether kernels on one GPU can use another's memory.
func (l *Library) Reaches(device, peer int) (bool, error) {
	var e C.mk_error
	var yes C.int32_t
	err := check(C.mkrun_call_mk_device_reaches(l.c, C.int32_t(device), C.int32_t(peer), &yes, &e), &e)
	return yes != 0, err
}

// FreeBytes is how much memory a GPU could give now.
func (l *Library) FreeBytes(device int) (int64, error) {
	var e C.mk_error
	var bytes C.uint64_t
	err := check(C.mkrun_call_mk_device_free_bytes(l.c, C.int32_t(device), &bytes, &e), &e)
	return int64(bytes), err
}
