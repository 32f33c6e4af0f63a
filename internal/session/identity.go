package session

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Role is the part a member of a job plays.
type Role string

// The roles that speak over the network.
const (
	RoleLauncher Role = "launcher"
	RoleHead     Role = "head"
	RoleAgent    Role = "agent"
	RoleStanding Role = "standing agent" // of a pool, not of a job
)

// Identity says who a member is; it is the common name of the member's certificate.
type Identity struct {
	Role Role
	Node int // of an agent; -1 for the others
}

func (id Identity) String() string {
	if id.Role == RoleAgent {
		return string(RoleAgent) + " " + strconv.Itoa(id.Node)
	}
	return string(id.Role)
}

func parseIdentity(name string) (Identity, error) {
	if index, ok := strings.CutPrefix(name, string(RoleAgent)+" "); ok {
		node, err := strconv.Atoi(index)
		if err != nil || node < 0 || strconv.Itoa(node) != index {
			return Identity{}, fmt.Errorf("certificate of %q: not a node index", name)
		}
		return Identity{RoleAgent, node}, nil
	}
	switch Role(name) {
	case RoleLauncher, RoleHead, RoleStanding:
		return Identity{Role(name), -1}, nil
	}
	return Identity{}, fmt.Errorf("certificate of %q: not a role of a job", name)
}

const (
	// serverName is in every certificate. Who holds a certificate of the job's authority is a member;
	// host names add nothing to that, and a host is reached under many of them.
	serverName = "member.mkrun"

	certBackdate = time.Hour // clocks of hosts differ
	certLife     = 24 * time.Hour
	certRenew    = 12 * time.Hour // a new one is made for handshakes after this; jobs may run for weeks
)

// authority is the certificate authority of a job. Every member derives the same one from the secret
// and signs its own certificate, so no private key ever leaves a process. Keys are of P-256, for which the library has
// its tables ready: those of Ed25519 are computed in each process anew, which takes longer than all signatures.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(secret Secret, job string) (*authority, error) {
	key, err := secret.signingKey("certificate authority", job)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "mkrun job " + job},
		NotBefore:             now.Add(-certBackdate),
		NotAfter:              now.AddDate(10, 0, 0), // never sent: only this process looks at it
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the job's certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the job's certificate authority: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{key: key, cert: cert, pool: pool}, nil
}

// issue makes a fresh key and a certificate for it.
func (a *authority) issue(id Identity, now time.Time) (*tls.Certificate, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key for %v: %w", id, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("making a certificate for %v: %w", id, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: id.String()},
		DNSNames:     []string{serverName},
		NotBefore:    now.Add(-certBackdate),
		NotAfter:     now.Add(certLife - certBackdate),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate for %v: %w", id, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

// tlsConfig is for both directions: TLS 1.3 only, and both sides show a certificate of the job.
func tlsConfig(secret Secret, job string, id Identity) (*tls.Config, error) {
	ca, err := newAuthority(secret, job)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var made time.Time
	var cert *tls.Certificate
	current := func() (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); cert == nil || now.Sub(made) > certRenew {
			fresh, err := ca.issue(id, now)
			if err != nil {
				return nil, err
			}
			cert, made = fresh, now
		}
		return cert, nil
	}
	if _, err := current(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"h2"},
		ServerName:             serverName,
		RootCAs:                ca.pool,
		ClientCAs:              ca.pool,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true, // every connection proves membership anew
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current() },
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return current() },
	}, nil
}

// peerIdentity reads who is at the other end of a connection whose handshake succeeded.
func peerIdentity(state tls.ConnectionState) (Identity, error) {
	if len(state.PeerCertificates) == 0 {
		return Identity{}, fmt.Errorf("the peer showed no certificate")
	}
	return parseIdentity(state.PeerCertificates[0].Subject.CommonName)
}
