package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/watchdog"
)

// AgentConfig says who an agent is and where its parent may be.
type AgentConfig struct {
	Parents     []string // host:port; tried at the same time
	Job         string
	Generation  uint32
	Node        int    // index assigned by the launcher
	Incarnation uint64 // random per agent process, not 0
	Secret      Secret
	Build       string      // of this program
	Hostname    string      // os.Hostname() when empty
	Addresses   []string    // host:port of this agent's gossip, as peers may reach it
	Dial        DialFunc    // TCP when nil
	Excuse      func() bool // whether the parent is at work although it says nothing; nil: nobody can tell
	Log         *slog.Logger

	protocol uint32 // ProtocolVersion; tests pretend to be another build
}

// RefusedError is a parent's refusal to take this agent.
type RefusedError struct {
	Reason   string
	Protocol uint32 // of the parent
	Build    string // of the parent
}

func (e *RefusedError) Error() string { return "the head refused this agent: " + e.Reason }

// ErrClosed is the end of a link that this side closed.
var ErrClosed = errors.New("the link to the parent was closed")

// AgentLink is an agent's stream to its parent.
type AgentLink struct {
	node     int
	log      *slog.Logger
	conn     *memberConn
	client   *grpc.ClientConn
	stream   grpc.BidiStreamingClient[pb.FromAgent, pb.ToAgent]
	cancel   context.CancelFunc
	watch    *watchdog.Watchdog
	welcome  *pb.Welcome
	messages chan *pb.ToAgent
	sending  chan struct{} // holds a token while nobody sends
	closing  chan struct{}

	endOnce   sync.Once
	closeOnce sync.Once
	wg        sync.WaitGroup
	finished  chan struct{} // closed when nothing of the link runs any more
	done      chan struct{}
	err       error // set before done is closed
}

// Dial connects to a parent and says hello. It keeps trying to connect until ctx is done, unless only
// strangers answer; a refusal (a *RefusedError) is final.
func Dial(ctx context.Context, cfg AgentConfig) (*AgentLink, error) {
	if cfg.Incarnation == 0 {
		return nil, errors.New("an agent needs an incarnation that is not 0")
	}
	if cfg.protocol == 0 {
		cfg.protocol = ProtocolVersion
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	if cfg.Hostname == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("asking for the host's name: %w", err)
		}
		cfg.Hostname = name
	}
	config, err := tlsConfig(cfg.Secret, cfg.Job, Identity{RoleAgent, cfg.Node})
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		conn, err := dialMember(ctx, cfg.Dial, cfg.Parents, config)
		if err != nil {
			return nil, fmt.Errorf("node %d (%s) cannot reach its parent: %w", cfg.Node, cfg.Hostname, err)
		}
		link, err := greet(ctx, cfg, conn)
		if err == nil {
			return link, nil
		}
		conn.cut()
		// A parent that many greet at once may hang up on some before it has read a word of theirs.
		if status.Code(errors.Unwrap(err)) != codes.Unavailable || try == greetTries || ctx.Err() != nil {
			return nil, err
		}
	}
}

const greetTries = 3

// greet opens the stream over an authenticated connection and exchanges hello and welcome.
func greet(ctx context.Context, cfg AgentConfig, conn *memberConn) (*AgentLink, error) {
	client, err := clientOver(conn,
		grpc.WithTransportCredentials(memberCredentials{}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxDown), grpc.MaxCallSendMsgSize(MaxUp)))
	if err != nil {
		return nil, err
	}
	streamCtx, cancel := context.WithCancel(context.Background()) // outlives ctx, which bounds the dialling
	l := &AgentLink{
		node:     cfg.Node,
		log:      cfg.Log.With("job", cfg.Job, "node", cfg.Node),
		conn:     conn,
		client:   client,
		cancel:   cancel,
		messages: make(chan *pb.ToAgent, 64),
		sending:  make(chan struct{}, 1),
		closing:  make(chan struct{}),
		done:     make(chan struct{}),
		finished: make(chan struct{}),
	}
	l.sending <- struct{}{}
	giveUp := context.AfterFunc(ctx, cancel)
	err = l.hello(streamCtx, cfg)
	if !giveUp() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		_ = client.Close()
		var refused *RefusedError
		if !errors.As(err, &refused) {
			err = fmt.Errorf("node %d (%s) greeting its parent at %s: %w", cfg.Node, cfg.Hostname, conn.RemoteAddr(), err)
		}
		return nil, err
	}
	heartbeat := time.Duration(l.welcome.HeartbeatMs) * time.Millisecond
	silence := time.Duration(l.welcome.SilenceMs) * time.Millisecond
	excuse := cfg.Excuse
	if excuse == nil {
		excuse = func() bool { return false }
	}
	l.watch = watchdog.NewLenient(silence, heartbeat, excuse, func() {
		l.end(fmt.Errorf("the parent at %s said nothing for %v", conn.RemoteAddr(), silence))
	})
	l.wg.Go(func() { l.beat(heartbeat) })
	l.wg.Go(l.read)
	go func() {
		l.wg.Wait()
		_ = client.Close()
		close(l.messages)
		close(l.finished)
	}()
	return l, nil
}

func (l *AgentLink) hello(ctx context.Context, cfg AgentConfig) error {
	stream, err := pb.NewParentClient(l.client).Connect(ctx)
	if err != nil {
		return err
	}
	l.stream = stream
	err = stream.Send(&pb.FromAgent{Kind: &pb.FromAgent_Hello{Hello: &pb.Hello{
		Protocol:    cfg.protocol,
		Build:       cfg.Build,
		Job:         cfg.Job,
		Generation:  cfg.Generation,
		Node:        int32(cfg.Node),
		Incarnation: cfg.Incarnation,
		Hostname:    cfg.Hostname,
		Pid:         int32(os.Getpid()),
		Addresses:   cfg.Addresses,
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: Recv has the reason
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if r := first.GetRefusal(); r != nil {
		return &RefusedError{Reason: r.Reason, Protocol: r.Protocol, Build: r.Build}
	}
	w := first.GetWelcome()
	switch {
	case w == nil:
		return errors.New("the parent's first message is neither a welcome nor a refusal")
	case w.Protocol != cfg.protocol:
		return fmt.Errorf("the parent speaks protocol %d (build %q), this agent protocol %d (build %q)", w.Protocol, w.Build, cfg.protocol, cfg.Build)
	case w.HeartbeatMs < 1 || w.SilenceMs <= w.HeartbeatMs:
		return fmt.Errorf("the parent asks for a heartbeat every %d ms and gives up after %d ms, which cannot work", w.HeartbeatMs, w.SilenceMs)
	}
	l.welcome = w
	return nil
}

// Bounds are how often the two ends say that they live, and how long the parent waits for a word.
func (l *AgentLink) Bounds() (heartbeat, silence time.Duration) {
	return time.Duration(l.welcome.HeartbeatMs) * time.Millisecond, time.Duration(l.welcome.SilenceMs) * time.Millisecond * 2 / 3
}

// Messages delivers what the parent says, in order, and is closed when the link has ended. While the
// agent does not read, the parent's silence does not count.
func (l *AgentLink) Messages() <-chan *pb.ToAgent { return l.messages }

// Done is closed when the link has ended; Err then says why.
func (l *AgentLink) Done() <-chan struct{} { return l.done }

// Err is nil while the link lives, ErrClosed after Close, and else the reason why the parent is lost.
func (l *AgentLink) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
		return nil
	}
}

// Suspend lets the parent's silence not count until Resume: it said that it will be stopped. Its death is seen all the same.
func (l *AgentLink) Suspend() { l.watch.Pause() }

// Resume ends Suspend.
func (l *AgentLink) Resume() { l.watch.Resume() }

// Send sends one message, after those whose Send has returned. It waits while the parent takes no
// more, so nothing piles up here and nothing is dropped; output of any length is split as needed.
// It fails when the link ends or ctx is done before the message's turn comes.
func (l *AgentLink) Send(ctx context.Context, m *pb.FromAgent) error {
	if size := proto.Size(m); size > MaxUp && m.GetOutput() == nil {
		return fmt.Errorf("a message of %d MiB for the head is longer than the limit of %d MiB", size>>20, MaxUp>>20)
	}
	select {
	case <-l.sending:
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { l.sending <- struct{}{} }()
	select {
	case <-l.closing:
		return ErrClosed
	default:
	}
	if out := m.GetOutput(); out != nil && len(out.Data) > MaxOutput {
		for data := out.Data; len(data) > 0; {
			n := min(len(data), MaxOutput)
			piece := &pb.Output{Rank: out.Rank, Stream: out.Stream, UnixNs: out.UnixNs, Data: data[:n]}
			if err := l.send(&pb.FromAgent{Generation: m.Generation, Origin: m.Origin, Kind: &pb.FromAgent_Output{Output: piece}}); err != nil {
				return err
			}
			data = data[n:]
		}
		return nil
	}
	return l.send(m)
}

// send needs the token. A blocked send ends with the link.
func (l *AgentLink) send(m *pb.FromAgent) error {
	makeValid(m)
	err := l.stream.Send(m)
	if err == nil {
		return nil
	}
	<-l.done // the reader sees the same end, and knows why
	return l.err
}

// beat sends a heartbeat whenever one is due and the way is free: while it is not, either other
// messages show that this agent lives, or the parent itself is not listening.
func (l *AgentLink) beat(every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for seq := uint64(1); ; seq++ {
		select {
		case <-ticker.C:
		case <-l.done:
			return
		}
		select {
		case <-l.sending:
		case <-l.done:
			return
		}
		var err error
		select {
		case <-l.closing:
		default:
			err = l.stream.Send(&pb.FromAgent{Kind: &pb.FromAgent_Heartbeat{Heartbeat: &pb.Heartbeat{Seq: seq}}})
		}
		l.sending <- struct{}{}
		if err != nil {
			return
		}
	}
}

func (l *AgentLink) read() {
	for {
		m, err := l.stream.Recv()
		if err != nil {
			select {
			case <-l.closing:
				err = ErrClosed
			default:
				err = fmt.Errorf("the connection to the parent at %s broke: %w", l.conn.RemoteAddr(), err)
			}
			l.end(err)
			return
		}
		l.watch.Alive()
		if m.Kind == nil || m.GetHeartbeat() != nil {
			continue
		}
		if r := m.GetRefusal(); r != nil && (m.To == 0 || m.To == toNode(l.node)) { // by the head, after the parent had let it in
			l.end(&RefusedError{Reason: r.Reason, Protocol: r.Protocol, Build: r.Build})
			return
		}
		select {
		case l.messages <- m:
			continue
		default:
		}
		l.watch.Pause()
		select {
		case l.messages <- m:
		case <-l.closing: // nobody reads any more; go on to the end of the stream
		case <-l.conn.dead:
			l.end(fmt.Errorf("the connection to the parent at %s broke while this agent was busy", l.conn.RemoteAddr()))
			return
		case <-l.done:
			return
		}
		l.watch.Resume()
	}
}

// end notes why the link ended and stops everything that runs on it.
func (l *AgentLink) end(err error) {
	l.endOnce.Do(func() {
		l.err = err
		close(l.done)
		l.watch.Stop()
		l.cancel()
		l.conn.cut()
	})
}

// Close ends the link in order: what was sent arrives, then the parent sees the end. It waits for the
// parent to agree, no longer than for a silent one or until ctx is done.
func (l *AgentLink) Close(ctx context.Context) error {
	l.closeOnce.Do(func() {
		close(l.closing)
		select {
		case <-l.sending:
			_ = l.stream.CloseSend() // fails only when the stream has ended anyway
			l.sending <- struct{}{}
		case <-l.done:
		case <-ctx.Done():
		}
	})
	select {
	case <-l.done:
	case <-ctx.Done():
		l.end(ErrClosed)
	}
	<-l.finished
	if !errors.Is(l.err, ErrClosed) {
		return l.err
	}
	return nil
}
