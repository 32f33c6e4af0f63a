//go:build cgo

package mknet

// #include "bridge.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	spins   = 200 // looks before a waiting producer naps
	longest = 200 * time.Microsecond

	futexWake = 1 | 128 // FUTEX_WAKE_PRIVATE: the proxy is a thread of this process
)

func word64(p *C.uint64_t) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(p)) }
func word32(p *C.uint32_t) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(p)) }

// Push puts a command into the FIFO and returns its position. It waits for a free slot until the deadline. The protocol is
// in cuda/net/fifo.h.
func (n *Net) Push(c Command, deadline time.Time) (position uint64, err error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return 0, errClosed
	}
	f := n.fifo
	tail, consumed := word64(&f.tail), word64(&f.consumed)
	for tries := 0; ; {
		if word32(&f.abort).Load() != 0 {
			return 0, n.reason()
		}
		position = tail.Load()
		if position-consumed.Load() < uint64(f.capacity) {
			if tail.CompareAndSwap(position, position+1) {
				break
			}
			continue
		}
		if !nap(&tries, deadline) {
			return 0, fmt.Errorf("the command FIFO stayed full at position %d", position)
		}
	}
	slot := (*C.mknet_command)(unsafe.Add(unsafe.Pointer(f), uintptr(f.slots)+uintptr(position&uint64(f.capacity-1))*C.sizeof_mknet_command))
	slot.op, slot.region, slot.peer, slot.rows = C.MKNET_WRITE, C.uint8_t(c.Region), C.uint16_t(c.Peer), C.uint32_t(c.Rows)
	slot.source, slot.target, slot.bytes = C.uint64_t(c.Source), C.uint64_t(c.Target), C.uint64_t(c.Bytes)
	slot.flag, slot.value = C.uint64_t(c.Flag), C.uint64_t(c.Value)
	slot.source_stride, slot.target_stride = C.uint32_t(c.SourceStride), C.uint32_t(c.TargetStride)
	word64(&slot.sequence).Store(position + 1)
	n.wake()
	return position, nil
}

// wake wakes the proxy if it sleeps, after a command was stored. Neither call blocks, so the scheduler need not know.
func (n *Net) wake() {
	f := n.fifo
	sleeping := word32(&f.sleeping)
	if sleeping.Load() == 0 {
		return
	}
	how := sleeping.Swap(0)
	if how == 0 {
		return // another producer is at it
	}
	word32(&f.wakes).Add(1)
	if how == C.MKNET_BY_FUTEX {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&f.wakes)), futexWake, 1, 0, 0, 0)
		return
	}
	one := uint64(1)
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(f.wake_fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}

// Flush waits until the command to a peer that is at a position, and those to that peer before it, are complete.
func (n *Net) Flush(peer int, position uint64, deadline time.Time) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.closed {
		return errClosed
	}
	completed := (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(n.fifo), uintptr(n.fifo.peers)+uintptr(peer)*unsafe.Sizeof(uint64(0))))
	for tries := 0; int64(completed.Load()-(position+1)) < 0; {
		if word32(&n.fifo.abort).Load() != 0 {
			return n.reason()
		}
		if !nap(&tries, deadline) {
			return fmt.Errorf("commands to rank %d below %d are complete, waited for %d", peer, completed.Load(), position+1)
		}
	}
	return nil
}

// reason is why the network ended, which its abort word said.
func (n *Net) reason() error {
	var e C.mknet_error
	if err := check(C.bridge_status(n.b, n.c, C.uint64_t(time.Second.Nanoseconds()), &e), &e); err != nil {
		return err
	}
	return errClosed
}

// nap passes the time between two looks; false when the deadline is over.
func nap(tries *int, deadline time.Time) bool {
	*tries++
	if *tries < spins {
		return true
	}
	if time.Now().After(deadline) {
		return false
	}
	time.Sleep(min(longest, time.Duration(*tries-spins+1)*5*time.Microsecond))
	return true
}
