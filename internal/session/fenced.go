package session

import (
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"

	"github.com/mkrun/mkrun/internal/engine"
)

// fenced is what the ranks of one node may get after a fence, in pieces as they came.
type fenced struct {
	done    chan struct{} // closed when it is complete
	common  map[int32][][]byte
	private map[pair][][]byte
}

type pair struct{ from, to int32 }

func newFenced() *fenced {
	return &fenced{done: make(chan struct{}), common: map[int32][][]byte{}, private: map[pair][][]byte{}}
}

func (f *fenced) add(puts []*pb.Put) {
	for _, p := range puts {
		if p.To == engine.Everyone {
			f.common[p.From] = append(f.common[p.From], p.Chunk)
		} else {
			key := pair{p.From, p.To}
			f.private[key] = append(f.private[key], p.Chunk)
		}
	}
}
