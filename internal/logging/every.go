package logging

import (
	"strings"
	"sync"
	"time"
)

// Every allows one line in an interval, for lines that clients can cause. It is safe for concurrent use.
type Every struct {
	Interval time.Duration

	mu      sync.Mutex
	last    time.Time
	skipped uint64
}

// Allow reports whether a line may be logged now, and if so, how many were not since the last one.
func (e *Every) Allow(now time.Time) (skipped uint64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.last.IsZero() && now.Sub(e.last) < e.Interval {
		e.skipped++
		return 0, false
	}
	skipped, e.skipped, e.last = e.skipped, 0, now
	return skipped, true
}

// Rate is a GCRA limit: so many events in a time, and as many at once. It is safe for concurrent use.
type Rate struct {
	mu   sync.Mutex
	each time.Duration // the time between two events at a steady rate
	full time.Duration
	tat  time.Time // when the limit is fully available again: GCRA's theoretical arrival time
}

// NewRate returns a Rate of n events in the time per.
func NewRate(n int, per time.Duration) *Rate { return &Rate{each: per / time.Duration(n), full: per} }

// Allow reports whether an event may happen now, and counts it if so.
func (r *Rate) Allow(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.tat
	if next.Before(now) {
		next = now
	}
	if next = next.Add(r.each); next.Sub(now) > r.full {
		return false
	}
	r.tat = next
	return true
}

// Shorten cuts a text that a client may have caused off after some bytes, marked by "...".
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "..."
}
