package launch

import (
	"context"
	"fmt"
	"io"

	"github.com/mkrun/mkrun/internal/session"
)

// adopt makes an agentProcess of a connection behind which an agent waits for its configuration: it speaks as over
// ssh's stdin and stdout, with what it logs behind its first words.
func adopt(ctx context.Context, conn session.PoolConn, cfg AgentConfig, secret session.Secret, log io.Writer, name string) (*agentProcess, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := awaitAgent(conn)
	if err == nil {
		err = cfg.write(conn, secret)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s at %s: %w", name, conn.RemoteAddr(), err)
	}
	a := newAgentProcess(func(end error, said string) string {
		text := fmt.Sprintf("the connection to its %s at %s ended", name, conn.RemoteAddr())
		if end != nil {
			text += ": " + end.Error()
		}
		if said != "" {
			text += "; it said: " + said
		}
		return text
	})
	a.kill = func() { _ = conn.Close() }
	a.stdin = writeEnd{conn}
	var to io.Writer = a.words
	if log != nil {
		to = io.MultiWriter(a.words, log)
	}
	go func() {
		_, a.err = io.Copy(to, conn)
		_ = conn.Close()
		close(a.exited)
		close(a.done)
	}()
	return a, nil
}

// writeEnd is one direction of a connection.
type writeEnd struct{ session.PoolConn }

func (w writeEnd) Close() error { return w.CloseWrite() }
