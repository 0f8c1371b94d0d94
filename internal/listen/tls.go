package listen

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

// certFresh is how often certificates are read again: a renewed one is in use that soon.
const certFresh = time.Second

// TLS is the certificates of one listener, which can be renewed while the process runs. While they cannot be read, for
// instance because only one of two files has been replaced, the last ones are used.
type TLS struct {
	Listener  string // in flags, metrics and the log: grpc or http
	Cert, Key string // files; empty: the listener speaks plain text
	ClientCA  string // file; empty: clients are not asked for a certificate
	Auth      tls.ClientAuthType
	Names     []string // one of which a client's certificate must have; empty: any that ClientCA has signed
	Protocols []string // that are offered (ALPN)
	Log       *slog.Logger

	last     atomic.Pointer[tls.Config]
	line     logging.Every // about refused clients
	failures atomic.Uint64 // of handshakes
	failed   logging.Every // about these
}

// Check checks the flags.
func (s *TLS) Check(e *flags.Errors) {
	flag := "--" + s.Listener + "-tls-"
	e.Check((s.Cert == "") == (s.Key == ""), flag+"cert", "goes together with %skey", flag)
	e.Check(s.ClientCA == "" || s.Cert != "", flag+"client-ca",
		"needs %scert and %skey: without TLS there are no client certificates", flag, flag)
	e.Check(len(s.Names) == 0 || s.ClientCA != "", flag+"client-names", "needs %sclient-ca", flag)
}

// Load returns the configuration of the listener, nil where it speaks plain text. It fails if the files cannot be used.
func (s *TLS) Load(ctx context.Context) (*tls.Config, error) {
	s.line.Interval, s.failed.Interval = clientLines, clientLines
	if s.Cert == "" {
		return nil, nil //nolint:nilnil // net/http and gRPC take nil for plain text
	}
	first, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	s.last.Store(first)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: s.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.last.Load(), nil },
	}, nil
}

// Metrics are of the handshakes of these listeners.
func Metrics(all ...*TLS) []metric.Group {
	return []metric.Group{metric.Each(slices.Values(all),
		metric.Counters("weir_tls_handshakes_failed_total", "listener",
			"Failed TLS handshakes. listener: grpc, http. The log has at most one line in 10 s.",
			func(s *TLS, w metric.Writer) { metric.Put(w, s.failures.Load(), s.Listener) }),
	)}
}

// Run reads the files again until ctx is done.
func (s *TLS) Run(ctx context.Context) {
	if s.Cert == "" {
		return
	}
	tick := time.NewTicker(certFresh)
	defer tick.Stop()
	for logged := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch config, err := s.read(ctx); {
		case err == nil:
			s.last.Store(config)
			logged = ""
		case ctx.Err() == nil && err.Error() != logged:
			logged = err.Error()
			s.Log.LogAttrs(ctx, slog.LevelError, "certificates cannot be read, the last ones serve",
				slog.String("error", logged))
		}
	}
}

func (s *TLS) read(ctx context.Context) (*tls.Config, error) {
	own, err := fileread.X509KeyPair(ctx, s.Cert, s.Key)
	if err != nil {
		return nil, fmt.Errorf("--%s-tls-cert, --%s-tls-key: %w", s.Listener, s.Listener, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: s.Protocols, Certificates: []tls.Certificate{own}}
	if s.ClientCA == "" {
		return config, nil
	}
	clients, err := fileread.CertPool(ctx, s.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("--%s-tls-client-ca: %w", s.Listener, err)
	}
	config.ClientAuth, config.ClientCAs, config.VerifyConnection = s.Auth, clients, s.verify
	return config, nil
}

// verify refuses clients whose certificates have none of the names.
func (s *TLS) verify(state tls.ConnectionState) error {
	if len(s.Names) == 0 || len(state.PeerCertificates) == 0 {
		return nil
	}
	names := certNames(state.PeerCertificates[0])
	if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(s.Names, name) }) {
		return nil
	}
	err := fmt.Errorf("the client's certificate is for %q, of which --%s-tls-client-names has none", names, s.Listener)
	// The client hears only that its certificate is bad, and will try again.
	if _, ok := s.line.Allow(time.Now()); ok {
		s.Log.LogAttrs(context.Background(), slog.LevelWarn, "client refused", slog.String("error", err.Error()))
	}
	return err
}

// certNames are the subject's alternative names of a certificate: DNS names, URIs (SPIFFE IDs), IP and mail addresses.
// A name that is written like one of another sort is not among them: an authority that checks only the URIs that it
// signs may sign any DNS name.
func certNames(cert *x509.Certificate) (names []string) {
	for _, name := range slices.Concat(cert.DNSNames, cert.EmailAddresses) {
		isMail := slices.Contains(cert.EmailAddresses, name)
		if strings.Contains(name, "@") == isMail && !strings.Contains(name, ":") && net.ParseIP(name) == nil {
			names = append(names, name)
		}
	}
	for _, uri := range cert.URIs {
		if name := uri.String(); uri.IsAbs() && net.ParseIP(name) == nil {
			names = append(names, name)
		}
	}
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

const (
	// clientLines is how often a line that clients can cause is logged at most.
	clientLines = 10 * time.Second
	// maxClientText is the most that is logged of a text that a client may have caused, in bytes.
	maxClientText = 300
)

// handshakeFailed counts a failed handshake, and logs one in clientLines, since whoever can connect can cause many.
func (s *TLS) handshakeFailed(why string) {
	s.failures.Add(1)
	if n, ok := s.failed.Allow(time.Now()); ok {
		s.Log.LogAttrs(context.Background(), slog.LevelWarn, "TLS handshake failed", slog.String("listener", s.Listener),
			slog.String("error", logging.Shorten(why, maxClientText)), slog.Uint64("not_logged_before", n))
	}
}

// Credentials returns the credentials of gRPC with the configuration of Load, for connections that a conns.Guard has
// accepted.
func (s *TLS) Credentials(config *tls.Config) credentials.TransportCredentials {
	return watchedTLS{credentials.NewTLS(config), s}
}

// watchedTLS counts handshakes. A client that disconnects before it has sent anything (a probe) is counted, not logged.
type watchedTLS struct {
	credentials.TransportCredentials

	watch *TLS
}

func (w watchedTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	plain, info, err := w.TransportCredentials.ServerHandshake(conn)
	switch {
	case err == nil:
		return conns.Decrypted(conn, plain), info, nil
	case errors.Is(err, io.EOF):
		w.watch.failures.Add(1)
	default:
		w.watch.handshakeFailed(conn.RemoteAddr().String() + ": " + err.Error())
	}
	return nil, nil, err
}

func (w watchedTLS) Clone() credentials.TransportCredentials {
	return watchedTLS{w.TransportCredentials.Clone(), w.watch}
}

// Watch bounds the lines of a server's log, which clients can cause.
func (s *TLS) Watch(server *http.Server) {
	bounded := boundedHTTP{s.Log.Handler(), s, &logging.Every{Interval: clientLines}}
	server.ErrorLog = slog.NewLogLogger(bounded, slog.LevelWarn)
}

type boundedHTTP struct {
	slog.Handler

	watch *TLS
	other *logging.Every
}

// handshakeError begins the line of a handshake that failed.
const handshakeError = "http: TLS handshake error from "

func (q boundedHTTP) Handle(ctx context.Context, r slog.Record) error {
	if why, ok := strings.CutPrefix(r.Message, handshakeError); ok {
		q.watch.handshakeFailed(why) //nolint:contextcheck // the log needs none
		return nil
	}
	skipped, ok := q.other.Allow(r.Time)
	if !ok {
		return nil
	}
	line := slog.NewRecord(r.Time, r.Level, "HTTP server", r.PC)
	line.AddAttrs(slog.String("error", r.Message), slog.Uint64("not_logged_before", skipped))
	return q.Handler.Handle(ctx, line)
}
