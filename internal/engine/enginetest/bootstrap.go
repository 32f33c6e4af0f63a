// Package enginetest connects the ranks of one process for tests and benchmarks of engines.
package enginetest

import (
	"context"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/engine"
)

// World is the meeting point of a number of ranks in one process.
type World struct {
	mu      sync.Mutex
	size    int
	fence   meeting
	barrier meeting
	pending map[address][]byte // put since the last fence
	visible map[address][]byte
	files   map[string]*os.File
	shared  chan struct{} // closed and renewed when a file is shared
}

type address struct{ from, to int }

// meeting is a barrier that can be used again and again.
type meeting struct {
	arrived int
	open    chan struct{}
}

// NewWorld returns the meeting point of size ranks.
func NewWorld(size int) *World {
	return &World{
		size: size, pending: map[address][]byte{}, visible: map[address][]byte{}, files: map[string]*os.File{},
		fence: meeting{open: make(chan struct{})}, barrier: meeting{open: make(chan struct{})}, shared: make(chan struct{}),
	}
}

// Rank returns what one rank sees of the world.
func (w *World) Rank(rank int) engine.Bootstrap { return &member{w, rank} }

// Close closes the files that were shared.
func (w *World) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, f := range w.files {
		if err := f.Close(); err != nil {
			return err
		}
		delete(w.files, name)
	}
	return nil
}

type member struct {
	w    *World
	rank int
}

// Put implements engine.Bootstrap.
func (m *member) Put(_ context.Context, to int, blob []byte) error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.pending[address{m.rank, to}] = append(m.w.pending[address{m.rank, to}], blob...)
	return nil
}

// Fence implements engine.Bootstrap.
func (m *member) Fence(ctx context.Context) error {
	return m.w.meet(ctx, &m.w.fence, func() { m.w.visible, m.w.pending = m.w.pending, map[address][]byte{} })
}

// Get implements engine.Bootstrap.
func (m *member) Get(_ context.Context, from int) (common, private []byte, err error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if from < 0 || from >= m.w.size {
		return nil, nil, fmt.Errorf("there is no rank %d", from)
	}
	return m.w.visible[address{from, engine.Everyone}], m.w.visible[address{from, m.rank}], nil
}

// Barrier implements engine.Bootstrap.
func (m *member) Barrier(ctx context.Context) error {
	return m.w.meet(ctx, &m.w.barrier, func() {})
}

func (w *World) meet(ctx context.Context, b *meeting, last func()) error {
	w.mu.Lock()
	open := b.open
	if b.arrived++; b.arrived == w.size {
		last()
		close(open)
		*b = meeting{open: make(chan struct{})}
	}
	w.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ShareFile implements engine.Bootstrap.
func (m *member) ShareFile(_ context.Context, name string, f *os.File) error {
	dup, err := duplicate(f)
	if err != nil {
		return err
	}
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	key := fmt.Sprint(m.rank, "/", name)
	if m.w.files[key] != nil {
		_ = dup.Close()
		return fmt.Errorf("rank %d shares %q twice", m.rank, name)
	}
	m.w.files[key] = dup
	close(m.w.shared)
	m.w.shared = make(chan struct{})
	return nil
}

// PeerFile implements engine.Bootstrap.
func (m *member) PeerFile(ctx context.Context, rank int, name string) (*os.File, error) {
	for {
		m.w.mu.Lock()
		f, shared := m.w.files[fmt.Sprint(rank, "/", name)], m.w.shared
		if f != nil {
			defer m.w.mu.Unlock()
			return duplicate(f)
		}
		m.w.mu.Unlock()
		select {
		case <-shared:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
