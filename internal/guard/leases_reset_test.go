package guard_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// After a reset of their counter, permits on lease are lost: they admit no hits, and are not released to the new
// counter.
func TestResetEndsPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		ask := func() { take(t, l, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1}) }
		for range 500 {
			ask()
			time.Sleep(200 * time.Microsecond)
		}
		synctest.Wait()
		before, leased := l.Permits("k")
		if before < 10 || !leased {
			t.Fatalf("%d permits on lease, %t: this test shows nothing", before, leased)
		}
		if store, ok := f.Store.(*memstore.Store); !ok || !store.Reset("k") {
			t.Fatal("nothing to reset")
		}
		l.Reset("k")
		if s := l.Stats(); s.Permits != 0 || s.Lost != uint64(before) {
			t.Errorf("after Reset: %+v, want %d permits lost and none on lease", s, before)
		}
		for range 20 { // the store counts them all
			ask()
		}
		synctest.Wait()
		permits, _ := l.Permits("k")
		if n := charged(t, f, "k", p); n != 20+permits {
			t.Errorf("%d charged after 20 requests, with %d permits on lease", n, permits)
		}
		time.Sleep(4 * leaseFor) // all is released
		synctest.Wait()
		if n := charged(t, f, "k", p); n != 20 {
			t.Errorf("%d charged in the end, want 20: what was on lease is released to the new counter", n)
		}
		if _, leased := l.Permits("k"); leased {
			t.Error("the key is still hot")
		}
		l.Reset("k") // changes nothing
	})
}
