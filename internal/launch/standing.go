package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/session"
)

// DefaultStandingPort is where standing agents listen if nothing else is said.
const DefaultStandingPort = 7611

const (
	standingJobs     = 256             // that a standing agent serves at the same time
	standingPatience = 5 * time.Second // with a host on which no standing agent answers
)

// Standing says how agents are reached that stand already.
type Standing struct {
	Port   int
	Secret session.Secret // of the pool
}

// StandingKeepAlive finds hosts that fell silent before a job's own heartbeats watch them.
var StandingKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// DefaultSecretFile is where the secret of the user's pool is kept: in a home that all hosts share it is the same.
func DefaultSecretFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("finding a place for the pool's secret: %w (name one with --secret)", err)
	}
	return filepath.Join(dir, "mkrun", "secret"), nil
}

// Stand waits for launches until ctx is done. Whoever has the pool's secret is its user, and gets agents that run as
// the user of this process: one process for each launch, as if started over ssh. One is always up already, and waits
// for what it will be told.
func Stand(ctx context.Context, listener net.Listener, secret session.Secret, log *slog.Logger) error {
	pool, err := session.ListenPool(secret, session.Identity{Role: session.RoleStanding, Node: -1}, listener, log)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = pool.Close() })
	defer stop()
	var spares spareAgents
	spares.renew()
	defer spares.close()
	var launches sync.WaitGroup
	defer launches.Wait()
	places := make(chan struct{}, standingJobs)
	for {
		conn, err := pool.Accept()
		if err != nil {
			return pool.Close()
		}
		if conn.Peer().Role != session.RoleLauncher {
			log.Warn("turned a member of the pool away that is no launcher", "peer", conn.Peer().String(), "from", conn.RemoteAddr().String())
			_ = conn.Close()
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			log.Warn("turned a launch away: too many run", "most", standingJobs)
			_ = conn.Close()
			continue
		}
		launches.Go(func() {
			defer func() { <-places }()
			log.Info("launch begins", "from", conn.RemoteAddr().String())
			err := serveLaunch(ctx, conn, &spares)
			log.Info("launch ended", "from", conn.RemoteAddr().String(), "error", err)
		})
	}
}

// serveLaunch gives a connection to an agent as its stdin, stdout and stderr. The end of either is the end of the other.
func serveLaunch(ctx context.Context, conn session.PoolConn, spares *spareAgents) error {
	defer func() { _ = conn.Close() }()
	agent, err := spares.take()
	if err != nil {
		return fmt.Errorf("starting an agent: %w", err)
	}
	defer agent.release()
	renew := time.AfterFunc(spareDelay, spares.renew) // another process that comes up would slow this launch's start
	defer func() {
		if renew.Stop() {
			spares.renew()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = agent.stdin.Close() }) // a standing agent that ends takes its agents with it
	defer stop()
	go func() {
		_, _ = io.Copy(agent.stdin, conn)
		_ = agent.stdin.Close()
	}()
	said := make(chan struct{})
	go func() {
		defer close(said)
		_, _ = io.Copy(conn, agent.output)
	}()
	<-agent.ended
	select {
	case <-said:
	case <-time.After(outputDelay):
	}
	return agent.err
}

// standingStarter gives work to agents that stand already.
type standingStarter struct {
	hosts    []Host
	standing Standing
	log      io.Writer
}

func (s *standingStarter) start(ctx context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	host := s.hosts[cfg.Node]
	names := host.Candidates
	if len(names) == 0 { // not known yet, perhaps
		names = []string{host.Name}
	}
	addresses := make([]string, 0, len(names))
	for _, n := range names {
		addresses = append(addresses, net.JoinHostPort(n, strconv.Itoa(s.standing.Port)))
	}
	dialCtx, cancel := context.WithTimeout(ctx, standingPatience)
	defer cancel()
	conn, err := session.DialPool(dialCtx, s.standing.Secret,
		session.Identity{Role: session.RoleLauncher, Node: -1}, session.Identity{Role: session.RoleStanding, Node: -1}, addresses)
	if err == nil {
		return adopt(ctx, conn, cfg, secret, s.log, "standing agent")
	}
	err = fmt.Errorf("no standing agent there: %w", err)
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("%w\n  start one there with `mkrun agent --listen`, and the same secret file", err)
	}
	return nil, err
}
