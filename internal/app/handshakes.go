package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// maxQuietText is the most that is logged of what a client may have caused, in bytes.
const maxQuietText = 300

// handshakes are the TLS handshakes of one listener that failed. Each is counted; one every refusedQuiet is logged, for
// anybody who can connect causes as many as they like. It is safe for concurrent use.
type handshakes struct {
	listener string
	log      *slog.Logger
	failures atomic.Uint64
	line     quiet
}

func (h *handshakes) failed(why string) {
	h.failures.Add(1)
	if n, ok := h.line.allow(time.Now()); ok {
		h.log.LogAttrs(context.Background(), slog.LevelWarn, "TLS handshake failed", slog.String("listener", h.listener),
			slog.String("error", cutText(why)), slog.Uint64("not_logged_before", n))
	}
}

// quiet allows one line every refusedQuiet. Its zero value is ready.
type quiet struct {
	mu      sync.Mutex
	last    time.Time
	skipped uint64
}

// allow says whether a line may be logged, and how many were not since the last one.
func (q *quiet) allow(now time.Time) (skipped uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.last.IsZero() && now.Sub(q.last) < refusedQuiet {
		q.skipped++
		return 0, false
	}
	skipped, q.skipped, q.last = q.skipped, 0, now
	return skipped, true
}

// cutText is the text, cut off where it is long.
func cutText(text string) string {
	if len(text) <= maxQuietText {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuietText], "") + "..."
}

// watchedTLS are the credentials of gRPC. A client that leaves before it has said anything (a probe that only connects) is
// counted, and not logged.
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

// quietHTTP is the log of an http.Server, whose lines clients cause: it bounds them.
type quietHTTP struct {
	slog.Handler

	watch *handshakes
	other *quiet
}

func newQuietHTTP(to slog.Handler, watch *handshakes) quietHTTP {
	return quietHTTP{to, watch, &quiet{}}
}

// handshakeError begins the line of a handshake that failed.
const handshakeError = "http: TLS handshake error from "

// Handle implements slog.Handler.
func (q quietHTTP) Handle(ctx context.Context, r slog.Record) error {
	if why, ok := strings.CutPrefix(r.Message, handshakeError); ok {
		q.watch.failed(why) //nolint:contextcheck // the log needs none
		return nil
	}
	skipped, ok := q.other.allow(r.Time)
	if !ok {
		return nil
	}
	line := slog.NewRecord(r.Time, r.Level, "HTTP server", r.PC)
	line.AddAttrs(slog.String("error", r.Message), slog.Uint64("not_logged_before", skipped))
	return q.Handler.Handle(ctx, line)
}
