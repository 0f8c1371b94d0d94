package guard_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Many requests of a hot key cause one call to the store, and the store counts exactly the admitted hits.
func TestHotKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		const requests = 20_000
		for range requests {
			if d := take(t, l, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})[0]; !d.Allowed {
				t.Fatal("denied far below the limit")
			}
			time.Sleep(100 * time.Microsecond)
		}
		if calls := f.calls.Load(); calls > requests/50 {
			t.Errorf("%d requests asked the store %d times, want at most once in 50", requests, calls)
		}
		s := settled(l)
		if n := charged(t, f, "k", p); int64(s.Answers) < requests*49/50 || s.Permits < 0 || n != requests+s.Permits {
			t.Errorf("%+v, and %d charged after %d requests", s, n, requests)
		}
		time.Sleep(4 * leaseFor)
		if s := settled(l); s.Permits != 0 || s.Keys != 0 || s.Lost != 0 || s.Acquired-s.Released >= requests {
			t.Errorf("after the traffic: %+v, want nothing on lease or lost", s)
		}
		if n := charged(t, f, "k", p); n != requests {
			t.Errorf("%d charged, want %d", n, requests)
		}
	})
}

// batched counts batches of calls.
type batched struct {
	*far
	batches atomic.Int64
}

func (b *batched) TakeAll(calls []*storekit.Call) {
	b.batches.Add(1)
	for _, c := range calls {
		c.Err = b.Take(c.Ctx, c.Hits, c.Out)
	}
}

// Many hot keys share the batches that acquire permits for them.
func TestHotKeysShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &batched{far: newFar(t)}
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		const requests = 60_000 // 300 a second for each
		var before int64
		for i := range 2 * requests {
			if i == requests { // they have become hot
				before = f.batches.Load()
			}
			take(t, l, limiter.Hit{Key: keys[i*37%len(keys)], Policy: p, Route: onLease, N: 1})
			time.Sleep(33 * time.Microsecond)
		}
		t.Logf("%d batches at first, %d then", before, f.batches.Load()-before)
		if n := f.batches.Load() - before; n > requests/50 {
			t.Errorf("%d requests made %d batches, want at most once in 50", requests, n)
		}
	})
}

// A key that is not hot causes the same calls as a strict limit.
func TestColdKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 1000)
		f.set(func(n *network) {
			n.see = func(hits []limiter.Hit, _ []limiter.Decision) {
				if len(hits) != 1 || hits[0].N != 1 {
					t.Errorf("the store was asked %v, want the one hit", hits)
				}
			}
		})
		for range 500 {
			take(t, l, limiter.Hit{Key: "k", Policy: p, Route: onLease, N: 1})
			time.Sleep(leaseFor / 2)
		}
		if calls := f.calls.Load(); calls != 500 || settled(l).Keys != 0 {
			t.Errorf("%d calls, %+v; want one for each of 500 requests, and no lease", calls, settled(l))
		}
	})
}

// Limits that are not leased go to the store unchanged, however many requests they get.
func TestOthersAreStrict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		strict, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 100_000, Window: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		small := hourly(t, 9)
		p := hourly(t, 100_000)
		f.set(func(n *network) {
			n.see = func(hits []limiter.Hit, _ []limiter.Decision) {
				if len(hits) != 1 {
					t.Errorf("the store was asked %v, want the one hit", hits)
				}
			}
		})
		for _, h := range []limiter.Hit{
			{Key: "strict", Policy: strict, N: 1},
			{Key: "small", Policy: small, Route: onLease, N: 1},
			{Key: "look", Policy: p, Route: onLease, Look: true},
			{Key: "back", Policy: p, Route: onLease, N: -1},
			{Key: "shadow", Policy: p, Route: onLease, N: 1, Mode: limiter.Shadow},
			{Key: "quota", Policy: p, Route: onLease, N: 1, Mode: limiter.Quota},
		} {
			before := f.calls.Load()
			for range 100 {
				take(t, l, h)
			}
			if calls := f.calls.Load() - before; calls != 100 {
				t.Errorf("%s: %d calls for 100 requests", h.Key, calls)
			}
		}
	})
}

// Keys beyond MaxLeases are strict.
func TestManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := leased(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1000, Window: time.Hour})
		for i := range guard.MaxLeases * 5 / 4 {
			for range 4 {
				take(t, l, limiter.Hit{Key: strconv.Itoa(i), Policy: p, Route: onLease, N: 1})
			}
		}
		if s := settled(l); s.Keys > guard.MaxLeases || s.Keys < guard.MaxLeases*9/10 {
			t.Errorf("%d keys are on lease, want about but at most %d", s.Keys, guard.MaxLeases)
		}
	})
}
