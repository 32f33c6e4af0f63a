package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mkrun/mkrun/internal/ports"
	"github.com/mkrun/mkrun/internal/session"
)

// Joining is this process's part when something else has started the same command once for each node: node 0
// becomes the launcher, the others its agents. What they need to find each other is in a file that only the user may
// read: either the launcher writes it, in a folder that all hosts see, or it is there and has nothing but a secret.
type Joining struct {
	Node, Nodes int
	File        string
	At          string // host:port where node 0 listens; "": it writes that into File
	Start       string // of the same command on all nodes: a file left over from another one is not read
	Sealed      bool   // what is written into File is sealed by MUNGE, where that runs: all nodes have it
}

// meeting is what the launcher writes into the file.
type meeting struct {
	Start     string   `json:"start"`
	Secret    string   `json:"secret"`
	Addresses []string `json:"addresses"`
}

const (
	maxMeeting  = 16 << 10
	joinPause   = 50 * time.Millisecond // between looks at the file
	joinAttempt = 3 * time.Second       // at what the file says, before it is read again
)

func (j Joining) identity() session.Identity {
	return session.Identity{Role: session.RoleAgent, Node: j.Node}
}

// Join is the part of a node other than the first: it finds the launcher, and is its agent. It returns the exit status.
func Join(ctx context.Context, j Joining, limit time.Duration, stderr io.Writer) (int, error) {
	find, cancel := context.WithCancel(ctx)
	defer cancel()
	if limit > 0 {
		find, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	conn, err := j.find(find)
	if err != nil {
		return 0, fmt.Errorf("node %d joining: %w", j.Node, err)
	}
	defer func() { _ = conn.Close() }()
	return Agent(ctx, conn, conn, stderr), nil
}

func (j Joining) find(ctx context.Context) (session.PoolConn, error) {
	head := session.Identity{Role: session.RoleHead, Node: -1}
	if j.At != "" {
		secret, err := session.ReadSecretFile(j.File)
		if err != nil {
			return nil, err
		}
		return session.DialPool(ctx, secret, j.identity(), head, []string{j.At})
	}
	var last error
	for {
		m, secret, err := j.read(ctx)
		if err == nil {
			attempt, cancel := context.WithTimeout(ctx, joinAttempt)
			var conn session.PoolConn
			conn, err = session.DialPool(attempt, secret, j.identity(), head, m.Addresses)
			cancel()
			if err == nil {
				return conn, nil
			}
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (waited for node 0, which writes %s)", last, j.File)
		case <-time.After(joinPause):
		}
	}
}

// read reads what the launcher of this start has written.
func (j Joining) read(ctx context.Context) (meeting, session.Secret, error) {
	var m meeting
	_, _ = os.ReadDir(filepath.Dir(j.File)) // a network file system remembers that there was no file until its folder is read
	data, err := session.ReadPrivate(j.File, maxMeeting)
	if err != nil {
		return m, session.Secret{}, err
	}
	if session.Sealed(data) {
		if data, err = session.Unseal(ctx, data); err != nil {
			return m, session.Secret{}, err
		}
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, session.Secret{}, fmt.Errorf("%s was not written by mkrun launch --join: %w", j.File, err)
	}
	if m.Start != j.Start {
		return m, session.Secret{}, fmt.Errorf("%s is of another start (%q, not %q)", j.File, m.Start, j.Start)
	}
	secret, err := session.ParseSecret(m.Secret)
	return m, secret, err
}

// joinStarter waits for agents that come by themselves.
type joinStarter struct {
	pool    *session.PoolListener
	file    string                  // to take away in the end; "": none
	arrived []chan session.PoolConn // by node
	log     io.Writer
	done    chan struct{}
}

// awaitJoins opens the port to which the other nodes come, and says in the file where it is.
func awaitJoins(ctx context.Context, j Joining, within ports.Range, addresses func(port int) ([]string, error), output io.Writer, log *slog.Logger) (*joinStarter, error) {
	if j.At != "" {
		_, text, err := net.SplitHostPort(j.At)
		if err == nil {
			within, err = ports.Parse(text + "-" + text)
		}
		if err != nil {
			return nil, fmt.Errorf("--join-at %s: %w", j.At, err)
		}
	}
	listener, err := within.Listen(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("listening for the other nodes: %w", err)
	}
	s := &joinStarter{log: output, done: make(chan struct{})}
	for range j.Nodes {
		s.arrived = append(s.arrived, make(chan session.PoolConn, 1))
	}
	secret := session.NewSecret()
	if j.At != "" {
		secret, err = session.ReadSecretFile(j.File)
	} else {
		err = j.publish(ctx, secret, addresses, listener.Addr().(*net.TCPAddr).Port, log)
		s.file = j.File
	}
	if err == nil {
		s.pool, err = session.ListenPool(secret, session.Identity{Role: session.RoleHead, Node: -1}, listener, log)
	}
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	go s.welcome(log)
	return s, nil
}

// publish writes the file; one that an earlier start left is replaced.
func (j Joining) publish(ctx context.Context, secret session.Secret, addresses func(port int) ([]string, error), port int, log *slog.Logger) error {
	list, err := addresses(port)
	if err != nil {
		return err
	}
	data, err := json.Marshal(meeting{Start: j.Start, Secret: secret.Reveal(), Addresses: list})
	if err != nil {
		return fmt.Errorf("--join %s: %w", j.File, err)
	}
	if j.Sealed && session.CanSeal() {
		if sealed, err := session.Seal(ctx, data); err == nil {
			data = sealed
		} else {
			log.Info("the file alone keeps the secret", "error", err)
		}
	}
	err = session.PublishPrivate(j.File, data)
	if errors.Is(err, fs.ErrExist) {
		if _, readErr := session.ReadPrivate(j.File, maxMeeting); readErr != nil {
			return fmt.Errorf("--join: %w", readErr) // not a file of ours: it stays
		}
		if err = os.Remove(j.File); err == nil {
			err = session.PublishPrivate(j.File, data)
		}
	}
	if err != nil {
		return fmt.Errorf("--join: %w", err)
	}
	return nil
}

func (s *joinStarter) welcome(log *slog.Logger) {
	defer close(s.done)
	for {
		conn, err := s.pool.Accept()
		if err != nil {
			return
		}
		peer := conn.Peer()
		if peer.Role == session.RoleAgent && peer.Node > 0 && peer.Node < len(s.arrived) {
			select {
			case s.arrived[peer.Node] <- conn:
				continue
			default:
			}
		}
		log.Warn("turned a node away: no such node is missing", "peer", peer.String(), "from", conn.RemoteAddr().String())
		_ = conn.Close()
	}
}

func (s *joinStarter) start(ctx context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	select {
	case conn := <-s.arrived[cfg.Node]:
		return adopt(ctx, conn, cfg, secret, s.log, "process")
	case <-ctx.Done():
		return nil, fmt.Errorf("it did not join: %w", context.Cause(ctx))
	}
}

// close ends the waiting, and takes the file away.
func (s *joinStarter) close() {
	_ = s.pool.Close() // nobody is waited for any more
	<-s.done
	for _, c := range s.arrived {
		select {
		case conn := <-c:
			_ = conn.Close()
		default:
		}
	}
	if s.file != "" {
		_ = os.Remove(s.file)
	}
}
