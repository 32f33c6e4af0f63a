//go:build cgo

package cuda

import (
	"context"
	"testing"

	"github.com/mkrun/mkrun/internal/engine"
)

// shorter is a bootstrap of two ranks of which the other gives less than it should.
type shorter struct{ engine.Bootstrap }

func (shorter) Put(context.Context, int, []byte) error { return nil }
func (shorter) Fence(context.Context) error            { return nil }
func (shorter) Get(_ context.Context, rank int) (common, private []byte, err error) {
	return make([]byte, 8-rank), nil, nil
}

func TestRanksThatGiveOtherSizes(t *testing.T) {
	g := &gatherer{ctx: t.Context(), boot: shorter{}, size: 2}
	const want = "rank 1 gave 7 bytes where 8 are wanted: do all ranks run the same mkrun and libmkernel.so?"
	if _, err := g.gather(make([]byte, 8)); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
