package session

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

type stream = grpc.BidiStreamingServer[pb.FromAgent, pb.ToAgent]

// parentService is the gRPC face of a head.
type parentService struct {
	pb.UnimplementedParentServer
	head *Head
}

// Connect runs one agent's stream, from its hello to its end.
func (s parentService) Connect(st stream) error {
	return s.head.connect(st)
}

func (h *Head) connect(st stream) error {
	p, ok := peer.FromContext(st.Context())
	if !ok {
		return status.Error(codes.Internal, "no peer")
	}
	auth, ok := p.AuthInfo.(memberAuth)
	if !ok {
		return status.Error(codes.Unauthenticated, "not a member of the job")
	}

	impatient := newWatchdog(h.cfg.Silence, h.cfg.Heartbeat, auth.conn.cut)
	first, err := st.Recv()
	impatient.stop()
	if err != nil {
		h.log.Debug("a member left before its hello", "member", auth.conn.id.String(), "error", err)
		return nil
	}
	hello := first.GetHello()
	a, reason := h.admit(hello, auth.conn)
	if reason != "" {
		h.log.Warn("refused an agent", "from", p.Addr.String(), "reason", reason)
		refusal := &pb.Refusal{Reason: reason, Protocol: h.cfg.protocol, Build: h.cfg.Build}
		if err := st.Send(&pb.ToAgent{Kind: &pb.ToAgent_Refusal{Refusal: refusal}}); err != nil {
			h.log.Debug("sending a refusal", "error", err)
		}
		ev := HeadEvent{Node: -1, Incarnation: hello.GetIncarnation(), Refused: &Refusal{Hello: hello, From: p.Addr.String(), Reason: reason}}
		if hello != nil && hello.Node >= 0 && int(hello.Node) < h.cfg.Nodes {
			ev.Node = int(hello.Node)
		}
		h.emit(ev, nil)
		return nil
	}

	a.watch = newWatchdog(h.cfg.Silence, h.cfg.Heartbeat, func() {
		a.fail(fmt.Sprintf("it said nothing for %v", h.cfg.Silence))
	})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		a.write(st, h.cfg)
	}()
	h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Message: first}, a.watch)
	ending := h.read(st, a)
	a.watch.stop()
	left := a.end()
	<-sent

	switch {
	case left && errors.Is(ending, io.EOF):
		h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Left: true}, nil)
	case errors.Is(ending, io.EOF):
		a.fail("it closed its stream before it was told to shut down")
		fallthrough
	default:
		a.fail("its connection broke: " + reasonOf(ending))
		h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation,
			Lost: &AgentLostError{Node: a.node, Host: a.host, Reason: a.reason()}}, nil)
	}
	return nil
}

// reasonOf shortens what gRPC says when a connection ends.
func reasonOf(err error) string {
	if s, ok := status.FromError(err); ok && s.Code() == codes.Canceled {
		return "the agent, or its host, closed it"
	}
	return err.Error()
}

// read handles messages until the stream ends, and returns how it ended.
func (h *Head) read(st stream, a *agentConn) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		a.watch.alive()
		if err := h.handle(a, m); err != nil {
			a.fail("it broke the protocol: " + err.Error())
			return err
		}
	}
}

// handle acts on one message; an error means that the agent cannot be trusted to count any more.
func (h *Head) handle(a *agentConn, m *pb.FromAgent) error {
	switch m.Kind.(type) {
	case *pb.FromAgent_Heartbeat:
		return nil
	case nil: // of a newer build: messages of the same protocol version may be ignored
		return nil
	case *pb.FromAgent_Hello:
		return errors.New("a second hello")
	}
	if ofRanks(m) && m.Generation != h.generation() {
		h.log.Debug("dropped what an agent said about ranks of another generation", "node", a.node, "generation", m.Generation)
		return nil
	}
	switch k := m.Kind.(type) {
	case *pb.FromAgent_Put:
		return h.put(a, k.Put)
	case *pb.FromAgent_Fence:
		return h.enterFence(a, k.Fence)
	case *pb.FromAgent_Barrier:
		return h.enterBarrier(a, k.Barrier)
	}
	if rank, ok := rankOf(m); ok {
		if err := h.owns(a, rank); err != nil {
			return err
		}
	}
	if member := m.GetMember(); member != nil && (member.Node < 0 || int(member.Node) >= h.cfg.Nodes) {
		return fmt.Errorf("an opinion of node %d in a job of %d nodes", member.Node, h.cfg.Nodes)
	}
	h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Message: m}, a.watch)
	return nil
}

// generation is that of the ranks.
func (h *Head) generation() uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// ofRanks reports whether a message is about ranks, and so belongs to a generation.
func ofRanks(m *pb.FromAgent) bool {
	switch m.Kind.(type) {
	case *pb.FromAgent_Put, *pb.FromAgent_Fence, *pb.FromAgent_Barrier, *pb.FromAgent_NodeDone, *pb.FromAgent_StdinTaken, *pb.FromAgent_Abort:
		return true
	}
	_, about := rankOf(m)
	return about
}

// rankOf is the rank that a message speaks for, if any.
func rankOf(m *pb.FromAgent) (int32, bool) {
	switch k := m.Kind.(type) {
	case *pb.FromAgent_RankStarted:
		return k.RankStarted.GetRank(), true
	case *pb.FromAgent_RankExited:
		return k.RankExited.GetRank(), true
	case *pb.FromAgent_Output:
		return k.Output.GetRank(), true
	case *pb.FromAgent_Report:
		return k.Report.GetRank(), true
	case *pb.FromAgent_Attached:
		return k.Attached.GetRank(), true
	case *pb.FromAgent_Abort:
		return k.Abort.GetRank(), k.Abort.GetRank() != -1
	}
	return 0, false
}

func (h *Head) owns(a *agentConn, rank int32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ownsLocked(a, rank)
}

func (h *Head) ownsLocked(a *agentConn, rank int32) error {
	if !h.world.owns(a.node, rank) {
		return fmt.Errorf("node %d speaks for rank %d, which is not its own", a.node, rank)
	}
	return nil
}

func (h *Head) put(a *agentConn, p *pb.Put) error {
	h.mu.Lock()
	err := h.ownsLocked(a, p.GetFrom())
	if err == nil {
		err = h.store.put(p)
	}
	h.mu.Unlock()
	if errors.Is(err, errStoreFull) {
		h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation,
			Message: &pb.FromAgent{Generation: h.generation(), Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{Rank: p.From, Reason: err.Error()}}}}, a.watch)
		return nil
	}
	return err
}

func (h *Head) enterFence(a *agentConn, f *pb.FenceEnter) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.ownsLocked(a, f.GetRank()); err != nil {
		return err
	}
	out, err := h.store.enter(f)
	if err != nil {
		return err
	}
	for node, messages := range out {
		for _, m := range messages {
			m.Generation = h.current
			if peer := h.agents[node]; peer != nil {
				_ = peer.post(m, 0) // the store's limit bounds these; a lost agent is an event of its own
			}
		}
	}
	return nil
}

func (h *Head) enterBarrier(a *agentConn, b *pb.BarrierEnter) error {
	done, err := h.passBarrier(a, b)
	if done {
		h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Barrier: b.Seq}, a.watch)
	}
	return err
}

// passBarrier notes that a rank entered, and lets all go if it was the last.
func (h *Head) passBarrier(a *agentConn, b *pb.BarrierEnter) (done bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.ownsLocked(a, b.GetRank()); err != nil {
		return false, err
	}
	done, err = h.barrier.enter(b.Rank, b.Seq)
	if err != nil || !done {
		return false, err
	}
	m := &pb.ToAgent{Generation: h.current, Kind: &pb.ToAgent_BarrierDone{BarrierDone: &pb.BarrierDone{Seq: b.Seq}}}
	for _, peer := range h.agents {
		if peer != nil {
			_ = peer.post(m, 0)
		}
	}
	return true, nil
}

// agentConn is the head's view of one agent, connected or gone.
type agentConn struct {
	node        int
	incarnation uint64
	host        string
	conn        *memberConn
	out         *outbox
	watch       *watchdog
	quit        chan struct{} // closed when the stream has ended

	mu      sync.Mutex
	gone    bool
	leaving bool   // was told to shut down
	why     string // it is lost; the first reason counts
}

// post queues a message, or fails the agent when it has let too many wait.
func (a *agentConn) post(m *pb.ToAgent, size int) error {
	a.mu.Lock()
	gone := a.gone
	if m.GetShutdown() != nil {
		a.leaving = true
	}
	a.mu.Unlock()
	if gone {
		return fmt.Errorf("the agent of node %d (%s) is gone", a.node, a.host)
	}
	if !a.out.put(m, size) {
		a.fail(fmt.Sprintf("it let %d MiB of messages wait", a.out.limit>>20))
		return fmt.Errorf("the agent of node %d (%s) does not take its messages", a.node, a.host)
	}
	return nil
}

// fail notes why the agent is lost and cuts its connection.
func (a *agentConn) fail(reason string) {
	a.mu.Lock()
	if a.why == "" {
		a.why = reason
	}
	a.mu.Unlock()
	a.conn.cut()
}

func (a *agentConn) reason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.why
}

// end stops the writer and reports whether the agent had been told to leave.
func (a *agentConn) end() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	close(a.quit)
	return a.leaving
}

// write sends what is queued, and a heartbeat whenever one is due. A message that the agent does not
// take within the silence bound fails it.
func (a *agentConn) write(st stream, cfg HeadConfig) {
	welcome := &pb.Welcome{
		Protocol:    cfg.protocol,
		Build:       cfg.Build,
		HeartbeatMs: cfg.Heartbeat.Milliseconds(),
		SilenceMs:   (cfg.Silence + cfg.Silence/2).Milliseconds(),
	}
	send := func(m *pb.ToAgent) bool {
		stuck := time.AfterFunc(cfg.Silence, func() {
			a.fail(fmt.Sprintf("it took no message for %v", cfg.Silence))
		})
		defer stuck.Stop()
		return st.Send(m) == nil // the reader sees the same failure, and tells
	}
	if !send(&pb.ToAgent{Kind: &pb.ToAgent_Welcome{Welcome: welcome}}) {
		return
	}
	beat := time.NewTicker(cfg.Heartbeat)
	defer beat.Stop()
	for seq := uint64(1); ; {
		select {
		case <-a.quit:
			return
		case <-beat.C:
			if !send(&pb.ToAgent{Kind: &pb.ToAgent_Heartbeat{Heartbeat: &pb.Heartbeat{Seq: seq}}}) {
				return
			}
			seq++
		case <-a.out.wake:
			for m := a.out.take(); m != nil; m = a.out.take() {
				if !send(m) {
					return
				}
			}
		}
	}
}
