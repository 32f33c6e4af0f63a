package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// A pool is what standing agents and launches of one user have in common before there is a job: a secret. Over a
// connection of the pool goes what ssh's stdin and stdout carry elsewhere.

// poolName stands where a job's id would be in the keys of a pool.
const poolName = "pool"

// PoolConn is a connection between members of a pool.
type PoolConn interface {
	net.Conn
	CloseWrite() error
	Peer() Identity // who the other end has proved to be
}

// Peer is who is at the other end.
func (c *memberConn) Peer() Identity { return c.id }

// CloseWrite tells the other end that nothing more comes.
func (c *memberConn) CloseWrite() error { return c.Conn.(*tls.Conn).CloseWrite() }

// PoolListener accepts members of a pool, and nobody else.
type PoolListener struct {
	gate  *gate
	out   chan PoolConn
	ended chan struct{} // closed when nothing is accepted any more
	err   error         // why, unless it was closed
}

// ListenPool takes connections from a listener, which it closes in the end.
func ListenPool(secret Secret, me Identity, listener net.Listener, log *slog.Logger) (*PoolListener, error) {
	config, err := tlsConfig(secret, poolName, me)
	if err != nil {
		return nil, err
	}
	config.NextProtos = nil
	l := &PoolListener{gate: newGate(config, log), out: make(chan PoolConn), ended: make(chan struct{})}
	var work sync.WaitGroup
	work.Go(func() {
		l.err = l.gate.serve(listener)
		_ = l.gate.Close()
	})
	work.Go(func() {
		for {
			conn, err := l.gate.Accept()
			if err != nil {
				return
			}
			work.Go(func() { l.await(conn.(*memberConn)) })
		}
	})
	go func() {
		work.Wait()
		close(l.ended)
	}()
	return l, nil
}

// chosen is what a member says first on the one connection that it goes on with, of several that it tried.
const chosen = 1

func (l *PoolListener) await(conn *memberConn) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-l.gate.done:
			conn.cut()
		case <-stop:
		}
	}()
	first := make([]byte, 1)
	_ = conn.SetReadDeadline(time.Now().Add(handshakeTimeout))
	if _, err := conn.Read(first); err != nil || first[0] != chosen {
		conn.cut()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	select {
	case l.out <- conn:
	case <-l.gate.done:
		conn.cut()
	}
}

// Accept returns the next member's connection.
func (l *PoolListener) Accept() (PoolConn, error) {
	select {
	case conn := <-l.out:
		return conn, nil
	case <-l.gate.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept, and says what ended it if that was not Close.
func (l *PoolListener) Close() error {
	_ = l.gate.Close()
	<-l.ended
	if l.err != nil && !errors.Is(l.err, net.ErrClosed) {
		return fmt.Errorf("listening for the pool: %w", l.err)
	}
	return nil
}

// DialPool connects to whichever of the addresses first answers as the wanted member of the pool. It goes on trying
// until ctx is done, unless only strangers answer.
func DialPool(ctx context.Context, secret Secret, me, want Identity, addresses []string) (PoolConn, error) {
	config, err := tlsConfig(secret, poolName, me)
	if err != nil {
		return nil, err
	}
	config.NextProtos = nil
	conn, err := dialMember(ctx, dialTCP, addresses, config)
	if err != nil {
		return nil, err
	}
	if conn.id != want {
		conn.cut()
		return nil, fmt.Errorf("at %s answers %v, not %v", conn.RemoteAddr(), conn.id, want)
	}
	if _, err := conn.Write([]byte{chosen}); err != nil {
		conn.cut()
		return nil, err
	}
	return conn, nil
}
