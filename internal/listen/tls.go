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
	"github.com/weir-ratelimit/weir/internal/sleep"
)

// certFresh is the interval at which certificates are read again.
const certFresh = time.Second

// TLS is the TLS configuration of one listener. It reloads renewed certificates. While they cannot be read, for
// instance because only one of two files has been replaced, the previous ones remain in use.
type TLS struct {
	Listener  string // name in flags, metrics and the log: grpc or http
	Cert, Key string // files; empty for plain text
	ClientCA  string // file; empty to request no client certificates
	Auth      tls.ClientAuthType
	Names     []string // a client's certificate must have one of these names; empty: any certificate of ClientCA
	Protocols []string // offered protocols (ALPN)
	Log       *slog.Logger

	last     atomic.Pointer[tls.Config]
	line     logging.Every // bounds the log lines about refused clients
	failures atomic.Uint64 // number of failed handshakes
	failed   logging.Every // bounds the log lines about failed handshakes
}

// Check checks the flags.
func (s *TLS) Check(e *flags.Errors) {
	flag := "--" + s.Listener + "-tls-"
	e.Check((s.Cert == "") == (s.Key == ""), flag+"cert", "needs %skey, and the other way round", flag)
	e.Check(s.ClientCA == "" || s.Cert != "", flag+"client-ca",
		"needs %scert and %skey: without TLS there are no client certificates", flag, flag)
	e.Check(len(s.Names) == 0 || s.ClientCA != "", flag+"client-names", "needs %sclient-ca", flag)
}

// Load returns the configuration of the listener, or nil for plain text. It fails if the files cannot be used.
func (s *TLS) Load(ctx context.Context) (*tls.Config, error) {
	s.line.Interval, s.failed.Interval = clientLines, clientLines
	if s.Cert == "" {
		return nil, nil //nolint:nilnil // net/http and gRPC use plain text for nil
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

// Metrics returns the metrics of these listeners' handshakes.
func Metrics(all ...*TLS) []metric.Group {
	return []metric.Group{metric.Each(slices.Values(all),
		metric.Counters("weir_tls_handshakes_failed_total", "listener",
			"Failed TLS handshakes. listener: grpc, http. The log has at most one line in 10 s.",
			func(s *TLS, w metric.Writer) { metric.Put(w, s.failures.Load(), s.Listener) }),
	)}
}

// Run reloads the files periodically until ctx is done.
func (s *TLS) Run(ctx context.Context) {
	if s.Cert == "" {
		return
	}
	for logged := ""; sleep.For(ctx, certFresh) == nil; {
		switch config, err := s.read(ctx); {
		case err == nil:
			s.last.Store(config)
			logged = ""
		case ctx.Err() == nil && err.Error() != logged:
			logged = err.Error()
			s.Log.LogAttrs(ctx, slog.LevelError, "certificates cannot be read, the old ones stay in use",
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

// verify refuses clients whose certificates have none of Names.
func (s *TLS) verify(state tls.ConnectionState) error {
	if len(s.Names) == 0 || len(state.PeerCertificates) == 0 {
		return nil
	}
	names := certNames(state.PeerCertificates[0])
	if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(s.Names, name) }) {
		return nil
	}
	err := fmt.Errorf("the client's certificate is for %q, none of which is in --%s-tls-client-names", names, s.Listener)
	// The client learns only that its certificate is bad, and will retry.
	if _, ok := s.line.Allow(time.Now()); ok {
		s.Log.LogAttrs(context.Background(), slog.LevelWarn, "client refused", slog.String("error", err.Error()))
	}
	return err
}

// certNames returns the subject alternative names of a certificate: DNS names, URIs (SPIFFE IDs), IP and mail
// addresses. It omits names in the form of another type, because an authority that checks only the URIs that it signs
// may sign any DNS name.
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
	// clientLines is the minimum interval between log lines that clients can cause.
	clientLines = 10 * time.Second
	// maxClientText is the maximum length of a logged text that a client may have caused, in bytes.
	maxClientText = 300
)

// handshakeFailed counts a failed handshake, and logs at most one per clientLines, because any client can cause many.
func (s *TLS) handshakeFailed(why string) {
	s.failures.Add(1)
	s.failed.Log(context.Background(), s.Log, slog.LevelWarn, "TLS handshake failed",
		slog.String("listener", s.Listener), slog.String("error", logging.Shorten(why, maxClientText)))
}

// Credentials returns gRPC credentials with the configuration of Load, for connections accepted by a conns.Guard.
func (s *TLS) Credentials(config *tls.Config) credentials.TransportCredentials {
	return watchedTLS{credentials.NewTLS(config), s}
}

// watchedTLS counts failed handshakes. It does not log clients that disconnect without sending, such as probes.
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

// Watch bounds the rate of a server's log lines, which clients can cause.
func (s *TLS) Watch(server *http.Server) {
	bounded := boundedHTTP{s.Log.Handler(), s, &logging.Every{Interval: clientLines}}
	server.ErrorLog = slog.NewLogLogger(bounded, slog.LevelWarn)
}

type boundedHTTP struct {
	slog.Handler

	watch *TLS
	other *logging.Every
}

// handshakeError is the prefix of net/http's line about a failed handshake.
const handshakeError = "http: TLS handshake error from "

func (q boundedHTTP) Handle(ctx context.Context, r slog.Record) error {
	if why, ok := strings.CutPrefix(r.Message, handshakeError); ok {
		q.watch.handshakeFailed(why) //nolint:contextcheck // the log does not use the context
		return nil
	}
	q.other.Log(ctx, slog.New(q.Handler), r.Level, "HTTP server", slog.String("error", r.Message))
	return nil
}
