package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// parent is the upper end of agents' streams, at the head or at an agent that others report to: it admits those that
// report here, watches them, and hands what they say to its owner.
type parent struct {
	cfg    parentConfig
	owner  owner
	log    *slog.Logger
	gate   *gate
	server *grpc.Server
	stop   chan struct{} // closed when nobody listens to the agents any more

	mu     sync.Mutex
	agents []*agentConn // by node; nil until its hello, and kept when it is gone

	closeOnce sync.Once
	closed    chan struct{}
}

type parentConfig struct {
	node       int // theHead, or of the agent
	tree       Tree
	job        string
	generation uint32 // of hellos: the first
	build      string
	heartbeat  time.Duration
	silence    time.Duration
	excuse     Excuse
	protocol   uint32
}

// Excuse is about an agent, by its hello: whether it is at work although it says nothing, so that it is waited for. The result,
// nil where nobody can tell, is called from then on, whenever the agent has been silent for too long.
type Excuse func(hello *pb.Hello) func() bool

// of is never nil.
func (e Excuse) of(hello *pb.Hello) func() bool {
	if e != nil {
		if excuse := e(hello); excuse != nil {
			return excuse
		}
	}
	return func() bool { return false }
}

// owner acts on what happens to agents; calls for one agent do not overlap.
type owner interface {
	// hear acts on a message, the first of which is the agent's hello. It may wait, and the agent with it. An error
	// means that the agent cannot be trusted to count any more.
	hear(a *agentConn, m *pb.FromAgent) error
	// left tells that an agent went in order.
	left(a *agentConn)
	// lost tells that it went otherwise.
	lost(a *agentConn, reason string)
	// refused tells who was not let in.
	refused(hello *pb.Hello, from, reason string)
}

func newParent(cfg parentConfig, o owner, config *tls.Config, log *slog.Logger) *parent {
	p := &parent{cfg: cfg, owner: o, log: log, stop: make(chan struct{}), agents: make([]*agentConn, cfg.tree.Nodes), closed: make(chan struct{})}
	p.gate = newGate(config, log)
	p.server = grpc.NewServer(
		grpc.Creds(memberCredentials{}),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(MaxUp),
		grpc.MaxSendMsgSize(MaxDown),
		grpc.MaxConcurrentStreams(1),
		grpc.MaxHeaderListSize(16<<10),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(streamWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: handshakeTimeout}), // connections without a stream
		grpc.WaitForHandlers(true),
	)
	pb.RegisterParentServer(p.server, parentService{parent: p})
	return p
}

// serve accepts agents on the listeners until the end; when the context is done it calls stop.
func (p *parent) serve(ctx context.Context, stop func(context.Context), listeners []net.Listener) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		group.Go(func() error {
			if err := p.gate.serve(l); err != nil {
				return fmt.Errorf("listening for agents on %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	group.Go(func() error {
		err := p.server.Serve(p.gate)
		if err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("serving agents: %w", err)
		}
		return nil
	})
	select {
	case <-groupCtx.Done(): // by the caller, or because a listener failed
		stop(groupCtx)
	case <-p.closed:
	}
	return group.Wait()
}

// end stops listening and waits for agents to close their streams (they do after a Shutdown); once ctx is done it cuts
// the rest off. After the last word of any of them it calls finally.
func (p *parent) end(ctx context.Context, finally func()) {
	p.closeOnce.Do(func() {
		_ = p.gate.Close()
		graceful := make(chan struct{})
		go func() {
			p.server.GracefulStop()
			close(graceful)
		}()
		select {
		case <-graceful:
			close(p.stop)
		case <-ctx.Done():
			close(p.stop)
			p.server.Stop()
			<-graceful
		}
		finally()
		close(p.closed)
	})
	<-p.closed
}

// broadcast queues a message for every agent that reports here, and for all that report to those.
func (p *parent) broadcast(m *pb.ToAgent, size int) {
	down := &pb.ToAgent{Generation: m.Generation, To: toAll, Kind: m.Kind}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.agents {
		switch {
		case a == nil:
		case a.via != nil:
			a.expect(m)
		default:
			_ = a.post(down, size) // the loss of an agent is an event of its own
		}
	}
}

func checkDown(m *pb.ToAgent) (int, error) {
	size := proto.Size(m)
	if size > MaxDown {
		return 0, fmt.Errorf("a message of %d MiB for an agent is longer than the limit of %d MiB; is the environment of the ranks that large?", size>>20, MaxDown>>20)
	}
	return size, nil
}

// parentService is the gRPC face of a parent.
type parentService struct {
	pb.UnimplementedParentServer
	parent *parent
}

// Connect runs one agent's stream, from its hello to its end.
func (s parentService) Connect(st stream) error {
	return s.parent.connect(st)
}

func (p *parent) connect(st stream) error {
	from, ok := peer.FromContext(st.Context())
	if !ok {
		return status.Error(codes.Internal, "no peer")
	}
	auth, ok := from.AuthInfo.(memberAuth)
	if !ok {
		return status.Error(codes.Unauthenticated, "not a member of the job")
	}

	impatient := watchdog.New(p.cfg.silence, p.cfg.heartbeat, auth.conn.cut)
	first, err := st.Recv()
	impatient.Stop()
	if err != nil {
		p.log.Debug("a member left before its hello", "member", auth.conn.id.String(), "error", err)
		return nil
	}
	hello := first.GetHello()
	a, reason := p.admit(hello, auth.conn)
	if reason != "" {
		p.log.Warn("refused an agent", "from", from.Addr.String(), "reason", reason)
		refusal := &pb.Refusal{Reason: reason, Protocol: p.cfg.protocol, Build: p.cfg.build}
		if err := st.Send(&pb.ToAgent{Kind: &pb.ToAgent_Refusal{Refusal: refusal}}); err != nil {
			p.log.Debug("sending a refusal", "error", err)
		}
		p.owner.refused(hello, from.Addr.String(), reason)
		return nil
	}

	a.watch = watchdog.NewLenient(p.cfg.silence, p.cfg.heartbeat, p.cfg.excuse.of(hello), func() {
		a.fail(fmt.Sprintf("it said nothing for %v", p.cfg.silence))
	})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		a.write(st, p.cfg, p.cfg.excuse.of(hello))
	}()
	ending := p.owner.hear(a, first)
	if ending == nil {
		ending = p.read(st, a)
	} else {
		a.fail("it broke the protocol: " + ending.Error())
	}
	a.watch.Stop()
	left := a.end()
	<-sent
	a.broke = a.reason() == "" // nothing was wrong before

	switch {
	case left && errors.Is(ending, io.EOF):
		p.owner.left(a)
	case errors.Is(ending, io.EOF):
		a.fail("it closed its stream before it was told to shut down")
		fallthrough
	default:
		a.fail("its connection broke: " + reasonOf(ending))
		p.owner.lost(a, a.reason())
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
func (p *parent) read(st stream, a *agentConn) error {
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		a.watch.Alive()
		err = errors.New("a second hello")
		if m.Origin != 0 || m.GetHello() == nil {
			err = p.owner.hear(a, m)
		}
		if err != nil {
			a.fail("it broke the protocol: " + err.Error())
			return err
		}
	}
}
