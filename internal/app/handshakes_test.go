package app

import (
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/certtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Whoever can connect can fail handshakes, as many as they like: they are counted, and the log stays short.
func TestHandshakesThatFailAreBounded(t *testing.T) {
	ca := certtest.New(t)
	o := options(t, rulesOf("1"))
	o.GRPCTLSCert, o.GRPCTLSKey = ca.Issue("server", "127.0.0.1")
	o.HTTPTLSCert, o.HTTPTLSKey = o.GRPCTLSCert, o.GRPCTLSKey
	p := start(t, o)
	const tries = 50
	for _, addr := range []string{p.app.GRPCAddr(), p.app.HTTPAddr()} {
		for range tries {
			speak(t, addr)
		}
	}
	for listener, h := range map[string]*handshakes{"grpc": p.app.grpcHandshakes, "http": p.app.httpHandshakes} {
		want(t, "handshakes of "+listener, "50",
			func() string { return p.metricOf(`weir_tls_handshakes_failed_total{listener="` + listener + `"}`) })
		if n := p.logged(`msg="TLS handshake failed" listener=` + listener + ` error=`); n != 1 {
			t.Errorf("%d lines about %d failures of %s, want one; log:\n%s", n, h.failures.Load(), listener, p.log)
		}
	}
}

// speak connects, says something that is no TLS, and waits until the server has hung up.
func speak(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // only spoken to
	if _, err := io.WriteString(conn, strings.Repeat("no TLS\r\n", 10)); err != nil {
		return // it has hung up already
	}
	_, _ = io.Copy(io.Discard, conn)
}

// metricOf is the value of a series, from the registry: over HTTPS it would need a client.
func (p *process) metricOf(series string) string {
	p.t.Helper()
	answer := httptest.NewRecorder()
	p.app.metrics.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// A certificate on a file system that hangs stops no connection: the last ones serve.
func TestCertificatesThatHang(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	o := options(t, rulesOf("1"))
	o.GRPCTLSCert, o.GRPCTLSKey = ca.Issue("server", "127.0.0.1")
	p := start(t, o)
	hung := proctest.Hang(t, o.GRPCTLSKey)
	config := secure(t, ca, "", "")
	connect := func() {
		if err := p.over(config); err != nil {
			t.Fatal(err)
		}
	}
	for reading := false; !reading; { // until the files are read again
		connect()
		reading = hung.Hangs()
	}
	begin := time.Now()
	for range 20 {
		connect()
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("20 connections took %s while the key cannot be read", took)
	}
	hung.Release()
}
