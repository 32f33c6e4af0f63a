package launch

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/mkrun/mkrun/internal/session"
)

// AgentCommand is the hidden subcommand of mkrun whose body is Agent.
const AgentCommand = "agent"

// selfBinary is this very program, also when its file was replaced since it started.
const selfBinary = "/proc/self/exe"

// localAgent is an agent that runs as a child of the launcher.
type localAgent struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser // its end tells the agent that the launcher is gone
	words *lastWords
	done  chan struct{}
	err   error // how it ended; valid once done is closed
}

// startLocal starts the agent of one node on this host, in a process group of its own so that a
// terminal's Ctrl-C reaches only the launcher. Its log goes to log, if that is not nil.
func startLocal(ctx context.Context, cfg AgentConfig, secret session.Secret, log io.Writer) (*localAgent, error) {
	cmd := exec.CommandContext(ctx, selfBinary, AgentCommand)
	cmd.Args[0] = "mkrun" // for the eyes of people
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a := &localAgent{cmd: cmd, words: &lastWords{}, done: make(chan struct{})}
	cmd.Stderr = a.words
	if log != nil {
		cmd.Stderr = io.MultiWriter(a.words, log)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the agent of node %d: %w", cfg.Node, err)
	}
	a.stdin = stdin
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the agent of node %d: %w", cfg.Node, err)
	}
	if err := cfg.write(stdin, secret); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	go func() {
		defer close(a.done)
		a.err = cmd.Wait()
	}()
	return a, nil
}

// end waits for the agent, which has been dismissed, and kills it once ctx is done.
func (a *localAgent) end(ctx context.Context) {
	_ = a.stdin.Close()
	select {
	case <-a.done:
	case <-ctx.Done():
		_ = a.cmd.Process.Kill()
		<-a.done
	}
}

// gone says how the agent ended and what it said last.
func (a *localAgent) gone() string {
	text := "its process ended"
	if a.err != nil {
		text = "its process ended: " + a.err.Error()
	}
	if said := a.words.String(); said != "" {
		text += "; it said: " + said
	}
	return text
}

// lastWords keeps the end of what was written to it.
type lastWords struct {
	mu  sync.Mutex
	buf []byte
}

const lastWordsSize = 4 << 10

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	if extra := len(w.buf) - lastWordsSize; extra > 0 {
		w.buf = append(w.buf[:0], w.buf[extra:]...)
	}
	return len(p), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(string(bytes.ToValidUTF8(w.buf, []byte("?"))))
}
