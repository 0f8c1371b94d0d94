package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/weir-ratelimit/weir/internal/logging"
)

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

// watchedTLS are the credentials of gRPC. A client that disconnects before it has sent anything (a probe) is counted,
// not logged.
type watchedTLS struct {
	credentials.TransportCredentials

	watch *handshakes
}

// ServerHandshake implements credentials.TransportCredentials.
func (w watchedTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := w.TransportCredentials.ServerHandshake(conn)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		w.watch.failures.Add(1)
	default:
		w.watch.failed(conn.RemoteAddr().String() + ": " + err.Error())
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (w watchedTLS) Clone() credentials.TransportCredentials {
	return watchedTLS{w.TransportCredentials.Clone(), w.watch}
}

// boundedHTTP is the log of an http.Server, whose lines clients can cause: it bounds them.
type boundedHTTP struct {
	slog.Handler

	watch *handshakes
	other *logging.Every
}

func newBoundedHTTP(to slog.Handler, watch *handshakes) boundedHTTP {
	return boundedHTTP{to, watch, &logging.Every{Interval: clientLines}}
}

// handshakeError begins the line of a handshake that failed.
const handshakeError = "http: TLS handshake error from "

// Handle implements slog.Handler.
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
