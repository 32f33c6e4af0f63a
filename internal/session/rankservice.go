package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mkrun/mkrun/internal/engine"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// rankPatience bounds how long a rank's socket may be used before it speaks HTTP/2. A rank may take
// long before it attaches: it loads libraries and opens devices first.
const rankPatience = 24 * time.Hour

// rankService is the Agent service as one rank sees it.
type rankService struct {
	pb.UnimplementedAgentServer
	server *RankServer
	rank   int32

	order    sync.Mutex // puts, fences and barriers go up in the order they came
	attached bool
	put      int64         // bytes since the last fence
	round    uint64        // the fence entered last
	fence    *fenced       // of that round
	seq      uint64        // the barrier entered last
	barrier  chan struct{} // closed when that is done
}

// ready fails calls that come before Attach, or after an abort.
func (r *rankService) ready() error {
	if !r.attached {
		return status.Error(codes.FailedPrecondition, "the rank has not attached")
	}
	return r.abortStatus()
}

func (r *rankService) abortStatus() error {
	select {
	case <-r.server.aborted:
	default:
		return nil
	}
	err := &AbortedError{Cause: r.server.cause}
	s := status.New(codes.Aborted, err.Error())
	if detailed, detailErr := s.WithDetails(err.Cause); detailErr == nil {
		s = detailed
	}
	return s.Err()
}

// send passes a message up. It is not bound to the rank's call, so that the count of what was sent is
// right even if the rank gives up waiting.
func (r *rankService) send(m *pb.FromAgent) error {
	m.Generation = r.server.generation()
	if err := r.server.up.Send(r.server.ctx, m); err != nil {
		return status.Errorf(codes.Unavailable, "the agent has lost its parent: %v", err)
	}
	return nil
}

// wait waits for an answer of the head.
func (r *rankService) wait(ctx context.Context, done <-chan struct{}) (*pb.Empty, error) {
	select {
	case <-done:
		return &pb.Empty{}, nil
	default:
	}
	select {
	case <-done:
		return &pb.Empty{}, nil
	case <-r.server.aborted:
		return nil, r.abortStatus()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (r *rankService) Attach(_ context.Context, q *pb.AttachRequest) (*pb.AttachReply, error) {
	s := r.server
	if q.Protocol != s.cfg.protocol {
		return nil, status.Errorf(codes.FailedPrecondition, "the rank speaks protocol %d (build %q), the agent protocol %d (build %q); rebuild the program with this mkrun",
			q.Protocol, clip(q.Build), s.cfg.protocol, s.cfg.Build)
	}
	r.order.Lock()
	defer r.order.Unlock()
	if r.attached {
		return nil, status.Error(codes.FailedPrecondition, "the rank has already attached")
	}
	s.mu.Lock()
	reply := &pb.AttachReply{Job: s.roster.GetJob(), Generation: s.roster.GetGeneration(), Rank: r.rank, Roster: s.roster, Run: s.run, Network: s.networks[r.rank]}
	local := s.world.owns(s.cfg.Node, r.rank)
	s.mu.Unlock()
	if !local {
		return nil, status.Errorf(codes.FailedPrecondition, "rank %d is not of node %d, or was started before the roster was known", r.rank, s.cfg.Node)
	}
	if err := r.send(&pb.FromAgent{Kind: &pb.FromAgent_Attached{Attached: &pb.AttachedRank{Rank: r.rank}}}); err != nil {
		return nil, err
	}
	r.attached = true
	return reply, nil
}

func (r *rankService) Put(_ context.Context, q *pb.RankPut) (*pb.Empty, error) {
	r.order.Lock()
	defer r.order.Unlock()
	if err := r.ready(); err != nil {
		return nil, err
	}
	size := r.server.Size()
	switch {
	case len(q.Chunk) > MaxChunk:
		return nil, status.Errorf(codes.InvalidArgument, "a chunk of %d bytes; the most is %d", len(q.Chunk), MaxChunk)
	case q.To != engine.Everyone && (q.To < 0 || int(q.To) >= size):
		return nil, status.Errorf(codes.InvalidArgument, "there is no rank %d in a job of %d ranks", q.To, size)
	case r.put+int64(len(q.Chunk)) > MaxRankPut:
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d MiB of endpoint data before one fence", MaxRankPut>>20)
	case r.fencing():
		return nil, status.Error(codes.FailedPrecondition, "a put while the rank's own fence is in progress")
	}
	r.put += int64(len(q.Chunk))
	return &pb.Empty{}, r.send(&pb.FromAgent{Kind: &pb.FromAgent_Put{Put: &pb.Put{From: r.rank, To: q.To, Round: r.round + 1, Chunk: q.Chunk}}})
}

func (s *RankServer) generation() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roster.GetGeneration()
}

// Size is the number of the job's ranks, once the roster is known.
func (s *RankServer) Size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world.size
}

// fencing reports whether the fence that this rank entered is not done.
func (r *rankService) fencing() bool { return r.fence != nil && pending(r.fence.done) }

func pending(done <-chan struct{}) bool {
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// Fence enters the next fence and waits for it.
func (r *rankService) Fence(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	f, err := r.enterFence()
	if err != nil {
		return nil, err
	}
	return r.wait(ctx, f.done)
}

func (r *rankService) enterFence() (*fenced, error) {
	r.order.Lock()
	defer r.order.Unlock()
	if err := r.ready(); err != nil {
		return nil, err
	}
	if r.fencing() {
		return nil, status.Error(codes.FailedPrecondition, "the rank is already in a fence")
	}
	r.round++
	r.put = 0
	r.server.mu.Lock()
	r.fence = r.server.fenceLocked(r.round)
	r.server.mu.Unlock()
	return r.fence, r.send(&pb.FromAgent{Kind: &pb.FromAgent_Fence{Fence: &pb.FenceEnter{Rank: r.rank, Round: r.round}}})
}

// Barrier enters the next barrier and waits for it.
func (r *rankService) Barrier(ctx context.Context, _ *pb.Empty) (*pb.Empty, error) {
	done, err := r.enterBarrier()
	if err != nil {
		return nil, err
	}
	return r.wait(ctx, done)
}

func (r *rankService) enterBarrier() (chan struct{}, error) {
	r.order.Lock()
	defer r.order.Unlock()
	if err := r.ready(); err != nil {
		return nil, err
	}
	if r.barrier != nil && pending(r.barrier) {
		return nil, status.Error(codes.FailedPrecondition, "the rank is already in a barrier")
	}
	r.seq++
	s := r.server
	s.mu.Lock()
	if s.barriers[r.seq] == nil {
		s.barriers[r.seq] = make(chan struct{})
	}
	r.barrier = s.barriers[r.seq]
	s.mu.Unlock()
	return r.barrier, r.send(&pb.FromAgent{Kind: &pb.FromAgent_Barrier{Barrier: &pb.BarrierEnter{Rank: r.rank, Seq: r.seq}}})
}

// Get streams what a rank put for everyone and for the caller, and for nobody else.
func (r *rankService) Get(q *pb.GetRequest, out grpc.ServerStreamingServer[pb.GetReply]) error {
	r.order.Lock()
	err := r.ready()
	f, fencing := r.fence, r.fencing()
	r.order.Unlock()
	if err != nil {
		return err
	}
	if size := r.server.Size(); q.From < 0 || int(q.From) >= size {
		return status.Errorf(codes.InvalidArgument, "there is no rank %d in a job of %d ranks", q.From, size)
	}
	if f == nil || fencing {
		return status.Error(codes.FailedPrecondition, "a get before the rank's own fence returned")
	}
	for _, chunk := range f.common[q.From] { // complete, so nobody writes it any more
		if err := out.Send(&pb.GetReply{CommonChunk: chunk}); err != nil {
			return err
		}
	}
	for _, chunk := range f.private[pair{q.From, r.rank}] {
		if err := out.Send(&pb.GetReply{PrivateChunk: chunk, HasPrivate: true}); err != nil {
			return err
		}
	}
	return nil
}

func (r *rankService) Report(_ context.Context, q *pb.RankReport) (*pb.Empty, error) {
	return &pb.Empty{}, r.send(&pb.FromAgent{Kind: &pb.FromAgent_Report{Report: &pb.RankReport{Rank: r.rank, Json: q.Json}}})
}

func (r *rankService) RequestAbort(_ context.Context, q *pb.AbortRequest) (*pb.Empty, error) {
	return &pb.Empty{}, r.send(&pb.FromAgent{Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{Rank: r.rank, Reason: q.Reason, ExitStatus: q.ExitStatus, PeerLost: q.PeerLost}}})
}

func (r *rankService) WatchAbort(_ *pb.Empty, out grpc.ServerStreamingServer[pb.Abort]) error {
	select {
	case <-r.server.aborted:
		return out.Send(&pb.Abort{Cause: r.server.cause})
	case <-out.Context().Done():
		return fmt.Errorf("the rank's session ended: %w", out.Context().Err())
	}
}
