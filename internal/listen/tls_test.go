package listen

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// watched are certificates whose log a test reads.
func watched(s *TLS) (*TLS, *proctest.Buffer) {
	log := &proctest.Buffer{}
	s.Listener, s.Log = "grpc", slog.New(slog.NewTextHandler(log, nil))
	return s, log
}

// handshake is one between a client and a listener. The error is the listener's.
func handshake(t *testing.T, s *TLS, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	config, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a, b := net.Pipe()
	defer a.Close() //nolint:errcheck // in memory
	defer b.Close() //nolint:errcheck // in memory
	go func() {
		c := tls.Client(a, client)
		_ = c.HandshakeContext(t.Context())
		_, _ = io.Copy(io.Discard, c)
	}()
	server := tls.Server(b, config)
	err = server.HandshakeContext(t.Context())
	return server.ConnectionState(), err
}

// client trusts the authority, and shows a certificate if there is one.
func client(t *testing.T, ca *proctest.Authority, cert, key string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(ca.CA())
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", NextProtos: []string{"h2", "http/1.1"}}
	c.RootCAs.AppendCertsFromPEM(text)
	if cert != "" {
		own, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{own}
	}
	return c
}

// A client needs a certificate of the authority, with one of the names. Who was refused is logged once.
func TestClientsNeedACertificate(t *testing.T) {
	ca, others := proctest.NewAuthority(t), proctest.NewAuthority(t)
	s, log := watched(&TLS{
		ClientCA: ca.CA(), Auth: tls.RequireAndVerifyClientCert, Protocols: []string{"http/1.1"},
		Names: []string{"spiffe://mesh/ns/edge/sa/envoy", "edge.mesh", "fe80::1"},
	})
	s.Cert, s.Key = ca.Issue("server", "127.0.0.1")
	if _, err := handshake(t, s, client(t, ca, "", "")); err == nil {
		t.Error("a client without a certificate was let in")
	}
	cert, key := others.Issue("edge", "edge.mesh")
	if _, err := handshake(t, s, client(t, ca, cert, key)); err == nil {
		t.Error("a client with a certificate of another authority was let in")
	}
	for name, want := range map[string]bool{
		"spiffe://mesh/ns/edge/sa/envoy": true, "edge.mesh": true,
		"spiffe://mesh/ns/edge/sa/other": false, "a.edge.mesh": false,
		"DNS:spiffe://mesh/ns/edge/sa/envoy": false, // which the authority has not checked as a URI
		"URI:edge.mesh":                      false, // nor this one as a DNS name
		"URI:fe80::1":                        false, // nor this one as an address
	} {
		cert, key := ca.Issue("client", name)
		state, err := handshake(t, s, client(t, ca, cert, key))
		if (err == nil) != want || want && state.NegotiatedProtocol != "http/1.1" {
			t.Errorf("client %s: %v by %q, want it let in: %t", name, err, state.NegotiatedProtocol, want)
		}
	}
	if n := strings.Count(log.String(), `msg="client refused" error="the client's certificate is for`); n != 1 {
		t.Errorf("%d lines of refused clients, want one for all; log:\n%s", n, log)
	}
}

// Certificates are renewed while the process runs. Until both files fit together, the last ones serve.
func TestCertificatesAreRenewed(t *testing.T) {
	ca := proctest.NewAuthority(t)
	s, log := watched(&TLS{})
	s.Cert, s.Key = ca.Issue("server", "127.0.0.1", "old")
	good, err := os.ReadFile(s.Key)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		config, err := s.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		serves := func(want string) {
			t.Helper()
			time.Sleep(5 * certFresh / 2) // between two reads
			now, err := config.GetConfigForClient(nil)
			if err != nil || now.Certificates[0].Leaf.DNSNames[0] != want {
				t.Errorf("%v serves, %v, want %s", now.Certificates[0].Leaf.DNSNames, err, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		serves("old")
		for _, key := range []string{"half a ke", string(good)} {
			if err := os.WriteFile(s.Key, []byte(key), 0o600); err != nil {
				t.Fatal(err)
			}
			serves("old")
		}
		ca.Issue("server", "127.0.0.1", "new")
		serves("new")
	})
	if n := strings.Count(log.String(), `"certificates cannot be read, the old ones stay in use" error="--grpc-tls-cert`); n != 1 {
		t.Errorf("%d lines of files that cannot be read, want one; log:\n%s", n, log)
	}
}

// What is wrong with flags and files is said at the start.
func TestFilesAreChecked(t *testing.T) {
	ca := proctest.NewAuthority(t)
	cert, key := ca.Issue("server", "127.0.0.1")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		tls  *TLS
		want string
	}{
		{&TLS{}, ""},
		{&TLS{Cert: cert, Key: key, ClientCA: ca.CA()}, ""},
		{&TLS{Cert: cert}, "--grpc-tls-cert: needs --grpc-tls-key, and the other way round"},
		{&TLS{ClientCA: cert}, "--grpc-tls-client-ca: needs --grpc-tls-cert and --grpc-tls-key: without TLS there are no " +
			"client certificates"},
		{&TLS{Names: []string{"a"}}, "--grpc-tls-client-names: needs --grpc-tls-client-ca"},
		{&TLS{Cert: cert, Key: "nowhere"}, "--grpc-tls-cert, --grpc-tls-key: stat nowhere: no such file or directory"},
		{&TLS{Cert: cert, Key: cert}, "--grpc-tls-cert, --grpc-tls-key: tls: found a certificate rather than a key"},
		{&TLS{Cert: cert, Key: key, ClientCA: empty}, "--grpc-tls-client-ca: " + empty + " has no certificate in PEM"},
	} {
		var e flags.Errors
		tt.tls.Listener = "grpc"
		tt.tls.Check(&e)
		err := e.Join()
		if err == nil {
			_, err = tt.tls.Load(t.Context())
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("error %v, want %s", err, tt.want)
		}
	}
}

// Whoever can connect can fail handshakes, as many as they like: they are counted, and the log stays short.
func TestFailedHandshakesAreBounded(t *testing.T) {
	ca := proctest.NewAuthority(t)
	s, log := watched(&TLS{})
	s.Cert, s.Key = ca.Issue("server", "127.0.0.1")
	config, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var server http.Server
	s.Watch(&server)
	const tries = 25
	for range tries {
		a, b := net.Pipe()
		go func() {
			_, _ = io.WriteString(a, strings.Repeat("no TLS\r\n", 10))
			_, _ = io.Copy(io.Discard, a)
		}()
		if _, _, err := s.Credentials(config).ServerHandshake(b); err == nil {
			t.Error("a client without TLS is let in")
		}
		_, _ = a.Close(), b.Close()
		server.ErrorLog.Print("http: TLS handshake error from 10.0.0.1:5: no TLS")
		server.ErrorLog.Print("http: another error")
	}
	const series = `weir_tls_handshakes_failed_total{listener="grpc"}`
	if got := partnertest.Series(t, Metrics(s)...)[series]; got != "50" {
		t.Errorf("%s failures are counted, want 50", got)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !strings.Contains(log.String(), "no TLS") &&
		!strings.Contains(log.String(), `msg="TLS handshake failed" listener=grpc error=`) {
		t.Errorf("%d lines, want one about handshakes and one about the other error:\n%s", n, log)
	}
}
