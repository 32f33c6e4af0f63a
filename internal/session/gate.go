package session

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// handshakeTimeout bounds how long a stranger may keep a connection.
	handshakeTimeout = 5 * time.Second
	// strangers is how many connections may be in the handshake at once; a member that is turned
	// away at such a moment tries again.
	strangers = 256
)

// gate lets members of the job through to the gRPC server and nobody else: a connection that has not
// finished the TLS handshake never reaches a line of gRPC code. It is a net.Listener of authenticated
// connections.
type gate struct {
	tls  *tls.Config
	log  *slog.Logger
	out  chan net.Conn
	done chan struct{}

	mu        sync.Mutex
	closed    bool
	listeners []net.Listener
	inside    map[net.Conn]struct{} // connections in the handshake
	wg        sync.WaitGroup
}

func newGate(config *tls.Config, log *slog.Logger) *gate {
	return &gate{tls: config, log: log, out: make(chan net.Conn), done: make(chan struct{}), inside: map[net.Conn]struct{}{}}
}

// serve accepts from one listener, which it closes in the end, until the gate is closed.
func (g *gate) serve(l net.Listener) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		_ = l.Close()
		return nil
	}
	g.listeners = append(g.listeners, l)
	g.wg.Add(1)
	g.mu.Unlock()
	defer g.wg.Done()
	for {
		conn, err := l.Accept()
		if err != nil {
			select {
			case <-g.done:
				return nil
			default:
			}
			if temporary(err) { // out of descriptors, say: others close theirs in time
				g.log.Warn("accepting a connection", "listener", l.Addr().String(), "error", err)
				select {
				case <-time.After(50 * time.Millisecond):
					continue
				case <-g.done:
					return nil
				}
			}
			return err
		}
		if !g.enter(conn) {
			_ = conn.Close()
			continue
		}
		go g.admit(conn)
	}
}

func temporary(err error) bool {
	var ne net.Error
	return !errors.Is(err, net.ErrClosed) && errors.As(err, &ne)
}

func (g *gate) enter(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || len(g.inside) >= strangers {
		return false
	}
	g.inside[conn] = struct{}{}
	g.wg.Add(1)
	return true
}

func (g *gate) admit(raw net.Conn) {
	defer g.wg.Done()
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	limited := &handshakeConn{Conn: raw}
	limited.left.Store(maxHandshake)
	conn := tls.Server(limited, g.tls)
	err := conn.HandshakeContext(ctx)
	limited.left.Store(math.MaxInt64)
	g.mu.Lock()
	delete(g.inside, raw)
	g.mu.Unlock()
	var id Identity
	if err == nil {
		id, err = peerIdentity(conn.ConnectionState())
	}
	if err != nil {
		g.log.Debug("turned a connection away", "from", raw.RemoteAddr().String(), "error", err)
		_ = raw.Close()
		return
	}
	select {
	case g.out <- newMemberConn(conn, raw, id):
	case <-g.done:
		_ = raw.Close()
	}
}

// maxHandshake bounds what is read from somebody who has not proved to be a member: a member's handshake takes some 3 KiB.
const maxHandshake = 8 << 10

// handshakeConn is a connection of which no more than so many bytes are read.
type handshakeConn struct {
	net.Conn
	left atomic.Int64
}

func (c *handshakeConn) Read(b []byte) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		return 0, errors.New("more than a handshake takes")
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	c.left.Add(-int64(n))
	return n, err
}

// Accept returns the next member's connection.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case conn := <-g.out:
		return conn, nil
	case <-g.done:
		return nil, net.ErrClosed
	}
}

// Close closes the listeners and everything that is still in the handshake.
func (g *gate) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	close(g.done)
	for _, l := range g.listeners {
		_ = l.Close()
	}
	for conn := range g.inside {
		_ = conn.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
	return nil
}

// Addr names the gate in gRPC's own diagnostics.
func (g *gate) Addr() net.Addr { return gateAddr{} }

type gateAddr struct{}

func (gateAddr) Network() string { return "mkrun" }
func (gateAddr) String() string  { return "session" }

// memberConn is a connection whose other end proved to be a member.
type memberConn struct {
	net.Conn // the TLS layer
	raw      net.Conn
	id       Identity
	once     sync.Once
	dead     chan struct{} // closed when nothing can be read any more, however much is unread above
}

func newMemberConn(conn *tls.Conn, raw net.Conn, id Identity) *memberConn {
	return &memberConn{Conn: conn, raw: raw, id: id, dead: make(chan struct{})}
}

func (c *memberConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.once.Do(func() { close(c.dead) })
	}
	return n, err
}

// cut ends the connection at once, whatever is in flight. The stream's reader and writer both return.
func (c *memberConn) cut() { _ = c.raw.Close() }

// memberCredentials tells gRPC what the gate has already found out about a connection.
type memberCredentials struct{}

type memberAuth struct {
	credentials.CommonAuthInfo
	conn *memberConn
}

func (memberAuth) AuthType() string { return "tls" }

func (memberCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	member, ok := conn.(*memberConn)
	if !ok {
		return nil, nil, errors.New("a connection came past the gate")
	}
	return conn, memberAuth{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, member}, nil
}

func (memberCredentials) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, memberAuth{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (memberCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c memberCredentials) Clone() credentials.TransportCredentials { return c }

func (memberCredentials) OverrideServerName(string) error { return nil }
