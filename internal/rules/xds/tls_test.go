package xds

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// serverTLS is a server that requires client certificates of the authority, and TLS 1.3, like Envoy Gateway.
func serverTLS(t *testing.T, ca *proctest.Authority, name string) *tls.Config {
	t.Helper()
	own, err := tls.LoadX509KeyPair(ca.Issue("server", name))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(ca.CA())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// copyFile replaces a file by another one.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Client and server use certificates. If the authority and all certificates are replaced, the next connection uses the
// new ones. If a key is incomplete, the last ones are used.
func TestCertificatesAreRenewed(t *testing.T) {
	first, second := proctest.NewAuthority(t), proctest.NewAuthority(t)
	cert, key := first.Issue("client", "client")
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{TLS: serverTLS(t, first, "envoy-gateway")})
	s.Set("1", partnertest.Domain("a", partnertest.Limit("k", "", 1)))
	c := follow(t, Options{
		Server: s.Addr, UseTLS: true, TLS: TLS{Cert: cert, Key: key, CA: first.CA(), ServerName: "envoy-gateway"},
	})
	c.want("a k=1/hour")

	if err := os.WriteFile(key, []byte("half a ke"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s = partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{Addr: s.Addr, TLS: serverTLS(t, first, "envoy-gateway")})
	s.Set("1", partnertest.Domain("a", partnertest.Limit("k", "", 2)))
	c.want("a k=2/hour")

	s.Stop()
	s = partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{Addr: s.Addr, TLS: serverTLS(t, second, "envoy-gateway")})
	s.Set("1", partnertest.Domain("a", partnertest.Limit("k", "", 3)))
	c.await("a refused certificate", func() bool { return strings.Contains(c.Status().Error, "unknown authority") })
	c.want("a k=2/hour")
	newCert, newKey := second.Issue("client", "client")
	copyFile(t, second.CA(), first.CA())
	copyFile(t, newCert, cert)
	copyFile(t, newKey, key)
	c.want("a k=3/hour")
}

// Errors: a server with another name, a server without TLS, and unreadable files.
func TestCertificatesThatAreRefused(t *testing.T) {
	ca := proctest.NewAuthority(t)
	cert, key := ca.Issue("client", "client")
	secure := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{TLS: serverTLS(t, ca, "envoy-gateway")})
	plain := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	for name, test := range map[string]struct {
		server string
		tls    TLS
		want   string
	}{
		"another name":   {secure.Addr, TLS{Cert: cert, Key: key, CA: ca.CA(), ServerName: "other"}, "not other"},
		"the host":       {secure.Addr, TLS{Cert: cert, Key: key, CA: ca.CA()}, "127.0.0.1"},
		"no certificate": {secure.Addr, TLS{CA: ca.CA(), ServerName: "envoy-gateway"}, "certificate required"},
		"plain server":   {plain.Addr, TLS{CA: ca.CA(), ServerName: "envoy-gateway"}, "handshake"},
		"no file":        {secure.Addr, TLS{CA: ca.CA() + ".gone"}, "--xds-tls-ca: "},
		"no PEM":         {secure.Addr, TLS{CA: key}, "has no certificate in PEM"},
		"no key":         {secure.Addr, TLS{Cert: cert, Key: ca.CA()}, "--xds-tls-cert, --xds-tls-key: "},
	} {
		t.Run(name, func(t *testing.T) {
			c := follow(t, Options{Server: test.server, UseTLS: test.tls != (TLS{}), TLS: test.tls})
			c.await(test.want, func() bool { return strings.Contains(c.Status().Error, test.want) })
		})
	}
}
