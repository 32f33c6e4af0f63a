package session

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// known is a secret whose bytes are easy to find in any rendering.
func known() Secret {
	var key [SecretSize]byte
	for i := range key {
		key[i] = 0xAB
	}
	return secretOf(&key)
}

func TestSecretNeverPrints(t *testing.T) {
	type holder struct {
		Public Secret
		hidden Secret
	}
	s := known()
	h := holder{s, s}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%o", "%t", "%c", "%U", "% x"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", &s)
		fmt.Fprintf(&out, verb+"\n", h)
		fmt.Fprintf(&out, verb+"\n", []any{h, &h, map[string]any{"k": h}})
		fmt.Fprintf(&out, verb+"\n", HeadConfig{Secret: s})
		fmt.Fprintf(&out, verb+"\n", AgentConfig{Secret: s})
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("x", "secret", s, "pointer", &s, "holder", h, "pointer to holder", &h)
	}
	for _, v := range []any{s, &s, h, &h, map[string]any{"k": s}} {
		if b, err := json.Marshal(v); err == nil {
			out.Write(b)
		}
	}
	if !strings.Contains(out.String(), redacted) {
		t.Fatal("nothing was printed at all")
	}
	// Two bytes in a row, in hexadecimal, decimal, octal, binary, as text.
	for _, leak := range []string{"abab", "ABAB", "ab ab", "171 171", "0xab, 0xab", "253 253", "10101011 10101011", "\xab\xab", `\xab\xab`, "q6ur"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("%q leaks into:\n%s", leak, out.String())
		}
	}
}

// The check above can fail: a plain array does leak through an unexported field.
func TestLeakIsVisible(t *testing.T) {
	leaky := struct{ hidden [2]byte }{[2]byte{0xAB, 0xAB}}
	if out := fmt.Sprintf("%v %x", leaky, leaky); !strings.Contains(out, "171 171") || !strings.Contains(out, "abab") {
		t.Errorf("got %s", out)
	}
}

func TestSecretHandover(t *testing.T) {
	s := NewSecret()
	var pipe bytes.Buffer
	if err := WriteSecret(&pipe, s); err != nil {
		t.Fatal(err)
	}
	if pipe.Len() != SecretSize {
		t.Errorf("%d bytes were written", pipe.Len())
	}
	pipe.WriteString("what follows")
	got, err := ReadSecret(&pipe)
	if err != nil || !got.Equal(s) {
		t.Fatalf("read another secret, error %v", err)
	}
	if pipe.String() != "what follows" {
		t.Errorf("the reader took more than the secret; left: %q", pipe.String())
	}
	for name, data := range map[string][]byte{"nothing": nil, "too short": make([]byte, 31), "all zero": make([]byte, 32)} {
		if _, err := ReadSecret(bytes.NewReader(data)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := WriteSecret(&pipe, Secret{}); err == nil {
		t.Error("no secret was written as one")
	}
	if _, err := NewHead(HeadConfig{Job: testJob, Nodes: 1}); err == nil {
		t.Error("a head works without a secret")
	}
	if s.Equal(NewSecret()) || s.Equal(Secret{}) || (Secret{}).Equal(Secret{}) {
		t.Error("different secrets are equal")
	}
}

func TestDerivedKeysDiffer(t *testing.T) {
	seen := map[string]string{}
	for name, key := range map[string]func() ([]byte, error){
		"gossip":       func() ([]byte, error) { return known().GossipKey("a") },
		"other job":    func() ([]byte, error) { return known().GossipKey("b") },
		"other use":    func() ([]byte, error) { return known().derive("certificate authority", "a") },
		"other secret": func() ([]byte, error) { return NewSecret().GossipKey("a") },
	} {
		k, err := key()
		if err != nil || len(k) != SecretSize {
			t.Fatalf("%s: %d bytes, %v", name, len(k), err)
		}
		if other, ok := seen[string(k)]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[string(k)] = name
	}
	// Members of different builds must derive the same keys; this one was made once and for all.
	k, _ := known().GossipKey("a")
	if got, want := hex.EncodeToString(k[:8]), "06537f6f7b7240ad"; got != want {
		t.Errorf("the gossip key begins with %s, was %s", got, want)
	}
}

func TestCertificates(t *testing.T) {
	s := NewSecret()
	mine, err := newAuthority(s, testJob)
	if err != nil {
		t.Fatal(err)
	}
	theirs, _ := newAuthority(s, testJob)
	foreign, _ := newAuthority(NewSecret(), testJob)
	now := time.Now()
	cert, err := mine.issue(Identity{RoleAgent, 3}, now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	verify := func(a *authority, at time.Time) error {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: a.pool, DNSName: serverName, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	if err := verify(theirs, now); err != nil {
		t.Errorf("another member does not accept the certificate: %v", err)
	}
	if err := verify(theirs, now.Add(-50*time.Minute)); err != nil {
		t.Errorf("a member whose clock is behind does not accept it: %v", err)
	}
	if verify(foreign, now) == nil {
		t.Error("a stranger's authority accepts it")
	}
	if verify(theirs, now.Add(certLife)) == nil {
		t.Error("it never expires")
	}
	if leaf.NotAfter.Sub(leaf.NotBefore) != certLife {
		t.Errorf("it lives for %v", leaf.NotAfter.Sub(leaf.NotBefore))
	}
	if id, err := parseIdentity(leaf.Subject.CommonName); err != nil || id != (Identity{RoleAgent, 3}) {
		t.Errorf("identity %v, %v", id, err)
	}
	for _, name := range []string{"", "agent", "agent ", "agent -1", "agent 01", "agent 1 ", "root", "head 1"} {
		if id, err := parseIdentity(name); err == nil {
			t.Errorf("%q is %v", name, id)
		}
	}
}
