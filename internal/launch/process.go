package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/session"
)

// AgentCommand is the hidden subcommand of mkrun whose body is Agent.
const AgentCommand = "agent"

// selfBinary is this very program, also when its file was replaced since it started.
const selfBinary = "/proc/self/exe"

// starter starts the agent of one node and hands it its configuration and the job's secret. It gives up
// when ctx is done; an agent that was started outlives ctx. It is used by several goroutines.
type starter interface {
	start(ctx context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error)
}

// agentProcess is what the launcher holds of an agent that it started: a child, an ssh or srun to another host, or a
// connection.
type agentProcess struct {
	kill    func()         // ends it at once
	stdin   io.WriteCloser // its end tells the agent that the launcher is gone
	words   *lastWords
	printed *lastWords // on stdout, before the other side said that it is there
	explain func(end error, said string) string
	exited  chan struct{} // closed when the process has ended
	done    chan struct{} // closed when its last words are here too
	err     error         // how it ended; valid once exited is closed
}

func newAgentProcess(explain func(error, string) string) *agentProcess {
	return &agentProcess{words: &lastWords{}, printed: &lastWords{}, explain: explain, exited: make(chan struct{}), done: make(chan struct{})}
}

// outputDelay bounds how long processes that a child leaves behind can hold up its end by keeping its output open.
const outputDelay = time.Second

// launchProcess starts a command in a process group of its own, so that a terminal's Ctrl-C reaches only the
// launcher. Its stderr is kept, and goes to log too, if that is not nil. stdout may be nil.
func launchProcess(cmd *exec.Cmd, stdout *os.File, log io.Writer, explain func(error, string) string) (*agentProcess, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a := newAgentProcess(explain)
	a.kill = func() {
		select {
		case <-a.exited: // its number may be another's by now
		default:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with what it has started, such as a ProxyCommand
		}
	}
	var to io.Writer = a.words
	if log != nil {
		to = io.MultiWriter(a.words, log)
	}
	if stdout != nil {
		cmd.Stdout = stdout
	}
	// A pipe of our own: that of os/exec would hold Wait up for as long as a keeper keeps its end.
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = writer
	if a.stdin, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return nil, err
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(to, reader) // its end, or a.done's
	}()
	go func() {
		a.err = cmd.Wait()
		close(a.exited)
		select {
		case <-drained:
		case <-time.After(outputDelay):
		}
		_ = reader.Close()
		<-drained
		close(a.done)
	}()
	return a, nil
}

// throughPipes starts a program through which an agent on another host is started, and configures the agent once it
// says that it is there. If it does not, the result is the program, ended, with the error. Who wants to know it before is
// told by begun, which may be nil.
func throughPipes(ctx context.Context, cmd *exec.Cmd, log io.Writer, explain func(error, string) string, begun func(*agentProcess), cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	a, stdout, err := throughPipesTo(ctx, cmd, log, explain, begun)
	if err != nil {
		return a, err
	}
	stop := context.AfterFunc(ctx, a.kill)
	err = cfg.write(a.stdin, secret)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = a.stdin.Close()
		_ = stdout.Close()
		a.reap()
		return a, err
	}
	// Nothing more is expected; a full pipe must not hold anything up.
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = io.Copy(io.Discard, stdout) })
	go func() {
		<-a.done
		_ = stdout.Close()
		copying.Wait()
	}()
	return a, nil
}

// throughPipesTo does so up to the other side's word that it is there, behind which its output goes on.
func throughPipesTo(ctx context.Context, cmd *exec.Cmd, log io.Writer, explain func(error, string) string, begun func(*agentProcess)) (*agentProcess, *os.File, error) {
	stdout, theirs, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("making a pipe for %s: %w", cmd.Args[0], err)
	}
	a, err := launchProcess(cmd, theirs, log, explain)
	_ = theirs.Close()
	if err != nil {
		_ = stdout.Close()
		return nil, nil, fmt.Errorf("starting %s: %w", cmd.Args[0], err)
	}
	stop := context.AfterFunc(ctx, func() {
		a.kill()
		_ = stdout.Close() // which a process that it left behind may hold open
	})
	if begun != nil {
		begun(a)
	}
	err = awaitAgent(io.TeeReader(stdout, a.printed))
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = a.stdin.Close()
		_ = stdout.Close()
		a.reap()
		return a, nil, err
	}
	return a, stdout, nil
}

// reap waits for a process that is of no use any more.
func (a *agentProcess) reap() {
	select {
	case <-a.done:
	case <-time.After(outputDelay):
		a.kill()
		<-a.done
	}
}

// withoutEOF adds why no agent came up to what is said of the process's end, but for the end of its output, which is
// no news.
func withoutEOF(text string, why error) string {
	if !errors.Is(why, io.EOF) {
		return text + ": " + why.Error()
	}
	_, shown, _ := strings.Cut(why.Error(), io.EOF.Error())
	return text + shown
}

// end waits for the agent, which has been dismissed, and kills its process once ctx is done.
func (a *agentProcess) end(ctx context.Context) {
	_ = a.stdin.Close()
	select {
	case <-a.done:
	case <-ctx.Done():
		a.kill()
		<-a.done
	}
}

// gone says how the process ended and what it said last.
func (a *agentProcess) gone() string { return a.explain(a.err, a.words.String()) }

// unready says what a process does that has not said yet that the other side is there; "" if that is not known.
func (a *agentProcess) unready() string {
	select {
	case <-a.exited:
		return "" // it has failed, and is told of as such
	default:
	}
	text := ""
	if printed := a.printed.String(); printed != "" {
		text += "; on stdout: " + lastLinesOf(printed)
	}
	if said := a.words.String(); said != "" {
		text += "; on stderr: " + lastLinesOf(said)
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
