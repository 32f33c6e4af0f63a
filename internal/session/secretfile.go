package session

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// secretFileSize bounds what is read of a secret's file: the digits and some white space.
const secretFileSize = 2*SecretSize + 16

// ReadPrivate reads a file that must be this user's and closed to everybody else (0600 or less). A file of root's may
// be open to its group too: so container platforms hand secrets to processes of other users.
func ReadPrivate(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // not to wait for the other end of a pipe
	if err != nil {
		return nil, fmt.Errorf("reading a secret: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading a secret: %w", err)
	}
	if err := checkSecretFile(path, info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading a secret: %w", err)
	case int64(len(data)) > most:
		return nil, fmt.Errorf("secret file %s is longer than %d bytes", path, most)
	}
	return data, nil
}

// ReadSecretFile reads a secret that a private file holds as 64 hexadecimal digits.
func ReadSecretFile(path string) (Secret, error) {
	text, err := ReadPrivate(path, secretFileSize)
	if err != nil {
		return Secret{}, err
	}
	s, err := ParseSecret(string(bytes.TrimSpace(text)))
	if err != nil {
		return Secret{}, fmt.Errorf("secret file %s: %w", path, err)
	}
	return s, nil
}

// ParseSecret reads a secret from its 64 hexadecimal digits.
func ParseSecret(digits string) (Secret, error) {
	if len(digits) != 2*SecretSize {
		return Secret{}, fmt.Errorf("%d characters; a secret has %d hexadecimal digits", len(digits), 2*SecretSize)
	}
	raw, err := hex.DecodeString(digits)
	if err != nil {
		return Secret{}, fmt.Errorf("a secret has %d hexadecimal digits", 2*SecretSize) // the error would quote a part of it
	}
	return ReadSecret(bytes.NewReader(raw))
}

// Reveal writes a secret as ParseSecret reads it, for a file that only the user may read.
func (s Secret) Reveal() string { return hex.EncodeToString(s.reveal()[:]) }

func checkSecretFile(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("secret file %s is not a regular file", path)
	}
	owner, perm := info.Sys().(*syscall.Stat_t).Uid, info.Mode().Perm()
	switch me := os.Geteuid(); {
	case int(owner) != me && owner != 0:
		return fmt.Errorf("secret file %s belongs to user %d, not to you (%d)", path, owner, me)
	case int(owner) == me && perm&0o077 != 0, perm&0o037 != 0:
		return fmt.Errorf("secret file %s is open to others (mode %04o): chmod 600 it, and make a new one if others could read it", path, perm)
	}
	return nil
}

// CreateSecretFile makes a file with a new secret, and its folder; if there is one, it reads that. Of several
// processes that do so at once one makes it, and all get the same secret.
func CreateSecretFile(path string) (s Secret, made bool, err error) {
	if s, err = ReadSecretFile(path); !errors.Is(err, fs.ErrNotExist) {
		return s, false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Secret{}, false, fmt.Errorf("making a secret: %w", err)
	}
	s = NewSecret()
	switch err := PublishPrivate(path, []byte(s.Reveal()+"\n")); {
	case errors.Is(err, fs.ErrExist):
		s, err = ReadSecretFile(path)
		return s, false, err
	case err != nil:
		return Secret{}, false, fmt.Errorf("making a secret: %w", err)
	}
	return s, true, nil
}

// PublishPrivate makes a file that only this user may read, whole or not at all: a reader never sees a part of it. It
// does not replace a file that is there (fs.ErrExist).
func PublishPrivate(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".") // with mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if syncErr := f.Sync(); err == nil {
		err = syncErr
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}
