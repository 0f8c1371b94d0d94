package logging

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Every bounds the rate of log lines that clients can cause. It is safe for concurrent use.
type Every struct {
	Interval time.Duration
	// Lines is the maximum number of lines per interval; 0 means 1.
	Lines int

	mu      sync.Mutex
	began   time.Time // start of the interval
	lines   int       // number of lines in the interval
	skipped uint64
}

// Allow reports whether a line may be logged now, and if so, the number of lines skipped since the last one.
func (e *Every) Allow(now time.Time) (skipped uint64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.began.IsZero() || now.Sub(e.began) >= e.Interval {
		e.began, e.lines = now, 0
	}
	if e.lines >= max(e.Lines, 1) {
		e.skipped++
		return 0, false
	}
	e.lines++
	skipped, e.skipped = e.skipped, 0
	return skipped, true
}

// Log logs a line that ends with the number of lines skipped since the last one, unless Allow skips it, too.
func (e *Every) Log(ctx context.Context, to *slog.Logger, level slog.Level, msg string, attrs ...slog.Attr) {
	if skipped, ok := e.Allow(time.Now()); ok {
		attrs = append(attrs, slog.Uint64("lines_skipped", skipped))
		to.LogAttrs(ctx, level, msg, attrs...) //nolint:sloglint // callers give a constant message
	}
}

// Shorten truncates a text that a client may have caused to about limit bytes, and appends "...".
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "..."
}

// HashKey returns a hash of a counter's key for the log, because the key may contain secrets: the start of its SHA-256,
// as in printf %s KEY | sha256sum.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}
