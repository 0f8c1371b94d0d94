package logging

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"time"
)

// Every allows one line in an interval, for lines that clients can cause. It is safe for concurrent use.
type Every struct {
	Interval time.Duration
	// Lines is how many lines an interval may have; 0 is 1.
	Lines int

	mu      sync.Mutex
	began   time.Time // the interval
	lines   int       // in it
	skipped uint64
}

// Allow reports whether a line may be logged now, and if so, how many were not since the last one.
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

// Shorten cuts a text that a client may have caused off after some bytes, marked by "...".
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "..."
}

// HashKey is what the log has of a counter's key, whose values may be secrets: the start of its SHA-256, as of
// printf %s KEY | sha256sum.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}
