package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// Uplink is where a node's ranks are heard; an AgentLink is one.
type Uplink interface {
	Send(ctx context.Context, m *pb.FromAgent) error
}

// RankServerConfig describes an agent to its ranks.
type RankServerConfig struct {
	Build string       // of this program
	Node  int          // index of this node
	Log   *slog.Logger // slog.Default() when nil

	protocol uint32 // ProtocolVersion; tests pretend to be another build
}

// RankServer serves the ranks of one node, each over the sockets it inherited: which rank is calling
// follows from the socket, so a rank cannot speak for another.
type RankServer struct {
	cfg    RankServerConfig
	up     Uplink
	log    *slog.Logger
	broker *fdBroker
	ctx    context.Context // done after Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	roster   *pb.Roster
	world    world
	run      []byte
	networks map[int32]*pb.RankNetwork // by rank
	fences   map[uint64]*fenced        // by round: the last that was completed, and later ones
	barriers map[uint64]chan struct{}  // by sequence number: in progress
	cause    *pb.Cause
	aborted  chan struct{} // closed when cause is set
}

// NewRankServer makes the server of one generation's ranks.
func NewRankServer(up Uplink, cfg RankServerConfig) *RankServer {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.protocol == 0 {
		cfg.protocol = ProtocolVersion
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &RankServer{
		cfg:      cfg,
		up:       up,
		log:      cfg.Log.With("node", cfg.Node),
		broker:   newFDBroker(),
		ctx:      ctx,
		cancel:   cancel,
		fences:   map[uint64]*fenced{},
		barriers: map[uint64]chan struct{}{},
		aborted:  make(chan struct{}),
	}
}

// TellNetworks says which NICs are near the ranks, before they are started.
func (s *RankServer) TellNetworks(networks map[int32]*pb.RankNetwork) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.networks = networks
}

// Observe takes in what the parent said. The agent passes on every message of its link about this server's
// generation, in order, and starts ranks only after it passed on the Roster and the Start.
func (s *RankServer) Observe(m *pb.ToAgent) error {
	switch k := m.Kind.(type) {
	case *pb.ToAgent_Roster:
		w, err := newWorld(k.Roster)
		if err != nil {
			return err
		}
		if s.cfg.Node >= len(w.nodes) {
			return fmt.Errorf("roster: it has %d nodes, and this is node %d", len(w.nodes), s.cfg.Node)
		}
		self := w.nodes[s.cfg.Node]
		s.mu.Lock()
		s.roster, s.world = k.Roster, w
		s.mu.Unlock()
		s.broker.setRanks(self.FirstRank, self.Ranks)
	case *pb.ToAgent_Start:
		s.mu.Lock()
		s.run = k.Start.GetRun()
		s.mu.Unlock()
	case *pb.ToAgent_FenceDone:
		return s.fenceDone(k.FenceDone)
	case *pb.ToAgent_BarrierDone:
		s.mu.Lock()
		if done, ok := s.barriers[k.BarrierDone.GetSeq()]; ok {
			close(done)
			delete(s.barriers, k.BarrierDone.GetSeq())
		}
		s.mu.Unlock()
	case *pb.ToAgent_Abort:
		s.Abort(k.Abort.GetCause())
	}
	return nil
}

func (s *RankServer) fenceDone(d *pb.FenceDone) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fenceLocked(d.GetRound())
	if !pending(f.done) {
		return fmt.Errorf("the head completed fence %d twice", d.GetRound())
	}
	f.add(d.GetBlobs())
	if d.GetMore() {
		return nil
	}
	close(f.done)
	for round := range s.fences { // every rank has entered this round, so none reads an earlier one
		if round < d.GetRound() {
			delete(s.fences, round)
		}
	}
	return nil
}

func (s *RankServer) fenceLocked(round uint64) *fenced {
	f := s.fences[round]
	if f == nil {
		f = newFenced()
		s.fences[round] = f
	}
	return f
}

// Abort tells the ranks why the job ends, and fails whatever they wait for. The first cause counts.
func (s *RankServer) Abort(cause *pb.Cause) {
	if cause == nil {
		cause = &pb.Cause{Node: -1, Rank: -1, Reason: "no reason was given"}
	}
	s.mu.Lock()
	first := s.cause == nil
	if first {
		s.cause = cause
		close(s.aborted)
	}
	s.mu.Unlock()
	if first {
		s.broker.close(&AbortedError{Cause: cause})
	}
}

// AbortedError is returned by whatever a rank waits for when the job is aborted.
type AbortedError struct {
	Cause *pb.Cause
}

func (e *AbortedError) Error() string { return "the job was aborted: " + e.Cause.GetReason() }

// Serve answers one rank over the agent's ends of its sockets, which it closes, and returns when the
// rank is gone, or after Close. The error is for what a rank may not do; its death is none.
func (s *RankServer) Serve(rank int, session, broker *net.UnixConn) error {
	defer func() { _ = session.Close(); _ = broker.Close() }()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errors.New("the rank server is closed")
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	for _, c := range []*net.UnixConn{session, broker} {
		if err := checkPeer(c); err != nil {
			return fmt.Errorf("socket of rank %d: %w", rank, err)
		}
	}

	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(MaxUp),
		grpc.MaxSendMsgSize(MaxDown),
		grpc.MaxConcurrentStreams(64),
		grpc.MaxHeaderListSize(16<<10),
		grpc.ConnectionTimeout(rankPatience),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterAgentServer(server, &rankService{server: s, rank: int32(rank)})
	stop := context.AfterFunc(s.ctx, func() {
		_ = broker.Close()
		server.Stop()
	})
	defer stop()
	files := make(chan error, 1)
	go func() { files <- s.broker.serve(rank, broker) }()
	listener := newOneConn(session)
	if err := server.Serve(listener); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, grpc.ErrServerStopped) {
		s.log.Debug("serving a rank", "rank", rank, "error", err)
	}
	server.Stop()
	_ = broker.Close()
	return <-files
}

// Close ends all ranks' sessions and closes the files they shared.
func (s *RankServer) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.broker.close(errors.New("the agent is shutting down"))
	s.cancel()
	s.wg.Wait()
}

// oneConn is a listener that accepts one connection, and ends when that does.
type oneConn struct {
	conn   *closeNotifier
	accept chan net.Conn
}

func newOneConn(conn net.Conn) *oneConn {
	l := &oneConn{conn: &closeNotifier{Conn: conn, closed: make(chan struct{})}, accept: make(chan net.Conn, 1)}
	l.accept <- l.conn
	return l
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.conn.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error   { return l.conn.Close() }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

type closeNotifier struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *closeNotifier) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
