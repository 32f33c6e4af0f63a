package session

import (
	"context"

	"github.com/mkrun/mkrun/internal/engine"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// LocalRank is a rank's part in the fences, taken by its agent: for a program that does not speak the session's protocol,
// such as one that asks by PMI.
type LocalRank struct{ service *rankService }

// Local takes part for a rank of this node. The rank must not have a session of its own.
func (s *RankServer) Local(ctx context.Context, rank int) (*LocalRank, error) {
	r := &rankService{server: s, rank: int32(rank)}
	if _, err := r.Attach(ctx, &pb.AttachRequest{Protocol: s.cfg.protocol, Build: s.cfg.Build}); err != nil {
		return nil, err
	}
	return &LocalRank{r}, nil
}

// Fence puts a blob for every rank and returns when all ranks have entered the fence.
func (l *LocalRank) Fence(ctx context.Context, own []byte) error {
	for len(own) > 0 {
		n := min(len(own), MaxChunk)
		if _, err := l.service.Put(ctx, &pb.RankPut{To: engine.Everyone, Chunk: own[:n]}); err != nil {
			return err
		}
		own = own[n:]
	}
	_, err := l.service.Fence(ctx, &pb.Empty{})
	return err
}

// Common calls each with what every rank had put for all before the last fence; of ranks that put nothing there is none.
func (l *LocalRank) Common(each func(blob []byte)) {
	l.service.order.Lock()
	f := l.service.fence
	l.service.order.Unlock()
	for _, chunks := range f.common { // complete, so nobody writes it any more
		var blob []byte
		for _, c := range chunks {
			blob = append(blob, c...)
		}
		each(blob)
	}
}
