package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// DialFunc opens a connection to an address of a parent.
type DialFunc func(ctx context.Context, address string) (net.Conn, error)

const (
	dialAttempt  = 5 * time.Second       // bounds the first attempt at one address; each that runs out gives the next twice the time,
	dialPatience = 20 * time.Second      // up to this: many that greet a busy parent at once must not all begin anew for ever
	dialPauseMin = 20 * time.Millisecond // between attempts at one address
	dialPauseMax = time.Second
)

// errStranger marks an address where somebody answers who is not of this job.
var errStranger = errors.New("whoever answers there is not a member of this job (another job's port, or another secret)")

// dialMember connects to whichever of the addresses first answers as a member of the job. Addresses
// are tried at once and, except where a stranger answers, again until ctx is done: some may never
// be reachable from here, and the parent may be slower to come up than its children.
func dialMember(ctx context.Context, dial DialFunc, addresses []string, config *tls.Config) (*memberConn, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no address of a parent to connect to")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		index int
		conn  *memberConn
		err   error
	}
	results := make(chan result)
	for i, address := range addresses {
		go func() {
			conn, err := dialUntil(ctx, dial, address, config)
			results <- result{i, conn, err}
		}()
	}
	var winner *memberConn
	failures := make(dialErrors, len(addresses))
	for range addresses {
		r := <-results
		switch {
		case r.err != nil:
			failures[r.index] = fmt.Errorf("%s: %w", addresses[r.index], r.err)
		case winner == nil:
			winner = r.conn
			cancel()
		default:
			r.conn.cut()
		}
	}
	if winner == nil {
		return nil, failures
	}
	return winner, nil
}

// dialErrors says what went wrong with each address.
type dialErrors []error

func (e dialErrors) Error() string {
	texts := make([]string, 0, len(e))
	for _, err := range e {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (e dialErrors) Unwrap() []error { return e }

// dialUntil returns a connection, or the last error once ctx is done or trying again cannot help.
func dialUntil(ctx context.Context, dial DialFunc, address string, config *tls.Config) (*memberConn, error) {
	var last error
	bound := dialAttempt
	for pause := dialPauseMin; ; pause = min(2*pause, dialPauseMax) {
		conn, err := dialOnce(ctx, bound, dial, address, config)
		if err == nil || errors.Is(err, errStranger) {
			return conn, err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			bound = min(2*bound, dialPatience)
		}
		if last == nil || ctx.Err() == nil { // "deadline exceeded" says less than what went before
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(pause):
		}
	}
}

func dialOnce(ctx context.Context, bound time.Duration, dial DialFunc, address string, config *tls.Config) (*memberConn, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	raw, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		var verify *tls.CertificateVerificationError
		if errors.As(err, &verify) {
			return nil, fmt.Errorf("%w: %w", errStranger, err)
		}
		return nil, err
	}
	id, err := peerIdentity(conn.ConnectionState())
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return newMemberConn(conn, raw, id), nil
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", address) // heartbeats do better
}

// clientOver makes a gRPC client of one connection that is already open; it never opens another.
func clientOver(conn net.Conn, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	once := make(chan net.Conn, 1)
	once <- conn
	client, err := grpc.NewClient("passthrough:///"+serverName, append([]grpc.DialOption{
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, errors.New("the connection is gone")
			}
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(streamWindow),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client, nil
}
