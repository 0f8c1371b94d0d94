// Package limitertest holds what every limiter.Store must do: Run is the contract, Histories the comparison with
// storekit.Decide over random histories, Linearizable that over concurrent ones. That storekit.Decide is right is for
// the tests of package limiter, so a store needs Run and Histories. A store passes them in a test of its own:
//
//	limitertest.Run(t, func(t *testing.T, clock *limitertest.Clock) limiter.Store {
//		s, err := memstore.New(memstore.Options{Now: clock.Now})
//		...
//	})
//
// Virtual time stands still or jumps while real time passes: a store that collects garbage by another clock
// than the one it is given must keep state for a minute of that clock whatever its virtual time to live.
//
// Not checked here, since only the store's own tests can: what becomes of state that no longer matters, of a
// full store and of a lost connection.
package limitertest

import (
	"sync/atomic"
	"time"
)

// start is 2026-01-01 00:00:00 UTC, where every window of whole hours begins, in microseconds.
const start = 1_767_225_600_000_000

// Clock is virtual time in microseconds since the Unix epoch. It moves only when told to, and it may be moved
// and read concurrently.
type Clock struct{ us atomic.Int64 }

// NewClock is a clock that stands at 2026-01-01 00:00:00 UTC.
func NewClock() *Clock {
	c := &Clock{}
	c.us.Store(start)
	return c
}

// Now is the time, in microseconds since the Unix epoch.
func (c *Clock) Now() int64 { return c.us.Load() }

// Set moves the clock to a time in microseconds since the Unix epoch.
func (c *Clock) Set(us int64) { c.us.Store(us) }

// Advance moves the clock by d, which may be negative, in whole microseconds.
func (c *Clock) Advance(d time.Duration) { c.us.Add(d.Microseconds()) }
