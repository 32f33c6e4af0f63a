package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/mkrun/mkrun/internal/engine"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// RankInfo is what a rank learns when it attaches.
type RankInfo struct {
	Job        string
	Generation uint32
	Rank       int
	Roster     *pb.Roster
	Run        []byte          // the operator's run, as the launcher sent it
	Network    *pb.RankNetwork // NICs near the rank; nil where nobody looked
}

// Rank is a rank's end of its session. It connects the rank's engine to its peers (engine.Bootstrap)
// and carries its report and the job's abort.
//
// What is Put before a Fence can be read after it, until the next one. A Fence or Barrier that was
// given up by its context is not left: the next call goes on waiting for it.
type Rank struct {
	info    RankInfo
	client  *grpc.ClientConn
	agent   pb.AgentClient
	files   *brokerClient
	aborted chan *pb.Cause
	fence   joinable
	barrier joinable

	ctx    context.Context // done after Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // changes under mu
}

var _ engine.Bootstrap = (*Rank)(nil)

// Attach opens a rank's session over the sockets it inherited (see InheritedFiles), which it takes over.
func Attach(ctx context.Context, session, broker *os.File, build string) (*Rank, error) {
	return attach(ctx, session, broker, build, ProtocolVersion)
}

func attach(ctx context.Context, session, broker *os.File, build string, protocol uint32) (*Rank, error) {
	brokerConn, err := unixConn(broker)
	if err != nil {
		_ = session.Close()
		return nil, fmt.Errorf("attaching to the agent: %w", err)
	}
	sessionConn, err := unixConn(session)
	if err != nil {
		_ = brokerConn.Close()
		return nil, fmt.Errorf("attaching to the agent: %w", err)
	}
	client, err := clientOver(sessionConn,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // nobody else has this socket
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxDown), grpc.MaxCallSendMsgSize(MaxUp)))
	if err != nil {
		_ = brokerConn.Close()
		_ = sessionConn.Close()
		return nil, fmt.Errorf("attaching to the agent: %w", err)
	}
	lifetime, cancel := context.WithCancel(context.Background())
	r := &Rank{
		client:  client,
		agent:   pb.NewAgentClient(client),
		ctx:     lifetime,
		cancel:  cancel,
		aborted: make(chan *pb.Cause, 1),
		files:   newBrokerClient(brokerConn),
	}
	reply, err := r.agent.Attach(ctx, &pb.AttachRequest{Protocol: protocol, Build: build, Pid: int32(os.Getpid())})
	if err == nil {
		r.info = RankInfo{Job: reply.Job, Generation: reply.Generation, Rank: int(reply.Rank), Roster: reply.Roster, Run: reply.Run, Network: reply.Network}
		var watch grpc.ServerStreamingClient[pb.Abort]
		if watch, err = r.agent.WatchAbort(lifetime, &pb.Empty{}); err == nil {
			r.start(func() { r.watch(watch) })
			return r, nil
		}
	}
	r.Close()
	return nil, r.explain("attaching to the agent", err)
}

// start runs f until Close at the latest; f must end when r.ctx does.
func (r *Rank) start(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.wg.Go(f)
	}
	return !r.closed
}

// watch waits for the job's abort; the loss of the agent is one too.
func (r *Rank) watch(stream grpc.ServerStreamingClient[pb.Abort]) {
	defer close(r.aborted)
	m, err := stream.Recv()
	switch {
	case err == nil && m.Cause != nil:
		r.aborted <- m.Cause
	case r.ctx.Err() == nil:
		r.aborted <- &pb.Cause{Kind: pb.Cause_AGENT_LOST, Node: -1, Rank: -1, Reason: "the agent of this node is gone"}
	}
}

// Info tells who this rank is and what it shall run.
func (r *Rank) Info() RankInfo { return r.info }

// Aborted delivers the cause once when the job is aborted or this node's agent is lost, and is then
// closed; after Close it is closed without one.
func (r *Rank) Aborted() <-chan *pb.Cause { return r.aborted }

// explain turns what gRPC says into what a person wants to know.
func (r *Rank) explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%s: %w", doing, err)
	}
	switch s.Code() {
	case codes.Aborted:
		for _, detail := range s.Details() {
			if cause, ok := detail.(*pb.Cause); ok {
				return fmt.Errorf("%s: %w", doing, &AbortedError{Cause: cause})
			}
		}
	case codes.Canceled:
		return fmt.Errorf("%s: %w", doing, context.Canceled)
	case codes.DeadlineExceeded:
		return fmt.Errorf("%s: %w", doing, context.DeadlineExceeded)
	}
	return fmt.Errorf("%s: %s", doing, s.Message())
}

// Put publishes endpoint data for one rank, or for engine.Everyone. Several puts to the same rank
// before a fence are joined in their order.
func (r *Rank) Put(ctx context.Context, to int, blob []byte) error {
	for first := true; first || len(blob) > 0; first = false { // an empty blob is one empty chunk
		n := min(len(blob), MaxChunk)
		if _, err := r.agent.Put(ctx, &pb.RankPut{To: int32(to), Chunk: blob[:n]}); err != nil {
			return r.explain("publishing endpoint data", err)
		}
		blob = blob[n:]
	}
	return nil
}

// Fence returns when every rank of the job has called it.
func (r *Rank) Fence(ctx context.Context) error {
	return r.explain("exchanging endpoint data", r.fence.do(ctx, r, r.agent.Fence))
}

// Get returns what a rank put before the last fence for everyone, and for this rank; nil for what it did not put.
func (r *Rank) Get(ctx context.Context, from int) (common, private []byte, err error) {
	doing := fmt.Sprintf("getting the endpoint data of rank %d", from)
	stream, err := r.agent.Get(ctx, &pb.GetRequest{From: int32(from)})
	if err != nil {
		return nil, nil, r.explain(doing, err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return common, private, nil
		}
		if err != nil {
			return nil, nil, r.explain(doing, err)
		}
		if m.HasPrivate {
			private = appendChunk(private, m.PrivateChunk)
		} else {
			common = appendChunk(common, m.CommonChunk)
		}
	}
}

// appendChunk keeps an empty blob apart from none.
func appendChunk(blob, chunk []byte) []byte {
	if blob == nil {
		blob = []byte{}
	}
	return append(blob, chunk...)
}

// ShareFile offers a file to the ranks of this node under a name, which this rank may use once. The
// file stays the caller's and may be closed afterwards.
func (r *Rank) ShareFile(ctx context.Context, name string, f *os.File) error {
	if err := r.files.share(ctx, name, f); err != nil {
		return fmt.Errorf("sharing %q with the ranks of this node: %w", name, err)
	}
	return nil
}

// PeerFile returns a file that a rank of this node shares, waiting until it does. The caller closes it.
func (r *Rank) PeerFile(ctx context.Context, rank int, name string) (*os.File, error) {
	f, err := r.files.want(ctx, rank, name)
	if err != nil {
		return nil, fmt.Errorf("getting %q of rank %d: %w", name, rank, err)
	}
	return f, nil
}

// Barrier returns when every rank of the job has entered it.
func (r *Rank) Barrier(ctx context.Context) error {
	return r.explain("waiting in a barrier", r.barrier.do(ctx, r, r.agent.Barrier))
}

// joinable is a collective call: once begun it runs until it is done, since the other ranks count on
// it. A caller that gives up leaves it running, and the next one joins it.
type joinable struct {
	mu   sync.Mutex
	done chan struct{} // of the call in progress, or of one whose end nobody has seen; else nil
	err  error         // set before done is closed
}

func (j *joinable) do(ctx context.Context, r *Rank, call func(context.Context, *pb.Empty, ...grpc.CallOption) (*pb.Empty, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j.mu.Lock()
	if j.done == nil {
		done := make(chan struct{})
		if !r.start(func() {
			_, j.err = call(r.ctx, &pb.Empty{})
			close(done)
		}) {
			j.mu.Unlock()
			return errRankClosed
		}
		j.done = done
	}
	done := j.done
	j.mu.Unlock()
	select {
	case <-done:
		j.mu.Lock()
		defer j.mu.Unlock()
		err := j.err
		if j.done == done {
			j.done = nil
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errRankClosed = errors.New("the rank's session was closed")

// Report sends the rank's final, or failing, word about its run.
func (r *Rank) Report(ctx context.Context, json []byte) error {
	_, err := r.agent.Report(ctx, &pb.RankReport{Json: json})
	return r.explain("reporting the result", err)
}

// Complaint is why a rank cannot go on.
type Complaint struct {
	Reason     string
	ExitStatus int  // that mkrun ends with, if this turns out to be the cause
	PeerLost   bool // the reason is only that a peer is gone
}

// RequestAbort asks the head to end the job because of something this rank found.
func (r *Rank) RequestAbort(ctx context.Context, c Complaint) error {
	request := &pb.AbortRequest{Reason: c.Reason, ExitStatus: int32(c.ExitStatus), PeerLost: c.PeerLost}
	makeValid(request)
	_, err := r.agent.RequestAbort(ctx, request)
	return r.explain("asking for the job's end", err)
}

// Close ends the session. Calls in progress fail.
func (r *Rank) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	_ = r.client.Close() // reports only that it was closed before
	r.files.close()
	r.wg.Wait()
}

// brokerClient is a rank's end of its file socket. Any number of requests may wait at once.
type brokerClient struct {
	conn *net.UnixConn
	done chan struct{} // closed when the reader has ended

	mu      sync.Mutex
	next    uint32
	waiting map[uint32]chan brokerMessage
	err     error
}

func newBrokerClient(conn *net.UnixConn) *brokerClient {
	c := &brokerClient{conn: conn, done: make(chan struct{}), waiting: map[uint32]chan brokerMessage{}}
	go c.read()
	return c
}

// read hands replies to those who wait; a file that nobody waits for any more is closed.
func (c *brokerClient) read() {
	defer close(c.done)
	for {
		m, err := readBroker(c.conn)
		if err == nil && m.op != opReply {
			m.closeFile()
			err = errors.New("the agent sent a request where a reply belongs")
		}
		c.mu.Lock()
		if err != nil {
			c.err = fmt.Errorf("the file socket to the agent ended: %w", err)
			c.mu.Unlock()
			return
		}
		reply := c.waiting[m.id]
		delete(c.waiting, m.id)
		if reply != nil {
			reply <- m // has room for one, and gets one
		} else {
			m.closeFile()
		}
		c.mu.Unlock()
	}
}

func (c *brokerClient) call(ctx context.Context, m brokerMessage) (*os.File, error) {
	if err := checkFileName(m.text); err != nil {
		return nil, err
	}
	reply := make(chan brokerMessage, 1)
	c.mu.Lock()
	m.id = c.next
	c.next++
	c.waiting[m.id] = reply
	c.mu.Unlock()
	if err := writeBroker(c.conn, m, true); err != nil {
		c.abandon(m.id, reply)
		return nil, err
	}
	select {
	case answer := <-reply:
		if answer.text != "" {
			answer.closeFile()
			return nil, errors.New(answer.text)
		}
		return answer.file, nil
	case <-ctx.Done():
		c.abandon(m.id, reply)
		return nil, ctx.Err()
	case <-c.done:
		c.abandon(m.id, reply)
		return nil, c.err
	}
}

// abandon gives a request up, with the file that may have come just now.
func (c *brokerClient) abandon(id uint32, reply chan brokerMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
	select {
	case m := <-reply:
		m.closeFile()
	default:
	}
}

func (c *brokerClient) share(ctx context.Context, name string, f *os.File) error {
	reply, err := c.call(ctx, brokerMessage{op: opShare, text: name, file: f})
	if reply != nil {
		_ = reply.Close()
	}
	return err
}

func (c *brokerClient) want(ctx context.Context, rank int, name string) (*os.File, error) {
	f, err := c.call(ctx, brokerMessage{op: opWant, rank: int32(rank), text: name})
	if err == nil && f == nil {
		err = errors.New("the agent's answer came without a file")
	}
	return f, err
}

func (c *brokerClient) close() {
	_ = c.conn.Close()
	<-c.done
}
