//go:build cgo

package mknet

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	byFD      = 1 // MKNET_BY_FD
	byFutex   = 2 // MKNET_BY_FUTEX
	futexWait = 0 | 128
	patience  = 60 * time.Second // for what must come
)

// as gives memory the type that p points to, which only files with cgo can name.
func as[T any](_ *T, p unsafe.Pointer) *T { return (*T)(p) }

// newFIFO is a network that is nothing but a FIFO, with an eventfd, in memory that does not move; the test is its proxy.
func newFIFO(t *testing.T, capacity int) *Net {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, 1024+capacity*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(fd)
		_ = unix.Munmap(mem)
	})
	n := &Net{}
	n.fifo = as(n.fifo, unsafe.Pointer(unsafe.SliceData(mem)))
	n.fifo.capacity, n.fifo.slots = 1, 1024
	for int(n.fifo.capacity) < capacity {
		n.fifo.capacity *= 2
	}
	word32(&n.fifo.abort).Store(0)
	*(*int32)(unsafe.Pointer(&n.fifo.wake_fd)) = int32(fd)
	return n
}

func push(t *testing.T, n *Net) {
	t.Helper()
	if _, err := n.Push(Command{Rows: 1, Flag: NoFlag}, time.Now().Add(patience)); err != nil {
		t.Error(err)
	}
}

// A producer asks for the wake-up in the way that the proxy says it sleeps, once for all, and not if it does not sleep.
func TestPushWakesAsTheProxySleeps(t *testing.T) {
	for name, tt := range map[string]struct {
		sleeping, wakes uint32
		rings           bool
	}{
		"awake":    {},
		"by fd":    {sleeping: byFD, wakes: 1, rings: true},
		"by futex": {sleeping: byFutex, wakes: 1},
	} {
		n := newFIFO(t, 4)
		word32(&n.fifo.sleeping).Store(tt.sleeping)
		push(t, n)
		push(t, n)
		var count [8]byte
		_, err := unix.Read(int(n.fifo.wake_fd), count[:])
		if sleeping, wakes := word32(&n.fifo.sleeping).Load(), word32(&n.fifo.wakes).Load(); sleeping != 0 || wakes != tt.wakes || (err == nil) != tt.rings {
			t.Errorf("%s: sleeping is %d, wakes %d, the descriptor: %v", name, sleeping, wakes, err)
		}
		if tt.rings && *(*uint64)(unsafe.Pointer(&count)) != 1 {
			t.Errorf("%s: the descriptor counts %v", name, count)
		}
	}
}

// A proxy that sleeps by futex, as fifo.h has it, gets every command of two producers, one of which often waits for room.
func TestPushIsNeverLost(t *testing.T) {
	const rounds = 5000
	n := newFIFO(t, 2)
	f := n.fifo
	var lost atomic.Bool
	var producers sync.WaitGroup
	for range 2 {
		producers.Go(func() {
			for i := range rounds {
				if lost.Load() {
					return
				}
				push(t, n)
				for range i % 30 {
					runtime.Gosched() // so that the proxy sleeps
				}
			}
		})
	}
	defer producers.Wait()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	seen := uint32(0)
	for next := uint64(0); next < 2*rounds; {
		sequence := (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(f), 1024+next%2*64))
		if sequence.Load() == next+1 {
			next++
			word64(&f.consumed).Store(next)
			continue
		}
		word32(&f.sleeping).Store(byFutex)
		if sequence.Load() != next+1 && word32(&f.wakes).Load() == seen {
			limit := unix.NsecToTimespec(patience.Nanoseconds())
			_, _, e := syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&f.wakes)), futexWait, uintptr(seen), uintptr(unsafe.Pointer(&limit)), 0, 0)
			if e == syscall.ETIMEDOUT {
				lost.Store(true)
				t.Fatalf("command %d was stored and nobody woke the proxy: sequence %d, sleeping %d", next, sequence.Load(), word32(&f.sleeping).Load())
			}
		}
		word32(&f.sleeping).Store(0)
		seen = word32(&f.wakes).Load()
	}
}

// The library's own proxy: over emu, whose NICs have no descriptors, it sleeps by futex, and commands wake it.
func TestPushWakesTheLibrarysProxy(t *testing.T) {
	path, err := filepath.Abs("../../build/" + Library)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make net builds it", err)
	}
	Path = path
	t.Cleanup(func() { Path = "" })
	const heapBytes = 4096
	var nets [2]*Net
	var heaps [2][]byte
	var common, own [2][]byte
	for r := range nets {
		fd, err := unix.MemfdCreate("heap", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "heap")
		defer file.Close()
		if err := file.Truncate(heapBytes); err != nil {
			t.Fatal(err)
		}
		if heaps[r], err = unix.Mmap(fd, 0, heapBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(heaps[r]) }()
		if nets[r], err = Open(Options{Backend: "emu", Rank: r, World: 2, Job: 1, Timeout: patience}); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nets[r].Close() }()
		if _, err := nets[r].Register(heaps[r], file); err != nil {
			t.Fatal(err)
		}
	}
	for r, n := range nets {
		if common[r], err = n.Endpoint(-1); err != nil {
			t.Fatal(err)
		}
		if own[r], err = n.Endpoint(1 - r); err != nil {
			t.Fatal(err)
		}
	}
	for r, n := range nets {
		if err := n.Connect(1-r, common[1-r], own[1-r]); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nets {
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	flag := (*atomic.Uint64)(unsafe.Pointer(&heaps[1][heapBytes-8]))
	for i := uint64(1); i <= 500; i++ {
		deadline := time.Now().Add(patience)
		for i%4 != 0 { // else it is about to sleep, or has not yet been
			how := word32(&nets[0].fifo.sleeping).Load()
			if how == byFutex {
				break
			}
			if how != 0 || time.Now().After(deadline) {
				t.Fatalf("the proxy says that it sleeps by %d, want %d", how, byFutex)
			}
			runtime.Gosched()
		}
		position, err := nets[0].Push(Command{Peer: 1, Rows: 1, Bytes: 8, Flag: heapBytes - 8, Value: i}, deadline)
		if err != nil {
			t.Fatal(err)
		}
		if err := nets[0].Flush(1, position, deadline); err != nil {
			t.Fatal(err)
		}
		if got := flag.Load(); got != i {
			t.Fatalf("the flag is %d, want %d", got, i)
		}
	}
}
