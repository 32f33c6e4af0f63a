package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/session"
	"github.com/mkrun/mkrun/internal/stdio"
)

// SSH says how hosts are reached.
type SSH struct {
	Command        []string      // the user's ssh and words of its own; {"ssh"} when empty
	Options        []string      // further words before the host
	Mkrun          string        // the program on the hosts; DefaultRemoteMkrun when empty
	ConnectTimeout time.Duration // DefaultConnectTimeout when 0
	CopySelf       bool          // copy this program to the hosts, and use that
}

// Defaults of SSH.
const (
	DefaultRemoteMkrun    = "mkrun"
	DefaultConnectTimeout = 10 * time.Second
)

const (
	// sshAtOnce bounds the connections in the making: sshd drops some beyond 10 per host by default, and a
	// thousand key exchanges at once starve the launcher's own host.
	sshAtOnce = 32
	// sshTries bounds how often a host is tried that refuses or resets connections before it knows who comes.
	sshTries = 4
	// sshPause is the shortest pause before another try; it doubles, and half of it is chance.
	sshPause = 200 * time.Millisecond
	// namePause is between tries at a name that does not resolve.
	namePause = time.Second
	// sshFailed is ssh's exit status for its own failures, and for a remote death by a signal.
	sshFailed = 255
	// shellNotExecutable and shellNotFound are what every shell says of a command it cannot start.
	shellNotExecutable, shellNotFound = stdio.StatusNotExecutable, stdio.StatusNotFound
)

// Words splits a command line given as one option at blanks; quotes keep blanks, and nothing else is special.
func Words(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	inside := false
	for _, r := range s {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inside = r, true
		case r == ' ' || r == '\t':
			if inside {
				words = append(words, word.String())
				word.Reset()
				inside = false
			}
		default:
			word.WriteRune(r)
			inside = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("%q: a quote %c is not closed", s, quote)
	}
	if inside {
		words = append(words, word.String())
	}
	return words, nil
}

// Check refuses a remote program that some shell would not read as one word.
func (s SSH) Check() error {
	if s.Mkrun == "" {
		return nil
	}
	for _, r := range s.Mkrun {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._+-", r)) {
			return fmt.Errorf("remote program %q: %q may not be in it, since shells differ in how they read it", s.Mkrun, r)
		}
	}
	if s.Mkrun[0] == '-' {
		return fmt.Errorf("remote program %q begins with \"-\"", s.Mkrun)
	}
	return nil
}

// args is the command line for one host: what to run there is the same for all, and holds nothing of the job.
func (s SSH) args(target string) []string { return s.command(target, AgentCommand) }

// command is the same for another of mkrun's parts.
func (s SSH) command(target, part string) []string {
	if s.CopySelf {
		return s.connect(target, "(the copy's folder)/"+stagedName+" "+AgentCommand)
	}
	return s.connect(target, s.mkrun()+" "+part)
}

// connect is the command line that gives a command to a host's login shell.
func (s SSH) connect(target, remote string) []string {
	command := s.Command
	if len(command) == 0 {
		command = []string{"ssh"}
	}
	timeout := s.ConnectTimeout
	if timeout == 0 {
		timeout = DefaultConnectTimeout
	}
	args := append([]string{}, command...)
	args = append(args, "-T", "-x",
		"-o", "BatchMode=yes",
		"-o", fmt.Sprintf("ConnectTimeout=%d", max(1, int(timeout.Seconds()+0.5))),
		"-o", "ClearAllForwardings=yes", // the user's own forwards are for their own sessions
		"-o", "RemoteCommand=none",
		"-o", "ControlMaster=no", // a connection that is there is used; none is left behind
		"-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
	args = append(args, s.Options...)
	return append(args, "--", target, remote)
}

func (s SSH) mkrun() string {
	if s.Mkrun == "" {
		return DefaultRemoteMkrun
	}
	return s.Mkrun
}

// sshStarter starts agents over ssh.
type sshStarter struct {
	failures
	ssh     SSH
	targets map[int]string // by node
	slots   chan struct{}
	log     io.Writer // for what agents log; may be nil
	notice  func(node int, text string)
}

func newSSHStarter(ssh SSH, targets map[int]string, log io.Writer, notice func(int, string)) *sshStarter {
	return &sshStarter{ssh: ssh, targets: targets, slots: make(chan struct{}, sshAtOnce), log: log, notice: notice}
}

// start connects, again if that can help. The secret leaves this process only when an agent has said that
// it is there.
func (s *sshStarter) start(ctx context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	pause := sshPause
	var last error
	for try := 1; ; try++ {
		a, err := s.try(ctx, cfg, secret)
		if err == nil {
			return a, nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
			s.note(cfg.Node, err)
		}
		var failure *sshError
		if !errors.As(err, &failure) {
			return nil, last
		}
		wait := pause/2 + rand.N(pause)
		switch failure.kind {
		case sshNoName: // names of hosts that are just coming up may not be known yet
			if try == 1 {
				s.notice(cfg.Node, failure.said+"; trying again until the start times out")
			}
			wait = namePause
		case sshReset:
			if try == sshTries {
				return nil, fmt.Errorf("%w (tried %d times)", last, try)
			}
			pause *= 2
		default:
			return nil, last
		}
		select {
		case <-ctx.Done():
			return nil, last
		case <-time.After(wait):
		}
	}
}

func (s *sshStarter) try(ctx context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	target := s.targets[cfg.Node]
	if s.ssh.CopySelf {
		return s.startCopy(ctx, target, cfg, secret)
	}
	return s.through(ctx, s.ssh.args(target), cfg, secret)
}

// through starts an agent by a command line of ssh.
func (s *sshStarter) through(ctx context.Context, args []string, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	a, err := throughPipes(ctx, exec.Command(args[0], args[1:]...), s.log, s.explain, func(a *agentProcess) { s.began(cfg.Node, a) }, cfg, secret)
	if err != nil && a != nil {
		return nil, s.failure(a, err)
	}
	return a, err
}

type sshKind int

const (
	sshFinal  sshKind = iota // trying again cannot help
	sshNoName                // the name did not resolve
	sshReset                 // refused or reset before anybody was authenticated
)

// sshError is a host on which no agent could be started.
type sshError struct {
	kind sshKind
	said string // by ssh, last
	text string
}

func (e *sshError) Error() string { return e.text }

// failure says why no agent came up.
func (s *sshStarter) failure(a *agentProcess, why error) error {
	said := lastLinesOf(a.words.String())
	e := &sshError{said: said, text: withoutEOF(s.explain(a.err, a.words.String()), why)}
	if exitStatus(a.err) == sshFailed {
		e.kind = classify(said)
	}
	return e
}

// classify tells from ssh's words what kind of failure it was.
func classify(said string) sshKind {
	text := strings.ToLower(said)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("permission denied", "host key verification failed", "too many authentication failures"):
		return sshFinal
	case has("could not resolve hostname"):
		return sshNoName
	case has("connection refused", "connection reset", "connection closed by", "kex_exchange_identification", "ssh_exchange_identification"):
		return sshReset
	}
	return sshFinal
}

// explain says what the end of an ssh means.
func (s *sshStarter) explain(end error, words string) string {
	said := lastLinesOf(words)
	var text, advice string
	switch status := exitStatus(end); status {
	case sshFailed:
		text = "ssh failed (its exit status 255)"
		switch lower := strings.ToLower(said); {
		case strings.Contains(lower, "permission denied"):
			advice = "mkrun asks no passwords: `ssh -o BatchMode=yes` to this host must work, with a key and an agent for instance"
		case strings.Contains(lower, "host key verification failed"):
			advice = "connect once by hand to accept the host's key, or give options with --ssh-opts"
		}
	case shellNotFound:
		text = fmt.Sprintf("there is no %q there in the PATH of a shell that is not interactive (exit status 127)", s.ssh.mkrun())
		advice = "install mkrun there, say where it is with --remote-mkrun PATH, or have it copied with --copy-self"
	case shellNotExecutable:
		text = fmt.Sprintf("%q cannot be executed there (exit status 126)", s.ssh.mkrun())
	default:
		text = "the ssh to it ended: " + endText(end)
	}
	if said != "" {
		text += "; it said: " + said
	}
	if advice != "" {
		text += "\n  " + advice
	}
	return text
}

func endText(end error) string {
	if end == nil {
		return "exit status 0"
	}
	return end.Error()
}

// exitStatus is that of a process that ended by itself; -1 for others, 0 for none.
func exitStatus(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// lastLinesOf shortens what was said to its last lines.
func lastLinesOf(said string) string {
	const most = 5
	lines := strings.Split(strings.ReplaceAll(said, "\r", ""), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n    ")
}
