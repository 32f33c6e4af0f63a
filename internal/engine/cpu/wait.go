package cpu

import (
	"errors"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // FUTEX_WAIT, shared: heaps are mapped by several processes
	futexWake = 1

	spins = 200 // looks at a flag before sleeping; a few microseconds
)

var (
	errAborted = errors.New("aborted")
	errTimeout = errors.New("timed out")
)

// await returns when the word of this heap is at least target. It gives errAborted once the heap's
// abort word is set, errTimeout after the time-out, and the last value seen in every case.
//
// Nobody misses a wake-up: a waiter counts itself, reads the futex word, then looks at the flag; a
// signaller writes the flag, then looks for waiters, and changes the futex word before it wakes them.
func (h *heap) await(word *atomic.Uint64, target uint64, timeout time.Duration) (seen uint64, err error) {
	for range spins {
		if seen = word.Load(); seen >= target {
			return seen, nil
		}
	}
	deadline := time.Now().Add(timeout)
	waiters := h.word(offWaiters)
	waiters.Add(1)
	defer waiters.Add(^uint64(0))
	for {
		ticket := h.futex().Load()
		if seen = word.Load(); seen >= target {
			return seen, nil
		}
		if h.word(offAbort).Load() != 0 {
			return seen, errAborted
		}
		left := time.Until(deadline)
		if left <= 0 {
			return seen, errTimeout
		}
		ts := unix.NsecToTimespec(left.Nanoseconds())
		// EAGAIN, EINTR, ETIMEDOUT and a real wake-up all mean the same: look again.
		_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(h.futex())), futexWait, uintptr(ticket),
			uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
}

// wake makes all waiters of the heap look again. Call it after the word they wait for was written.
func (h *heap) wake() {
	if h.word(offWaiters).Load() == 0 {
		return
	}
	h.futex().Add(1)
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(h.futex())), futexWake, 1<<30, 0, 0, 0)
}

// abort makes all present and later waits on this heap return errAborted.
func (h *heap) abort() {
	h.word(offAbort).Store(1)
	h.wake()
}

// raise lifts a word that has one writer to a value; a word never goes down.
func (h *heap) raise(word *atomic.Uint64, value uint64) {
	if word.Load() < value {
		word.Store(value)
	}
	h.wake()
}

// add adds one to a word that has many writers.
func (h *heap) add(word *atomic.Uint64) {
	word.Add(1)
	h.wake()
}
