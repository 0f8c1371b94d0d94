package guard_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A store that panics costs permits, like a store that fails. No caller waits for a call that panicked, and leases work
// again once the store does.
func TestLeasesOutlivePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var caught atomic.Int64
		defer panics.Handle(func(string, any, []byte) { caught.Add(1) })()
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		h := limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1}
		for range 200 {
			take(t, l, h)
		}
		f.set(func(n *network) { n.see = func([]limiter.Hit, []limiter.Decision) { panic("boom") } })
		time.Sleep(10 * leaseFor) // renewals and releases panic in the background
		synctest.Wait()
		if caught.Load() == 0 {
			t.Error("no call in the background panicked: the test proves nothing")
		}
		for range 200 { // nobody waits for ever
			panics.Catch("request", func() {
				var out [1]limiter.Decision
				_ = l.Take(t.Context(), []limiter.Hit{h}, out[:])
			})
		}
		f.set(func(n *network) { n.see = nil })
		time.Sleep(time.Minute)
		for range 200 {
			take(t, l, h)
		}
		if settled(l).Permits == 0 {
			t.Error("nothing is on lease after the panics")
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}
