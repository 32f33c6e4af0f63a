package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// MUNGE is the service by which the nodes of a Slurm cluster know users: what one process seals, only processes of the
// same user on nodes with the cluster's key can open, who then know whose it is.

const (
	sealedPrefix = "MUNGE:"
	mungeLimit   = 5 * time.Second
	mungeLife    = "3600" // seconds that a credential can be opened for, the most that the service allows by default
	maxMunge     = 1 << 20
	// mungeReplayed is the service's status for a credential that was opened on this host before. Several nodes of a job
	// may be one host, and a secret is no order that must be obeyed once.
	mungeReplayed = 17
)

// Sealed reports whether data was made by Seal.
func Sealed(data []byte) bool { return bytes.HasPrefix(data, []byte(sealedPrefix)) }

// CanSeal reports whether this host has MUNGE's programs.
func CanSeal() bool {
	for _, program := range []string{"munge", "unmunge"} {
		if _, err := exec.LookPath(program); err != nil {
			return false
		}
	}
	return true
}

// Seal wraps data so that only this user can open it.
func Seal(ctx context.Context, data []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, mungeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "munge", "--restrict-uid="+strconv.Itoa(os.Geteuid()), "--ttl="+mungeLife)
	cmd.Stdin = bytes.NewReader(data)
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err == nil && !Sealed(out) {
		err = errors.New("it printed no credential")
	}
	if err != nil {
		return nil, fmt.Errorf("sealing by MUNGE: %w%s", err, inBrackets(said.String()))
	}
	return out, nil
}

// Unseal opens what Seal has made, and refuses what another user's process has sealed.
func Unseal(ctx context.Context, sealed []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, mungeLimit)
	defer cancel()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("opening what MUNGE sealed: %w", err)
	}
	defer func() { _ = reader.Close() }()
	cmd := exec.CommandContext(ctx, "unmunge", "--numeric", "--keys=UID", "--metadata=/dev/fd/3")
	cmd.Stdin = bytes.NewReader(sealed)
	cmd.ExtraFiles = []*os.File{writer}
	cmd.WaitDelay = time.Second
	var said, data bytes.Buffer
	cmd.Stdout, cmd.Stderr = &data, &said
	err = cmd.Start()
	_ = writer.Close()
	if err == nil {
		_ = reader.SetReadDeadline(time.Now().Add(mungeLimit))
		var about []byte
		about, err = io.ReadAll(io.LimitReader(reader, maxMunge))
		if waitErr := cmd.Wait(); waitErr != nil && cmd.ProcessState.ExitCode() != mungeReplayed {
			err = waitErr
		}
		if err == nil {
			err = sealedByMe(string(about))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening what MUNGE sealed: %w%s", err, inBrackets(said.String()))
	}
	return data.Bytes(), nil
}

// sealedByMe reads who sealed something.
func sealedByMe(about string) error {
	name, text, _ := strings.Cut(strings.TrimSpace(about), ":")
	uid, err := strconv.Atoi(strings.TrimSpace(text))
	switch me := os.Geteuid(); {
	case name != "UID" || err != nil:
		return fmt.Errorf("it does not say who sealed it: %q", about)
	case uid != me:
		return fmt.Errorf("user %d sealed it, not you (%d)", uid, me)
	}
	return nil
}

func inBrackets(said string) string {
	if said = strings.TrimSpace(said); said == "" {
		return ""
	}
	return " (" + said + ")"
}
