package launch

import (
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// spareDelay is how long after a launch took the spare agent the next one is started, if the launch does not end sooner.
const spareDelay = 2 * time.Second

// spareAgents holds the agent of the next launch at this standing agent.
type spareAgents struct {
	mu     sync.Mutex
	next   *spareAgent
	closed bool
}

// spareAgent is an agent process that waits for its configuration.
type spareAgent struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	output *os.File // what it says on stdout and stderr
	ended  chan struct{}
	err    error // how it ended; set before ended is closed
}

func startSpareAgent() (*spareAgent, error) {
	cmd := exec.Command(selfBinary, AgentCommand)
	cmd.Args[0] = "mkrun"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		_ = stdin.Close()
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		_ = stdin.Close()
		_ = reader.Close()
		return nil, err
	}
	a := &spareAgent{cmd: cmd, stdin: stdin, output: reader, ended: make(chan struct{})}
	go func() {
		a.err = cmd.Wait()
		close(a.ended)
	}()
	return a, nil
}

func (a *spareAgent) alive() bool {
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// release lets go of an agent that is at its end.
func (a *spareAgent) release() {
	_ = a.stdin.Close()
	_ = a.output.Close()
}

// take returns an agent that nobody else gets: the one that waits, or else another one.
func (s *spareAgents) take() (*spareAgent, error) {
	s.mu.Lock()
	agent := s.next
	s.next = nil
	s.mu.Unlock()
	if agent != nil && agent.alive() {
		return agent, nil
	}
	if agent != nil {
		agent.release()
	}
	return startSpareAgent()
}

// renew sees to it that an agent waits. If it cannot be started now, the next launch tries again, and tells.
func (s *spareAgents) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.next != nil {
		return
	}
	s.next, _ = startSpareAgent()
}

// close ends the agent that waits.
func (s *spareAgents) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.next == nil {
		return
	}
	_ = s.next.stdin.Close()
	select {
	case <-s.next.ended:
	case <-time.After(outputDelay):
		_ = s.next.cmd.Process.Kill()
		<-s.next.ended
	}
	s.next.release()
}
