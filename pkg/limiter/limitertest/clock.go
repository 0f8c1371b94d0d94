// Package limitertest tests a limiter.Store. Run checks its contract, Histories compares it with storekit.Decide over
// random histories, and Linearizable does so over concurrent histories. The tests of package limiter check
// storekit.Decide itself, so a store needs only Run and Histories. Call them in a test of the store:
//
//	limitertest.Run(t, func(t *testing.T, clock *limitertest.Clock) limiter.Store {
//		s, err := memstore.New(memstore.Options{Now: clock.Now})
//		...
//	})
//
// Virtual time stands still or jumps while real time passes. If a store frees state by a clock other than the Clock
// that it is given, it must keep state for at least a minute of that clock, whatever its virtual time to live.
//
// The store's own tests must check what happens to expired state, in a full store, and after a lost connection.
package limitertest

import (
	"sync/atomic"
	"time"
)

// start is 2026-01-01 00:00:00 UTC, in microseconds, when windows of an hour, a day and a week begin.
const start = 1_767_225_600_000_000

// Clock is virtual time, which moves only by Set and Advance. It is safe for concurrent use.
type Clock struct{ us atomic.Int64 }

// NewClock returns a clock at 2026-01-01 00:00:00 UTC.
func NewClock() *Clock {
	c := &Clock{}
	c.us.Store(start)
	return c
}

// Now returns the time in microseconds since the Unix epoch.
func (c *Clock) Now() int64 { return c.us.Load() }

// Set moves the clock to a time in microseconds since the Unix epoch.
func (c *Clock) Set(us int64) { c.us.Store(us) }

// Advance moves the clock by d, which may be negative, in whole microseconds.
func (c *Clock) Advance(d time.Duration) { c.us.Add(d.Microseconds()) }
