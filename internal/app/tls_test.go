package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-ratelimit/weir/internal/test/certtest"
)

// secure is what a client of the authority's servers uses; certificate and key may be empty.
func secure(t *testing.T, ca *certtest.Authority, cert, key string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(ca.CA())
	if err != nil {
		t.Fatal(err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
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

// over asks for the health of the service on a connection of its own. Its error is why there is none.
func (p *process) over(config *tls.Config) error {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.app.GRPCAddr(),
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithAuthority("127.0.0.1"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // only asked
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

func TestGRPCOverTLS(t *testing.T) {
	ca, others := certtest.New(t), certtest.New(t)
	o := options(t, rulesOf("1"))
	o.GRPCTLSCert, o.GRPCTLSKey = ca.Issue("server", "127.0.0.1")
	plain := secure(t, ca, "", "")
	cert, key := ca.Issue("edge", "spiffe://mesh/ns/edge/sa/envoy")
	edge := secure(t, ca, cert, key)

	t.Run("any client", func(t *testing.T) {
		p := start(t, o)
		if err := p.over(plain); err != nil {
			t.Error(err)
		}
		if err := p.over(secure(t, others, "", "")); err == nil {
			t.Error("a client that trusts another authority was satisfied")
		}
		if got := p.asksInPlainText(); !strings.Contains(got, "Unavailable") {
			t.Errorf("a client without TLS is answered %s", got)
		}
	})
	t.Run("with a certificate", func(t *testing.T) {
		o := o
		o.GRPCTLSClientCA = ca.CA()
		p := start(t, o)
		if err := p.over(edge); err != nil {
			t.Error(err)
		}
		if err := p.over(plain); err == nil {
			t.Error("a client without a certificate was let in")
		}
		stranger := secure(t, ca, "", "")
		cert, key := others.Issue("edge", "spiffe://mesh/ns/edge/sa/envoy")
		stranger.Certificates = secure(t, others, cert, key).Certificates
		if err := p.over(stranger); err == nil {
			t.Error("a client with a certificate of another authority was let in")
		}
	})
	t.Run("of a name", func(t *testing.T) {
		o := o
		o.GRPCTLSClientCA, o.GRPCTLSClientNames = ca.CA(), []string{"spiffe://mesh/ns/edge/sa/envoy", "edge.mesh", "fe80::1"}
		p := start(t, o)
		for name, want := range map[string]bool{
			"spiffe://mesh/ns/edge/sa/envoy": true, "edge.mesh": true,
			"spiffe://mesh/ns/edge/sa/other": false, "a.edge.mesh": false,
			"DNS:spiffe://mesh/ns/edge/sa/envoy": false, // which the authority has not checked as a URI
			"URI:edge.mesh":                      false, // nor this one as a DNS name
			"URI:fe80::1":                        false, // nor this one as an address
		} {
			cert, key := ca.Issue("client", name)
			if err := p.over(secure(t, ca, cert, key)); (err == nil) != want {
				t.Errorf("client %s: %v, want it let in: %t", name, err, want)
			}
		}
		if line := `msg="client refused" error="the client's certificate is for`; p.logged(line) != 1 {
			t.Errorf("%d log lines contain %s, want one for all; log:\n%s", p.logged(line), line, p.log)
		}
	})
}

// asksInPlainText says how a client without TLS is answered.
func (p *process) asksInPlainText() string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := p.health.Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil {
		return "OK"
	}
	return err.Error()
}

// Certificates are renewed while the process runs. Until both files fit together, the last ones serve.
func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	o := options(t, rulesOf("1"))
	o.GRPCTLSCert, o.GRPCTLSKey = ca.Issue("server", "127.0.0.1", "old")
	o.GRPCTLSClientCA = ca.CA()
	cert, key := ca.Issue("client", "client")
	config := secure(t, ca, cert, key)
	serves := ""
	config.VerifyConnection = func(state tls.ConnectionState) error {
		serves = state.PeerCertificates[0].DNSNames[0]
		return nil
	}
	p := start(t, o)
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !done(); {
			if time.Now().After(deadline) {
				t.Fatalf("still not %s; log:\n%s", what, p.log)
			}
			if err := p.over(config); err != nil {
				t.Fatal(err)
			}
		}
	}
	until("served", func() bool { return serves == "old" })

	good, err := os.ReadFile(o.GRPCTLSKey)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, o.GRPCTLSKey, "half a ke")
	until("noticed", func() bool {
		return p.logged(`msg="certificates cannot be read, the last ones serve" error="--grpc-tls-cert`) == 1
	})
	if serves != "old" {
		t.Errorf("with a broken key %q serves", serves)
	}
	writeFile(t, o.GRPCTLSKey, string(good))
	ca.Issue("server", "127.0.0.1", "new")
	until("renewed", func() bool { return serves == "new" })
}

// Everybody may look; who changes something needs the token, or a certificate.
func TestWhoMayReload(t *testing.T) {
	ca := certtest.New(t)
	o := options(t, rulesOf("1"))
	o.Pprof = true
	o.HTTPTLSCert, o.HTTPTLSKey = ca.Issue("server", "127.0.0.1")
	o.HTTPTLSClientCA = ca.CA()
	o.HTTPTokenFile = filepath.Join(t.TempDir(), "token")
	writeFile(t, o.HTTPTokenFile, "s3cret-s3cret-s3cret\n")
	p := start(t, o)
	cert, key := ca.Issue("operator", "operator")
	anybody, operator := secure(t, ca, "", ""), secure(t, ca, cert, key)
	for _, tt := range []struct {
		config              *tls.Config
		method, path, token string
		want                int
	}{
		{anybody, "GET", "/healthz", "", 200},
		{anybody, "GET", "/rules", "", 200},
		{anybody, "POST", "/reload", "", 401},
		{anybody, "POST", "/reload", "s3cre", 401},
		{anybody, "POST", "/reload", "s3cret-s3cret-s3cret", 200},
		{anybody, "GET", "/debug/pprof/", "", 401},
		{anybody, "GET", "/debug/pprof/", "s3cret-s3cret-s3cret", 200},
		{operator, "POST", "/reload", "", 200},
		{operator, "GET", "/debug/pprof/", "", 200},
	} {
		if got := p.https(tt.config, tt.method, tt.path, tt.token); got != tt.want {
			t.Errorf("%s %s with token %q, certificate %t: status %d, want %d", tt.method, tt.path, tt.token,
				tt.config == operator, got, tt.want)
		}
	}
	for client, n := range map[string]int{"token": 1, "operator": 1} {
		if line := "msg=audit action=reload result=ok client=" + client; p.logged(line) != n {
			t.Errorf("%d log lines contain %s, want %d: who was refused did nothing; log:\n%s", p.logged(line), line, n, p.log)
		}
	}
	writeFile(t, o.HTTPTokenFile, "another-token-of-16\n")
	if got := p.https(anybody, "POST", "/reload", "another-token-of-16"); got != 200 {
		t.Errorf("with the new token: status %d", got)
	}
	if err := os.Remove(o.HTTPTokenFile); err != nil {
		t.Fatal(err)
	}
	if got := p.https(anybody, "POST", "/reload", ""); got != 503 {
		t.Errorf("without a token to compare with: status %d, want 503", got)
	}
	if wrong := p.app.metrics.WrongTokens.Load(); wrong != 1 || p.logged(`msg="a request with a wrong token was refused"`) != 1 {
		t.Errorf("%d wrong tokens counted, want 1 and a line; log:\n%s", wrong, p.log)
	}
	if strings.Contains(p.log.String(), "s3cre") {
		t.Error("the token is in the log")
	}
}

func (p *process) https(config *tls.Config, method, path, token string) int {
	p.t.Helper()
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+p.app.HTTPAddr()+path, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		p.t.Fatal(err)
	}
	return res.StatusCode
}

// What is wrong with the files is said at the start.
func TestTLSFilesAreChecked(t *testing.T) {
	ca := certtest.New(t)
	cert, key := ca.Issue("server", "127.0.0.1")
	empty := filepath.Join(t.TempDir(), "empty")
	writeFile(t, empty, "\n")
	for _, tt := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.GRPCTLSCert = cert }, "--grpc-tls-cert: goes together with --grpc-tls-key"},
		{func(o *Options) { o.HTTPTLSClientCA = cert }, "--http-tls-client-ca: needs --http-tls-cert and --http-tls-key: " +
			"without TLS there are no client certificates"},
		{func(o *Options) { o.GRPCTLSClientNames = []string{"a"} }, "--grpc-tls-client-names: needs --grpc-tls-client-ca"},
		{func(o *Options) { o.GRPCTLSCert, o.GRPCTLSKey = cert, "nowhere" }, "--grpc-tls-cert, --grpc-tls-key: open " +
			"nowhere: no such file or directory"},
		{func(o *Options) { o.GRPCTLSCert, o.GRPCTLSKey = cert, cert }, "--grpc-tls-cert, --grpc-tls-key: tls: found a " +
			"certificate rather than a key"},
		{
			func(o *Options) { o.HTTPTLSCert, o.HTTPTLSKey, o.HTTPTLSClientCA = cert, key, empty },
			"--http-tls-client-ca: " + empty + " has no certificate in PEM",
		},
		{func(o *Options) { o.HTTPTokenFile = empty }, "--http-token-file: " + empty + " must hold one line with the token"},
	} {
		o := options(t, rulesOf("1"))
		o.Log = slog.New(slog.DiscardHandler)
		tt.change(&o)
		if _, err := New(t.Context(), o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want %s", err, tt.want)
		}
	}
}

// The HTTP address does not speak HTTP/2: a connection has one request at a time.
func TestHTTPWithoutStreams(t *testing.T) {
	ca := certtest.New(t)
	o := options(t, rulesOf("1"))
	o.HTTPTLSCert, o.HTTPTLSKey = ca.Issue("server", "127.0.0.1")
	p := start(t, o)
	config := secure(t, ca, "", "")
	config.NextProtos = []string{"h2", "http/1.1"}
	conn, err := tls.Dial("tcp", p.app.HTTPAddr(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // only asked
	if got := conn.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("a client that can do both speaks %q", got)
	}
}
