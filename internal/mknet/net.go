//go:build cgo

package mknet

// #cgo CFLAGS: -I${SRCDIR}/../../cuda/include
// #cgo linux LDFLAGS: -ldl
// #include <stdlib.h>
// #include "bridge.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/mkrun/mkrun/internal/dataplane"
)

// Net is a rank's network.
type Net struct {
	b    *C.bridge
	c    *C.mknet
	fifo *C.mknet_fifo

	mu     sync.RWMutex // calls from any thread hold it for reading, Close for writing
	closed bool
}

var (
	loadOnce sync.Once
	loaded   *C.bridge // in C memory
	errLoad  error
)

func load() (*C.bridge, error) {
	loadOnce.Do(func() {
		path, err := Find()
		if err != nil {
			errLoad = err
			return
		}
		loaded, errLoad = open(path)
	})
	return loaded, errLoad
}

// open loads one file. It stays in memory, also when it is refused.
func open(path string) (*C.bridge, error) {
	if err := dataplane.Whole(path); err != nil {
		return nil, fmt.Errorf("%s cannot be used: %w", path, err)
	}
	b := (*C.bridge)(C.malloc(C.sizeof_bridge))
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	if C.bridge_open(name, b, &why[0], C.size_t(len(why))) != 0 {
		C.free(unsafe.Pointer(b))
		return nil, fmt.Errorf("%s cannot be used: %s", path, C.GoString(&why[0]))
	}
	return b, nil
}

// check turns the result of a call into an error.
func check(code C.int, e *C.mknet_error) error {
	if code == C.MKNET_OK {
		return nil
	}
	return errors.New(C.GoString(&e.text[0]))
}

// texts are C strings that live as long as a call.
type texts []unsafe.Pointer

func (t *texts) c(s string) *C.char {
	if s == "" {
		return nil
	}
	p := C.CString(s)
	*t = append(*t, unsafe.Pointer(p))
	return p
}

func (t *texts) free() {
	for _, p := range *t {
		C.free(p)
	}
}

// describe fills a description in C memory, since it holds pointers; t keeps its texts.
func (o *Options) describe(t *texts) *C.mknet_desc {
	d := (*C.mknet_desc)(C.calloc(1, C.sizeof_mknet_desc))
	*t = append(*t, unsafe.Pointer(d))
	d.size, d.version = C.sizeof_mknet_desc, C.MKNET_VERSION
	d.backend = t.c(o.Backend)
	d.rank, d.world = C.int32_t(o.Rank), C.int32_t(o.World)
	d.job = C.uint64_t(o.Job)
	d.timeout_ns = C.uint64_t(o.Timeout.Nanoseconds())
	d.cpus = t.c(o.CPUs)
	d.rails = t.c(o.Rails)
	d.emu.bandwidth = C.double(o.Emu.Bandwidth)
	d.emu.latency_ns = C.uint64_t(o.Emu.Latency.Nanoseconds())
	d.emu.jitter_ns = C.uint64_t(o.Emu.Jitter.Nanoseconds())
	d.emu.nics = C.uint32_t(o.Emu.NICs)
	if o.Emu.Unordered {
		d.emu.unordered = 1
	}
	d.emu.piece = C.uint32_t(o.Emu.Piece)
	d.emu.seed = C.uint64_t(o.Emu.Seed)
	d.emu.drop_after = C.uint64_t(o.Emu.DropAfter)
	d.rdma.devices = t.c(o.RDMA.Devices)
	d.rdma.library = t.c(o.RDMA.Library)
	d.rdma.efa_home = t.c(o.RDMA.EFAHome)
	d.rdma.gid = C.uint32_t(o.RDMA.GID)
	d.rdma.qps = C.uint32_t(o.RDMA.QueuePairs)
	d.rdma.traffic_class = C.uint32_t(o.RDMA.TrafficClass)
	d.rdma.timeout = C.uint32_t(o.RDMA.Timeout)
	d.rdma.retries = C.uint32_t(o.RDMA.Retries)
	d.rdma.mtu = C.uint32_t(o.RDMA.MTU)
	d.rdma.service_level = C.uint32_t(o.RDMA.ServiceLevel)
	d.rdma.rnr_retries = C.uint32_t(o.RDMA.RNRRetries)
	if o.RDMA.Relaxed {
		d.rdma.relaxed = 1
	}
	d.ofi.provider = t.c(o.OFI.Provider)
	d.ofi.devices = t.c(o.OFI.Devices)
	d.ofi.address = t.c(o.OFI.Address)
	d.ofi.library = t.c(o.OFI.Library)
	d.ofi.first_port, d.ofi.last_port = C.uint32_t(o.OFI.FirstPort), C.uint32_t(o.OFI.LastPort)
	if o.OFI.Hardware {
		d.ofi.hardware = 1
	}
	return d
}

// Native is the options as an mknet_desc, for others who speak C; free gives it back.
func (o *Options) Native() (desc unsafe.Pointer, free func()) {
	t := &texts{}
	d := o.describe(t)
	return unsafe.Pointer(d), t.free
}

// Usable tells what a backend would use here, or why it cannot be used.
func Usable(o Options) (string, error) {
	b, err := load()
	if err != nil {
		return "", err
	}
	var t texts
	defer t.free()
	var text [4096]C.char
	var e C.mknet_error
	err = check(C.bridge_usable(b, o.describe(&t), &text[0], C.uint64_t(len(text)), &e), &e)
	return C.GoString(&text[0]), err
}

// Open opens a rank's NICs.
func Open(o Options) (*Net, error) {
	b, err := load()
	if err != nil {
		return nil, err
	}
	var t texts
	defer t.free()
	n := &Net{b: b}
	var e C.mknet_error
	if err := check(C.bridge_create(b, o.describe(&t), &n.c, &e), &e); err != nil {
		return nil, err
	}
	n.fifo = C.bridge_queue(b, n.c)
	return n, nil
}

// Register registers memory that is not Go's; the first is the heap. file, if any, is its memfd, with the memory at its
// beginning.
func (n *Net) Register(mem []byte, file *os.File) (region uint8, err error) {
	r := (*C.mknet_range)(C.calloc(1, C.sizeof_mknet_range))
	defer C.free(unsafe.Pointer(r))
	r.size, r.version = C.sizeof_mknet_range, C.MKNET_VERSION
	r.base = unsafe.Pointer(unsafe.SliceData(mem))
	r.bytes = C.uint64_t(len(mem))
	r.fd = -1
	if file != nil {
		r.fd = C.int32_t(file.Fd())
	}
	var number C.uint32_t
	var e C.mknet_error
	err = check(C.bridge_register(n.b, n.c, r, &number, &e), &e)
	return uint8(number), err
}

// Endpoint is what all ranks may know (peer -1), or only one peer.
func (n *Net) Endpoint(peer int) ([]byte, error) {
	var e C.mknet_error
	var length C.uint64_t
	if err := check(C.bridge_endpoint(n.b, n.c, C.int32_t(peer), nil, &length, &e), &e); err != nil {
		return nil, err
	}
	blob := make([]byte, length)
	err := check(C.bridge_endpoint(n.b, n.c, C.int32_t(peer), unsafe.Pointer(unsafe.SliceData(blob)), &length, &e), &e)
	return blob, err
}

// Connect connects to a peer by its endpoint data.
func (n *Net) Connect(peer int, common, own []byte) error {
	var e C.mknet_error
	return check(C.bridge_connect(n.b, n.c, C.int32_t(peer), unsafe.Pointer(unsafe.SliceData(common)), C.uint64_t(len(common)),
		unsafe.Pointer(unsafe.SliceData(own)), C.uint64_t(len(own)), &e), &e)
}

// Start starts the proxy thread. All ranks must have connected.
func (n *Net) Start() error {
	var e C.mknet_error
	return check(C.bridge_start(n.b, n.c, &e), &e)
}

// Verify sends a probe over every connection and waits for those of the peers.
func (n *Net) Verify(timeout time.Duration) error {
	var e C.mknet_error
	return check(C.bridge_verify(n.b, n.c, C.uint64_t(timeout.Nanoseconds()), &e), &e)
}

// Drain waits until all commands are complete.
func (n *Net) Drain(timeout time.Duration) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return errClosed
	}
	var e C.mknet_error
	return check(C.bridge_drain(n.b, n.c, C.uint64_t(timeout.Nanoseconds()), &e), &e)
}

// Abort ends all work; later calls give the reason.
func (n *Net) Abort(reason string) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return
	}
	text := C.CString(reason)
	defer C.free(unsafe.Pointer(text))
	C.bridge_abort(n.b, n.c, text)
}

// Status waits for up to a time for the network to end, and says why it did; nil if it works.
func (n *Net) Status(wait time.Duration) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return errClosed
	}
	var e C.mknet_error
	return check(C.bridge_status(n.b, n.c, C.uint64_t(wait.Nanoseconds()), &e), &e)
}

// Describe is one line about NICs, link and registration.
func (n *Net) Describe() string {
	var text [4096]C.char
	var e C.mknet_error
	C.bridge_describe(n.b, n.c, &text[0], C.uint64_t(len(text)), &e)
	return C.GoString(&text[0])
}

// Close ends the network. Registered memory may be freed afterwards.
func (n *Net) Close() error {
	n.Abort("the network is closed")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	var e C.mknet_error
	return check(C.bridge_destroy(n.b, n.c, &e), &e)
}

var errClosed = errors.New("the network is closed")
