package proctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Authority signs certificates, which are PEM files.
type Authority struct {
	tb     testing.TB
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// NewAuthority returns an authority for the test, whose files are removed when the test ends.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, dir: tb.TempDir(), key: newKey(tb), serial: 1}
	a.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: "Weir's tests"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a.write(a.CA(), "CERTIFICATE", a.sign(a.cert, a.cert, a.key))
	return a
}

// CA returns the file of the authority's own certificate.
func (a *Authority) CA() string { return filepath.Join(a.dir, "ca.pem") }

// Issue writes a certificate and its key, valid for an hour for clients and servers. A name is a DNS name, an IP
// address, a URI such as spiffe://mesh/ns/shop, or "DNS:" or "URI:" and any text. An existing file is replaced.
func (a *Authority) Issue(file string, names ...string) (cert, key string) {
	a.tb.Helper()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: file},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		switch ip := net.ParseIP(name); {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case strings.HasPrefix(name, "DNS:"):
			template.DNSNames = append(template.DNSNames, name[len("DNS:"):])
		case strings.Contains(name, "://"), strings.HasPrefix(name, "URI:"):
			uri, err := url.Parse(strings.TrimPrefix(name, "URI:"))
			if err != nil {
				a.tb.Fatal(err)
			}
			template.URIs = append(template.URIs, uri)
		default:
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	own := newKey(a.tb)
	cert, key = filepath.Join(a.dir, file+".pem"), filepath.Join(a.dir, file+"-key.pem")
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.tb.Fatal(err)
	}
	a.write(key, "PRIVATE KEY", der)
	a.write(cert, "CERTIFICATE", a.sign(template, a.cert, own))
	return cert, key
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func (a *Authority) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	a.tb.Helper()
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, a.key)
	if err != nil {
		a.tb.Fatal(err)
	}
	return der
}

// write replaces the file atomically.
func (a *Authority) write(path, kind string, der []byte) {
	a.tb.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		a.tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		a.tb.Fatal(err)
	}
}
