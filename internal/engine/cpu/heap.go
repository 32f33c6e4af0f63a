package cpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A heap is the symmetric memory of one rank: a header, the flags and the landing buffers, at the
// same offsets on every rank. The ranks of a node write into each other's heaps; which of two ways
// the bytes got there is not visible to the code that uses them.
type heap struct {
	mem   []byte
	lay   layout
	close func() error
	poll  time.Duration // the longest sleep of a waiter, where flags are raised by NICs; 0: until woken
}

// Offsets in the header. From offCells on, through the flags, everything is cells.
const (
	offMagic   = 0
	offDigest  = 8  // of plan, shape and dtype
	offAbort   = 64 // set once, never cleared: waiters leave
	offCells   = 128
	offArrive  = offCells              // barrier: ranks of the node that arrived (on the first rank of the node)
	offRelease = offCells + cellSize   // barrier: number of the last barrier that is open
	offRounds  = offCells + 2*cellSize // barrier: one cell per round between nodes
	maxRounds  = (headerSize - offRounds) / cellSize
)

const heapMagic = 0x6d6b_7275_6e68_7031 // "mkrunhp1"

// newLocalHeap makes a heap in ordinary Go memory, for ranks of one process; the race detector
// sees every access to it.
func newLocalHeap(l layout, digest uint64) *heap {
	words := make([]uint64, l.size/8)
	h := &heap{
		mem:   unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), l.size),
		lay:   l,
		close: func() error { return nil },
	}
	h.format(digest)
	return h
}

// newMappedHeap makes a heap in a memfd. The returned file can be passed to other processes of the
// node, which open it with openMappedHeap; the caller closes it once it is shared.
func newMappedHeap(l layout, digest uint64) (*heap, *os.File, error) {
	fd, err := unix.MemfdCreate("mkrun-heap", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("memfd_create for the heap: %w", err)
	}
	f := os.NewFile(uintptr(fd), "mkrun-heap")
	if err := f.Truncate(l.size); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("sizing the heap to %d bytes: %w", l.size, err), f.Close())
	}
	// A peer that shrank the file would kill us by SIGBUS; with its size sealed nobody can.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("sealing the heap's size: %w", err), f.Close())
	}
	h, err := mapHeap(f, l)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	h.format(digest)
	return h, f, nil
}

// openMappedHeap maps the heap of another rank of the node.
func openMappedHeap(f *os.File, l layout, digest uint64) (*heap, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("peer's heap: %w", err)
	}
	if info.Size() != l.size {
		return nil, fmt.Errorf("peer's heap has %d bytes, ours %d: the ranks do not run the same plan and shape", info.Size(), l.size)
	}
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("peer's heap is not a sealable memfd: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, errors.New("peer's heap is not sealed against shrinking")
	}
	h, err := mapHeap(f, l)
	if err != nil {
		return nil, err
	}
	if h.word(offMagic).Load() != heapMagic || h.word(offDigest).Load() != digest {
		return nil, errors.Join(errors.New("peer's heap was made for another plan or shape, or by another version"), h.close())
	}
	return h, nil
}

func mapHeap(f *os.File, l layout) (*heap, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(l.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping a heap of %d bytes: %w", l.size, err)
	}
	return &heap{mem: mem, lay: l, close: func() error { return unix.Munmap(mem) }}, nil
}

// sharedInProcess makes a heap last as long as any rank of this process has it: all of them use one mapping.
func (h *heap) sharedInProcess() {
	unmap := h.close
	h.close = func() error { return nil }
	runtime.AddCleanup(h, func(unmap func() error) { _ = unmap() }, unmap)
}

func (h *heap) format(digest uint64) {
	h.word(offDigest).Store(digest)
	h.word(offMagic).Store(heapMagic)
}

// word is the 64-bit word at an offset that is a multiple of 8.
func (h *heap) word(off int64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&h.mem[off]))
}

// cell is the cell at an offset that is a multiple of cellSize.
func (h *heap) cell(off int64) *cell { return (*cell)(unsafe.Pointer(&h.mem[off])) }

func (h *heap) flag(id int) *cell { return h.cell(h.lay.flags + int64(id)*cellSize) }

// elements is the part [off, off+2n) of the heap as 16-bit elements.
func (h *heap) elements(off, n int64) []uint16 {
	if n == 0 {
		return nil
	}
	b := h.mem[off : off+2*n]
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// digest64 is the first 8 bytes of a hash as a word.
func digest64(sum []byte) uint64 { return binary.LittleEndian.Uint64(sum) }

// bytesOf is the memory of 16-bit elements.
func bytesOf(bits []uint16) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(bits))), 2*len(bits))
}
