package launch

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/mkrun/mkrun/internal/pattern"
	"github.com/mkrun/mkrun/internal/session"
)

const (
	// stagedReady is in front of the name of the folder that was made.
	stagedReady = "\x02mkrun-staged-1\x03 "
	// stagedPrefix begins the names of such folders; an agent removes only what is named so.
	stagedPrefix = "mkrun-staged."
	stagedName   = "mkrun"
)

// stageScript makes a private folder of a name that nobody can guess, writes its stdin to a program in it, and says where
// it is, if the program has the digest that is wanted. It is for any POSIX shell, and has nothing in it that would end
// single quotes or means something inside them to csh or fish.
const stageScript = `umask 077; d="${TMPDIR:-/tmp}/%s"; mkdir "$d" || exit 125; ` +
	`if cat >"$d/` + stagedName + `" && chmod 700 "$d/` + stagedName + `" && h=$(sha256sum "$d/` + stagedName + `"); then ` +
	`if [ "${h%%%% *}" = %s ]; then printf "\002mkrun-staged-1\003 %%s\n" "$d"; exit 0; fi; ` +
	`echo "the copy differs from what was sent" >&2; fi; rm -rf "$d"; exit 125`

// safePath is a path that every shell reads as one word.
var safePath = pattern.Of(`^/[A-Za-z0-9/._+-]+$`)

// selfDigest is the digest of this program.
var selfDigest = sync.OnceValues(func() (string, error) {
	f, err := os.Open(selfBinary)
	if err != nil {
		return "", fmt.Errorf("reading the mkrun binary: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading the mkrun binary: %w", err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
})

// stage copies this program to a host, into a folder of a name, and returns where that is.
func (s *sshStarter) stage(ctx context.Context, target, name string) (string, error) {
	digest, err := selfDigest()
	if err != nil {
		return "", err
	}
	self, err := os.Open(selfBinary)
	if err != nil {
		return "", fmt.Errorf("reading the mkrun binary: %w", err)
	}
	defer func() { _ = self.Close() }()
	out, words, err := s.remote(ctx, target, "exec sh -c '"+fmt.Sprintf(stageScript, name, digest)+"'", self)
	_, dir, found := strings.Cut(out, stagedReady)
	dir, _, whole := strings.Cut(dir, "\n")
	switch {
	case err != nil:
		said := lastLinesOf(words)
		e := &sshError{said: said, text: "copying mkrun there (--copy-self): " + s.explain(err, words)}
		if exitStatus(err) == sshFailed {
			e.kind = classify(said)
		}
		return "", e
	case !found || !whole:
		return "", &sshError{text: "copying mkrun there (--copy-self): its shell does not say where it is"}
	case !safePath().MatchString(dir) || filepath.Base(dir) != name:
		return "", &sshError{text: fmt.Sprintf("copying mkrun there (--copy-self): shells differ in how they read the path %q; set TMPDIR there", dir)}
	}
	return dir, nil
}

// unstage removes what stage has made, or is still making, for an agent that has not come up to do that itself.
func (s *sshStarter) unstage(ctx context.Context, target, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	_, _, _ = s.remote(ctx, target, `exec sh -c 'rm -rf "${TMPDIR:-/tmp}/`+name+`"'`, nil) // the host is in trouble already
}

// startCopy starts an agent that is a copy of this program.
func (s *sshStarter) startCopy(ctx context.Context, target string, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	name := stagedPrefix + strings.ToLower(crand.Text())
	dir, err := s.stage(ctx, target, name)
	if err != nil {
		if ctx.Err() != nil { // the host may not have noticed
			s.unstage(ctx, target, name)
		}
		return nil, err
	}
	cfg.Staged = true
	a, err := s.through(ctx, s.ssh.connect(target, dir+"/"+stagedName+" "+AgentCommand), cfg, secret)
	if err != nil {
		s.unstage(ctx, target, name)
	}
	return a, err
}

// remote runs a command on a host, as words for its login shell, and returns what it printed.
func (s *sshStarter) remote(ctx context.Context, target, command string, stdin *os.File) (stdout, stderr string, err error) {
	args := s.ssh.connect(target, command)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputDelay
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended; what it left behind is not waited for
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.String(), words.String(), err
}

// removeStaged removes the folder that this program was copied to. The program itself lives on without a name.
func removeStaged() error {
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the mkrun binary: %w", err)
	}
	dir := filepath.Dir(path)
	if filepath.Base(path) != stagedName || !strings.HasPrefix(filepath.Base(dir), stagedPrefix) {
		return fmt.Errorf("%s is no copy that may be removed", path)
	}
	if err := errors.Join(os.Remove(path), os.Remove(dir)); err != nil {
		return fmt.Errorf("removing the copy of mkrun: %w", err)
	}
	return nil
}
