package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/mkrun/mkrun/internal/session"
	"github.com/mkrun/mkrun/internal/stdio"
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

// Join is the part of a node other than the first: it finds the launcher, and is its agent. It returns the exit status,
// which is the job's if this node did its part.
func Join(ctx context.Context, j Joining, limit time.Duration, stderr io.Writer) (int, error) {
	find, cancel := context.WithCancel(ctx)
	if limit > 0 {
		find, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	conn, err := j.find(find)
	if err != nil && errors.Is(find.Err(), context.DeadlineExceeded) {
		return stdio.StatusTimeout, fmt.Errorf("node %d joining: node 0, which launches, was not found within %v (--start-timeout): %w", j.Node, limit, err)
	}
	if err == nil {
		defer func() { _ = conn.Close() }()
		err = j.introduce(conn)
	}
	if err != nil {
		return stdio.StatusLauncher, fmt.Errorf("node %d joining: %w", j.Node, err)
	}
	status, job := agentOf(ctx, conn, conn, stderr)
	if status == 0 {
		status = job
	}
	return status, nil
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
