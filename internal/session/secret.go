package session

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// SecretSize is the length of a job's secret, and of every key derived from it, in bytes.
const SecretSize = 32

// Secret is what the members of one job share and nobody else knows. All keys are derived from it.
// It prints as a placeholder, whatever the verb, logger or encoder. The zero value is no secret.
type Secret struct {
	// A function, because fmt follows values and pointers in unexported fields of the structs that
	// hold a Secret, where it cannot call its Format.
	reveal func() *[SecretSize]byte
}

func secretOf(key *[SecretSize]byte) Secret {
	return Secret{reveal: func() *[SecretSize]byte { return key }}
}

// NewSecret makes a random secret.
func NewSecret() Secret {
	key := new([SecretSize]byte)
	_, _ = rand.Read(key[:]) // never fails: see crypto/rand
	return secretOf(key)
}

// ReadSecret reads exactly SecretSize bytes, and nothing after them, from r.
func ReadSecret(r io.Reader) (Secret, error) {
	key := new([SecretSize]byte)
	if n, err := io.ReadFull(r, key[:]); err != nil {
		return Secret{}, fmt.Errorf("reading the job's secret: got %d of %d bytes: %w", n, SecretSize, err)
	}
	if *key == [SecretSize]byte{} {
		return Secret{}, errors.New("reading the job's secret: it is all zero, which no launcher sends")
	}
	return secretOf(key), nil
}

// WriteSecret writes the secret in the form that ReadSecret reads. w must be a channel that nobody
// else sees: a pipe, or a file that only its owner may read.
func WriteSecret(w io.Writer, s Secret) error {
	if s.IsZero() {
		return errNoSecret
	}
	if _, err := w.Write(s.reveal()[:]); err != nil {
		return fmt.Errorf("handing over the job's secret: %w", err)
	}
	return nil
}

var errNoSecret = errors.New("the job has no secret")

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.reveal == nil }

// Equal compares two secrets in constant time.
func (s Secret) Equal(o Secret) bool {
	return !s.IsZero() && !o.IsZero() && subtle.ConstantTimeCompare(s.reveal()[:], o.reveal()[:]) == 1
}

// GossipKey is the AES-256 key of the job's gossip.
func (s Secret) GossipKey(job string) ([]byte, error) { return s.derive("gossip", job) }

// derive makes a key for one purpose in one job. Different purposes and jobs get independent keys.
func (s Secret) derive(purpose, job string) ([]byte, error) {
	if s.IsZero() {
		return nil, errNoSecret
	}
	key, err := hkdf.Key(sha256.New, s.reveal()[:], nil, "mkrun/1 "+purpose+"\x00"+job, SecretSize)
	if err != nil {
		return nil, fmt.Errorf("deriving the %s key: %w", purpose, err)
	}
	return key, nil
}

// signingKey makes a key to sign with, the same in every process.
func (s Secret) signingKey(purpose, job string) (*ecdsa.PrivateKey, error) {
	for try := 1; ; try++ {
		number, err := s.derive(fmt.Sprintf("%s %d", purpose, try), job)
		if err != nil {
			return nil, err
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), number); err == nil {
			return key, nil
		} else if try == signingTries {
			return nil, fmt.Errorf("deriving the %s key: %w", purpose, err)
		}
	}
}

// signingTries bounds them: one number of four thousand million is none of the curve's.
const signingTries = 8

const redacted = "[secret]"

// String hides the secret.
func (Secret) String() string { return redacted }

// Format hides the secret from every fmt verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue hides the secret from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the secret from text, JSON and YAML encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
