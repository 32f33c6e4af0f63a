package cpu

import (
	"errors"
	"math"
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

// cell is a flag, or a word of the barrier, with what is needed to sleep on it. It fills a cache line, so
// that writers of different flags do not meet.
type cell struct {
	value   atomic.Uint64
	waiters atomic.Uint32
	futex   atomic.Uint32
	_       [cellSize - 16]byte
}

const cellSize = 64

// await returns when a cell of this heap is at least target. It gives errAborted once the heap's
// abort word is set, errTimeout after the time-out, and the last value seen in every case.
//
// Nobody misses a wake-up: a waiter counts itself, reads the futex word, then looks at the value; a
// signaller writes the value, then looks for waiters, and changes the futex word before it wakes them.
// Both write by a read-modify-write, which no later load overtakes: a Store is as strong by Go's memory
// model, but the race detector carries it out as a mere release.
func (h *heap) await(c *cell, target uint64, timeout time.Duration) (seen uint64, err error) {
	for range spins {
		if seen = c.value.Load(); seen >= target {
			return seen, nil
		}
	}
	deadline := time.Now().Add(timeout)
	c.waiters.Add(1)
	defer c.waiters.Add(^uint32(0))
	for {
		ticket := c.futex.Load()
		if seen = c.value.Load(); seen >= target {
			return seen, nil
		}
		if h.word(offAbort).Load() != 0 {
			return seen, errAborted
		}
		left := time.Until(deadline)
		if left <= 0 {
			return seen, errTimeout
		}
		if h.poll > 0 {
			left = min(left, h.poll)
		}
		ts := unix.NsecToTimespec(left.Nanoseconds())
		// EAGAIN, EINTR, ETIMEDOUT and a real wake-up all mean the same: look again.
		_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.futex)), futexWait, uintptr(ticket),
			uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
}

// wake makes the cell's waiters look again. Call it after what they look at was written.
func (c *cell) wake() {
	if c.waiters.Load() == 0 {
		return
	}
	c.futex.Add(1)
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.futex)), futexWake, math.MaxInt32, 0, 0, 0)
}

// raise lifts a cell that has one writer to a value; a cell never goes down.
func (c *cell) raise(value uint64) {
	if c.value.Load() < value {
		c.value.Swap(value)
	}
	c.wake()
}

// add adds one to a cell that has many writers.
func (c *cell) add() {
	c.value.Add(1)
	c.wake()
}

// abort makes all present and later waits on this heap return errAborted.
func (h *heap) abort() {
	h.word(offAbort).Swap(1)
	for off := int64(offCells); off < h.lay.cells; off += cellSize {
		h.cell(off).wake()
	}
}
