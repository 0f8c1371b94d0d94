package guard_test

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Leases leave a request to the store unless permits cover all its hits.
func TestAtOnceRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		hit := limiter.Hit{Key: "a", Policy: p, Route: onLease, N: 1}
		for range 100 {
			take(t, l, hit)
		}
		held, calls := settled(l), f.calls.Load()
		strict, look, shadow, byItself, cold, many, other := hit, hit, hit, hit, hit, hit, hit
		strict.Route, shadow.Mode, byItself.ByItself, cold.Key = nil, limiter.Shadow, true, "b"
		look.Look, look.N = true, 0
		many.N, other.Policy = held.Permits+1, hourly(t, 100_000)
		for name, hits := range map[string][]limiter.Hit{
			"no hits": nil, "strict": {strict}, "look": {look}, "shadow": {shadow}, "cold": {cold},
			"more than there are":        {many},
			"two that are more together": {hit, {Key: "a", Policy: p, Route: onLease, N: held.Permits}},
			"another policy":             {other}, "covered and cold": {hit, cold}, "covered and strict": {hit, strict},
			"covered and by itself": {hit, byItself},
		} {
			if l.TrySpend(hits, make([]limiter.Decision, len(hits))) {
				t.Errorf("%s: decided at once", name)
			}
			if s := settled(l); s != held || f.calls.Load() != calls {
				t.Errorf("%s: %+v and %d calls, before %+v and %d", name, s, f.calls.Load(), held, calls)
			}
		}
		out := make([]limiter.Decision, 2)
		if !l.TrySpend([]limiter.Hit{hit, hit}, out) || !out[0].Allowed || out[1].Remaining != out[0].Remaining-1 {
			t.Errorf("two hits that are covered: %+v", out)
		}
		want := held
		want.Permits, want.Answers = held.Permits-2, held.Answers+1
		if s := settled(l); s != want {
			t.Errorf("%+v, want %+v", s, want)
		}
		time.Sleep(10 * leaseFor)
		if l.TrySpend([]limiter.Hit{hit}, out) {
			t.Error("decided by permits that were returned")
		}
	})
}

// While Close waits for a call, leases decide no requests, because their permits are about to be released.
func TestAtOnceWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		hit := limiter.Hit{Key: "a", Policy: p, Route: onLease, N: 1}
		other := hit
		other.Key = "b"
		out := make([]limiter.Decision, 1)
		heat(t, l, 100, hit, other)
		f.set(func(n *network) { n.delay = leaseFor / 10 })
		var wg sync.WaitGroup
		wg.Go(func() {
			for l.TrySpend([]limiter.Hit{other}, out) {
				_ = out // until b has no permits left
			}
			take(t, l, other) // acquires more, and Close waits for it
		})
		synctest.Wait()
		wg.Go(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if held, _ := l.Permits("a"); held == 0 || l.TrySpend([]limiter.Hit{hit}, out) {
			t.Errorf("%d permits are held while Close waits, and a request is decided by them", held)
		}
		wg.Wait()
		if n := charged(t, f, "a", p); n != 100 {
			t.Errorf("%d charged, want the 100 that passed", n)
		}
	})
}

// Concurrent callers never spend a permit twice.
func TestPermitsOfManyCallers(t *testing.T) {
	f := newFar(t)
	l := newLeases(t, f)
	p := hourly(t, 100_000)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				hits := []limiter.Hit{
					{Key: "a", Policy: p, Route: onLease, N: 1},
					{Key: strconv.Itoa((g + i) % 4), Policy: p, Route: onLease, N: 1},
				}
				take(t, l, hits[:1+i%2]...)
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for k := range 4 {
		sum += charged(t, f, strconv.Itoa(k), p)
	}
	if a, lost := charged(t, f, "a", p), int64(l.Stats().Lost); a+sum != 6000+lost {
		t.Errorf("%d and %d charged, %d lost, want 6000 beside what is lost", a, sum, lost)
	}
	if n := l.Stats().Permits; n != 0 {
		t.Errorf("%d permits after Close", n)
	}
}
