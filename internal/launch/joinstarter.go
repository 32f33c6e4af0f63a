package launch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/mkrun/mkrun/internal/ports"
	"github.com/mkrun/mkrun/internal/session"
)

// joinWord is what a process says that wants to join, joinAnswer what node 0 says to that.
type (
	joinWord struct {
		Nodes int    `json:"nodes"`
		Host  string `json:"host"`
	}
	joinAnswer struct {
		Refused string `json:"refused"` // why; "": it is taken
	}
)

// introduce tells node 0 what this process was told.
func (j Joining) introduce(conn session.PoolConn) error {
	host, _ := os.Hostname() // for people only
	_ = conn.SetDeadline(time.Now().Add(dialLimit))
	err := writeFrame(conn, joinWord{j.Nodes, host})
	var answer joinAnswer
	if err == nil {
		err = readFrame(conn, maxMeeting, &answer)
	}
	if err != nil {
		return fmt.Errorf("node 0 at %v does not answer: %w", conn.RemoteAddr(), err)
	}
	if answer.Refused != "" {
		return fmt.Errorf("node 0 at %v turned this process away: %s", conn.RemoteAddr(), answer.Refused)
	}
	return conn.SetDeadline(time.Time{})
}

// joinStarter waits for agents that come by themselves.
type joinStarter struct {
	pool    *session.PoolListener
	file    string                  // to take away in the end; "": none
	arrived []chan session.PoolConn // by node
	log     io.Writer
	tell    func(node int, text string) // the user
	done    chan struct{}               // closed when nobody is let in any more

	mu    sync.Mutex
	there []string // from where each node came; "": it has not
}

// awaitJoins opens the port to which the other nodes come, and says in the file where it is.
func awaitJoins(ctx context.Context, j Joining, within ports.Range, addresses func(port int) ([]string, error), output io.Writer, log *slog.Logger, tell func(int, string)) (*joinStarter, error) {
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
	if err != nil && j.At != "" {
		return nil, fmt.Errorf("--join-at %s: listening for the other nodes: %w (only node 0 listens there: is another one of this index, or of another job, on this host?)", j.At, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listening for the other nodes: %w", err)
	}
	s := &joinStarter{log: output, tell: tell, done: make(chan struct{}), there: make([]string, j.Nodes)}
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
	go s.welcome()
	return s, nil
}

// welcome lets nodes in until nobody is waited for any more.
func (s *joinStarter) welcome() {
	defer close(s.done)
	var talks sync.WaitGroup
	defer talks.Wait()
	for {
		conn, err := s.pool.Accept()
		if err != nil {
			return
		}
		talks.Go(func() { s.letIn(conn) })
	}
}

// letIn hears who a process is that wants to join, and takes it or says why not.
func (s *joinStarter) letIn(conn session.PoolConn) {
	_ = conn.SetDeadline(time.Now().Add(joinAttempt))
	var w joinWord
	if err := readFrame(conn, maxMeeting, &w); err != nil {
		_ = conn.Close()
		return
	}
	node := conn.Peer().Node
	from := fmt.Sprintf("%s (%v)", w.Host, conn.RemoteAddr())
	why := s.take(conn.Peer(), w.Nodes, from)
	err := writeFrame(conn, joinAnswer{why})
	switch {
	case why != "":
		s.tell(max(node, 0), fmt.Sprintf("turned a process away that wants to join from %s: %s", from, why))
		_ = conn.Close()
	case err != nil:
		s.mu.Lock()
		s.there[node] = ""
		s.mu.Unlock()
		_ = conn.Close()
	default:
		_ = conn.SetDeadline(time.Time{})
		s.arrived[node] <- conn
	}
}

// take notes that a node is there, or says why it is not taken.
func (s *joinStarter) take(peer session.Identity, nodes int, from string) (refused string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case nodes != len(s.there):
		return fmt.Sprintf("it was told that there are %d nodes, node 0 that there are %d (--nodes has to be the same on all)", nodes, len(s.there))
	case peer.Role != session.RoleAgent || peer.Node < 1 || peer.Node >= len(s.there):
		return fmt.Sprintf("%v is none of the nodes 1 to %d", peer, len(s.there)-1)
	case s.there[peer.Node] != "":
		return fmt.Sprintf("node %d is there already, from %s (each node has to have a number of its own: --node-rank)", peer.Node, s.there[peer.Node])
	}
	s.there[peer.Node] = from
	return ""
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
