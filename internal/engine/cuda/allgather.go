//go:build cgo

package cuda

// #include <stdint.h>
import "C"

import (
	"context"
	"fmt"
	"runtime/cgo"
	"unsafe"

	"github.com/mkrun/mkrun/internal/engine"
)

// gatherer is the all-gather among the ranks that the library calls while it makes and destroys things.
type gatherer struct {
	ctx  context.Context // of the call in progress
	boot engine.Bootstrap
	size int
	err  error // of the last call that failed: what the library can only say in general
}

// during lets the library gather until ctx or the instance's life ends, or until a rank has not answered for its wait time-out.
func (in *instance) during(ctx context.Context) (done func()) {
	bounded, cancel := context.WithTimeoutCause(ctx, in.cfg.WaitTimeout, fmt.Errorf("no answer for %v", in.cfg.WaitTimeout))
	stop := context.AfterFunc(in.life, cancel)
	in.boot.ctx = bounded
	return func() {
		stop()
		cancel()
	}
}

// gather returns what every rank gave, in rank order. All give the same number of bytes.
func (g *gatherer) gather(mine []byte) ([]byte, error) {
	if err := g.boot.Put(g.ctx, engine.Everyone, mine); err != nil {
		return nil, fmt.Errorf("telling the other ranks: %w", err)
	}
	if err := g.boot.Fence(g.ctx); err != nil {
		return nil, fmt.Errorf("waiting for the other ranks: %w", err)
	}
	all := make([]byte, 0, len(mine)*g.size)
	for rank := range g.size {
		theirs, _, err := g.boot.Get(g.ctx, rank)
		if err != nil {
			return nil, fmt.Errorf("asking rank %d: %w", rank, err)
		}
		if len(theirs) != len(mine) {
			return nil, fmt.Errorf("rank %d gave %d bytes where %d are wanted: do all ranks run the same mkrun and libmkernel.so?", rank, len(theirs), len(mine))
		}
		all = append(all, theirs...)
	}
	return all, nil
}

//export mkrunAllgather
func mkrunAllgather(user C.uintptr_t, mine, all unsafe.Pointer, bytes C.uint64_t) C.int {
	g := cgo.Handle(user).Value().(*gatherer)
	gathered, err := g.gather(C.GoBytes(mine, C.int(bytes)))
	if err != nil {
		g.err = err
		return 1
	}
	copy(unsafe.Slice((*byte)(all), len(gathered)), gathered)
	return 0
}
