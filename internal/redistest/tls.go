package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/proctest"
)

// Authority signs certificates.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// File is its own certificate, in PEM.
	File string
}

// NewAuthority makes an authority of its own.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	dir := tb.TempDir()
	a.File = filepath.Join(dir, "ca.crt")
	a.key = a.write(a.cert, a.File, filepath.Join(dir, "ca.key"))
	return a
}

// Issue writes a certificate for 127.0.0.1 and the name, and its key, into a directory.
func (a *Authority) Issue(dir, name string) (cert, key string) {
	a.tb.Helper()
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	a.write(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, cert, key)
	return cert, key
}

// write signs a certificate with the authority's key, or if it has none yet with its own.
func (a *Authority) write(template *x509.Certificate, certFile, keyFile string) *ecdsa.PrivateKey {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.tb.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, signer)
	if err != nil {
		a.tb.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.tb.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: raw},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			a.tb.Fatal(err)
		}
	}
	return key
}

// StartTLS runs a redis-server that takes TLS, too, with a certificate of the authority for 127.0.0.1 and "redis", and
// returns where. With clients it asks who connects for a certificate of that authority.
func StartTLS(tb testing.TB, a *Authority, clients bool, args ...string) (s *Server, addr string) {
	tb.Helper()
	cert, key := a.Issue(tb.TempDir(), "redis")
	port, ask := strconv.Itoa(proctest.FreePort(tb)), "no"
	if clients {
		ask = "yes"
	}
	s = Start(tb, append([]string{
		"--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", a.File, "--tls-auth-clients", ask,
	}, args...)...)
	return s, net.JoinHostPort("127.0.0.1", port)
}
