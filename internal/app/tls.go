package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/logging"
)

// certFresh is how often certificates are read again: a renewed one is in use that soon.
const certFresh = time.Second

// serverTLS is the certificates of one listener, which can be renewed while the process runs. While they cannot be
// read, for instance because only one of two files has been replaced, the last ones are used.
type serverTLS struct {
	flag      string // of the listener: grpc or http
	cert, key string // files; empty: the listener speaks plain text
	clientCA  string // file; empty: clients are not asked for a certificate
	auth      tls.ClientAuthType
	names     []string // one of which a client's certificate must have; empty: any that clientCA has signed
	protocols []string // that are offered (ALPN)
	log       *slog.Logger

	last atomic.Pointer[tls.Config]
	line logging.Every // about refused clients
}

// openTLS is the configuration of a listener, nil where it speaks plain text. It fails if the files cannot be used.
func (a *App) openTLS(ctx context.Context, s *serverTLS) (*tls.Config, error) {
	if s.cert == "" {
		return nil, nil //nolint:nilnil // net/http and newGRPC take nil for plain text
	}
	s.log, s.line = a.o.Log, logging.Every{Interval: clientLines}
	first, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	s.last.Store(first)
	a.add("certificates of --"+s.flag+"-addr", always(s.follow), nil)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: s.protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.last.Load(), nil },
	}, nil
}

// follow reads the files again until ctx is done.
func (s *serverTLS) follow(ctx context.Context) {
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
			s.log.LogAttrs(ctx, slog.LevelError, "certificates cannot be read, the last ones serve",
				slog.String("error", logged))
		}
	}
}

func (s *serverTLS) read(ctx context.Context) (*tls.Config, error) {
	own, err := fileread.X509KeyPair(ctx, s.cert, s.key)
	if err != nil {
		return nil, fmt.Errorf("--%s-tls-cert, --%s-tls-key: %w", s.flag, s.flag, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: s.protocols, Certificates: []tls.Certificate{own}}
	if s.clientCA == "" {
		return config, nil
	}
	clients, err := fileread.CertPool(ctx, s.clientCA)
	if err != nil {
		return nil, fmt.Errorf("--%s-tls-client-ca: %w", s.flag, err)
	}
	config.ClientAuth, config.ClientCAs, config.VerifyConnection = s.auth, clients, s.verify
	return config, nil
}

// verify refuses clients whose certificates have none of the names.
func (s *serverTLS) verify(state tls.ConnectionState) error {
	if len(s.names) == 0 || len(state.PeerCertificates) == 0 {
		return nil
	}
	names := certNames(state.PeerCertificates[0])
	if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(s.names, name) }) {
		return nil
	}
	err := fmt.Errorf("the client's certificate is for %q, of which --%s-tls-client-names has none", names, s.flag)
	// The client hears only that its certificate is bad, and will try again.
	if _, ok := s.line.Allow(time.Now()); ok {
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "client refused", slog.String("error", err.Error()))
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

func (o *Options) grpcTLS() *serverTLS {
	return &serverTLS{
		flag: "grpc", cert: o.GRPCTLSCert, key: o.GRPCTLSKey, clientCA: o.GRPCTLSClientCA, names: o.GRPCTLSClientNames,
		auth: tls.RequireAndVerifyClientCert, protocols: []string{"h2"},
	}
}

// httpTLS requires no certificate for reading. It does not speak HTTP/2, whose clients could ask hundreds of things at
// once on each connection.
func (o *Options) httpTLS() *serverTLS {
	return &serverTLS{
		flag: "http", cert: o.HTTPTLSCert, key: o.HTTPTLSKey, clientCA: o.HTTPTLSClientCA,
		auth: tls.VerifyClientCertIfGiven, protocols: []string{"http/1.1"},
	}
}

const (
	// clientLines is how often a line that clients can cause is logged at most.
	clientLines = 10 * time.Second
	// maxClientText is the most that is logged of a text that a client may have caused, in bytes.
	maxClientText = 300
)

// handshakes are the failed TLS handshakes of one listener. Each is counted; one in clientLines is logged, since
// everybody who can connect can cause many. It is safe for concurrent use.
type handshakes struct {
	listener string
	log      *slog.Logger
	failures atomic.Uint64
	line     logging.Every
}

func newHandshakes(listener string, log *slog.Logger) *handshakes {
	return &handshakes{listener: listener, log: log, line: logging.Every{Interval: clientLines}}
}

func (h *handshakes) failed(why string) {
	h.failures.Add(1)
	if n, ok := h.line.Allow(time.Now()); ok {
		h.log.LogAttrs(context.Background(), slog.LevelWarn, "TLS handshake failed", slog.String("listener", h.listener),
			slog.String("error", logging.Shorten(why, maxClientText)), slog.Uint64("not_logged_before", n))
	}
}

// watchedTLS are the credentials of gRPC, for connections that a conns.Guard has accepted. A client that disconnects
// before it has sent anything (a probe) is counted, not logged.
type watchedTLS struct {
	credentials.TransportCredentials

	watch *handshakes
}

func (w watchedTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	plain, info, err := w.TransportCredentials.ServerHandshake(conn)
	switch {
	case err == nil:
		return conns.Decrypted(conn, plain), info, nil
	case errors.Is(err, io.EOF):
		w.watch.failures.Add(1)
	default:
		w.watch.failed(conn.RemoteAddr().String() + ": " + err.Error())
	}
	return nil, nil, err
}

func (w watchedTLS) Clone() credentials.TransportCredentials {
	return watchedTLS{w.TransportCredentials.Clone(), w.watch}
}

// boundedHTTP is the log of an http.Server, whose lines clients can cause: it bounds them.
type boundedHTTP struct {
	slog.Handler

	watch *handshakes
	other *logging.Every
}

// handshakeError begins the line of a handshake that failed.
const handshakeError = "http: TLS handshake error from "

func (q boundedHTTP) Handle(ctx context.Context, r slog.Record) error {
	if why, ok := strings.CutPrefix(r.Message, handshakeError); ok {
		q.watch.failed(why) //nolint:contextcheck // the log needs none
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
