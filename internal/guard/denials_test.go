package guard

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/internal/test/casetest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

func TestMain(m *testing.M) {
	// A client of go-redis that was closed ends within a second.
	casetest.Main(m, 100, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func memory(tb testing.TB, now func() int64) *memstore.Store {
	tb.Helper()
	s, err := memstore.New(memstore.Options{Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func policy(tb interface{ Fatal(args ...any) }, in limiter.Params) *limiter.Policy {
	in.DenyAll = in.Limit == 0 // a test means it
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func believing(store limiter.Store, now func() int64) denialsStore {
	d := caching(store, now)
	d.Believe(true)
	return d
}

// TestDenialsContract: a store with cached denials obeys the contract of stores, but sets Cached.
func TestDenialsContract(t *testing.T) {
	limitertest.Run(t, func(t *testing.T, clock *limitertest.Clock) limiter.Store {
		t.Helper()
		return silent{believing(memory(t, clock.Now), clock.Now)}
	})
}

// silent removes Cached from decisions.
type silent struct{ limiter.Store }

func (s silent) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	err := s.Store.Take(ctx, hits, out)
	for i := range out {
		out[i].Cached = false
	}
	return err
}

// cacheables are limits whose denials are always cached, with all their parameters.
func cacheables(tb interface{ Fatal(args ...any) }) (all []*limiter.Policy) {
	for _, in := range []limiter.Params{
		{Algorithm: limiter.Funnel, Limit: 7, Window: time.Second, Burst: 3},
		{Algorithm: limiter.Funnel, Limit: 3, Window: time.Minute},
		{Algorithm: limiter.TokenBucket, Limit: 5, Window: time.Second, StartsEmpty: true},
		{Algorithm: limiter.TokenBucket, Limit: 5, Window: time.Second, Burst: 9, RefillsAtOnce: true},
		{Algorithm: limiter.SlidingLog, Limit: 4, Window: time.Second},
		{Algorithm: limiter.FixedWindow, Limit: 4, Window: time.Second, ChargeDenied: limiter.ChargeNone},
		{
			Algorithm: limiter.FixedWindow, Limit: 4, Window: time.Second, Align: limiter.AlignFirstHit,
			ChargeDenied: limiter.ChargeNone,
		},
		{Algorithm: limiter.FixedWindow, Limit: 2, Window: time.Hour},
		{Algorithm: limiter.Funnel, DenyAll: true, Window: time.Second},
		{Algorithm: limiter.SlidingWindow, Limit: 4, Window: time.Second},
		{Algorithm: limiter.Funnel, Limit: 4, Window: time.Second, ChargeDenied: limiter.ChargeFull},
		{Algorithm: limiter.LeakyQueue, Limit: 4, Window: time.Second, Burst: 2},
	} {
		all = append(all, policy(tb, in))
	}
	return all
}

// TestDenialsAreExact compares a store with and without cached denials. The decisions are equal for all requests, even
// while other processes refund and the cache learns of it.
func TestDenialsAreExact(t *testing.T) {
	policies := cacheables(t)
	local := uint64(0)
	rapid.Check(t, func(rt *rapid.T) {
		clock := limitertest.NewClock()
		plain, behind := memory(t, clock.Now), memory(t, clock.Now)
		d := believing(behind, clock.Now)
		for range rapid.IntRange(1, 60).Draw(rt, "requests") {
			clock.Advance(time.Duration(rapid.IntRange(0, 400).Draw(rt, "passed")) * time.Millisecond)
			var hits []limiter.Hit
			for i := range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(rt, "hits") {
				k := rapid.IntRange(0, len(policies)-1).Draw(rt, "policy")
				full := policies[k].Params().ChargeDenied == limiter.ChargeFull && policies[k].Algorithm() == limiter.FixedWindow
				h := limiter.Hit{
					Key: fmt.Sprint(k, rapid.IntRange(0, 1).Draw(rt, "key")), Policy: policies[k], Group: i,
					N: rapid.SampledFrom([]int64{1, 1, 1, 0, -1}).Draw(rt, "n"),
					Mode: rapid.SampledFrom([]limiter.Mode{limiter.Enforce, limiter.Enforce, limiter.Shadow, limiter.Quota}).Draw(rt,
						"mode"),
				}
				if full {
					h.N = max(h.N, 0) // what a denied request is not charged here shows when something is refunded
				}
				h.Peek = h.N == 0
				hits = append(hits, h)
			}
			want, got := make([]limiter.Decision, len(hits)), make([]limiter.Decision, len(hits))
			if err := plain.Take(t.Context(), hits, want); err != nil {
				rt.Fatal(err)
			}
			var err error
			answered := d.Answered()
			if through := rapid.IntRange(0, 4).Draw(rt, "through") > 0; through {
				err = d.Take(t.Context(), hits, got)
			} else { // another process
				err = behind.Take(t.Context(), hits, got)
				for _, h := range hits {
					if h.N < 0 {
						d.Forget(h.Key)
					}
				}
			}
			if err != nil {
				rt.Fatal(err)
			}
			for i := range want {
				want[i].Cached = d.Answered() > answered // the store itself knows no denials
			}
			if diff := cmp.Diff(want, got); diff != "" {
				rt.Fatalf("hits %+v (-alone +guarded)\n%s", hits, diff)
			}
		}
		local += d.Answered()
	})
	if local == 0 && !testing.Short() { // a few short histories may all miss
		t.Error("nothing was answered by the guard: the test proves nothing")
	}
}

// Denials of larger costs are cached as well, with the remaining hits of the store's denial.
func TestDenialOfALargerCost(t *testing.T) {
	clock := limitertest.NewClock()
	d := believing(memory(t, clock.Now), clock.Now)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Window: 10 * time.Second})
	ask := func(n int64) limiter.Decision {
		t.Helper()
		var out [1]limiter.Decision
		if err := d.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: n, Peek: n == 0}}, out[:]); err != nil {
			t.Fatal(err)
		}
		return out[0]
	}
	ask(8)
	ask(5)
	clock.Advance(2 * time.Second)
	before := d.Answered()
	want := limiter.Decision{Remaining: 2, RetryAfter: time.Second, ResetAfter: 6 * time.Second, Cached: true}
	if got := ask(5); got != want || d.Answered() != before+1 {
		t.Errorf("5 hits 1 s too early: %+v, want %+v from the guard", got, want)
	}
	if got := ask(4); !got.Allowed || d.Answered() != before+1 {
		t.Errorf("4 hits: %+v, want them to pass", got)
	}
	if got := ask(11); got.RetryAfter != limiter.Never {
		t.Errorf("more than the capacity: %+v", got)
	}
	if got := ask(11); got.RetryAfter != limiter.Never || d.Answered() != before+2 {
		t.Errorf("more than the capacity, again: %+v, want never, from the guard", got)
	}
}

// An end of a request, which is in shadow mode, may not fit. It does not replace the cached denial of its counter.
func TestEndKeepsTheDenial(t *testing.T) {
	clock := limitertest.NewClock()
	d := believing(memory(t, clock.Now), clock.Now)
	starts := limiter.NewFixedWindow(10, time.Hour)
	ends := starts
	starts.ChargeDenied, ends.ChargeDenied = limiter.ChargeNone, limiter.ChargeFull
	start := limiter.Hit{Key: "k", Policy: policy(t, starts), N: 10}
	for i, h := range []limiter.Hit{start, start, {Key: "k", Policy: policy(t, ends), N: 5, Mode: limiter.Shadow}} {
		var out [1]limiter.Decision
		if err := d.Take(t.Context(), []limiter.Hit{h}, out[:]); err != nil || out[0].Allowed != (i == 0) {
			t.Errorf("hit %d: %+v, %v", i, out[0], err)
		}
	}
	if _, cached := d.Cached(start); !cached {
		t.Error("the denial is no longer cached")
	}
}

// A failed refund may have been counted, so the cached denial of its counter is forgotten.
func TestFailedRefundIsForgotten(t *testing.T) {
	clock := limitertest.NewClock()
	d := believing(memory(t, clock.Now), clock.Now)
	p := policy(t, limiter.Params{Algorithm: limiter.SlidingLog, Limit: 1, Window: time.Hour})
	hit := limiter.Hit{Key: "k", Policy: p, N: 1}
	for range 2 { // the second is denied
		if err := d.Take(t.Context(), []limiter.Hit{hit}, make([]limiter.Decision, 1)); err != nil {
			t.Fatal(err)
		}
	}
	fails := take.Of(storeOf(func([]limiter.Hit) error { return limiter.ErrUnavailable })).Behind(d.Denials)
	err := fails.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: -1}}, make([]limiter.Decision, 1))
	if _, cached := d.Cached(hit); cached || err == nil {
		t.Errorf("after a refund that failed with %v: a denial is cached: %t", err, cached)
	}
}

func TestBelieve(t *testing.T) {
	clock := limitertest.NewClock()
	d := caching(memory(t, clock.Now), clock.Now)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	hit := []limiter.Hit{{Key: "k", Policy: p, N: 1}}
	var out [1]limiter.Decision
	other := "other"
	for d.set(other) == d.set("k") {
		other += "!"
	}
	for i, step := range []struct {
		do   func()
		want uint64 // answered in the three requests after it
	}{
		{func() {}, 0},
		{func() { d.Believe(true) }, 2},
		{func() { d.Believe(true) }, 2}, // another connection: what was missed between cannot be learned
		{func() { d.Believe(false) }, 0},
		{func() { d.Believe(false) }, 0},
		{func() { d.Believe(true) }, 2},
		{func() { d.Forget(other) }, 3},
		{func() { d.Forget("k") }, 2},
		{func() { clock.Advance(maxAge - time.Microsecond) }, 3},
		{func() { clock.Advance(time.Microsecond) }, 2},
	} {
		before := d.Answered()
		step.do()
		for range 3 {
			if err := d.Take(t.Context(), hit, out[:]); err != nil {
				t.Fatal(err)
			}
		}
		if got := d.Answered() - before; got != step.want {
			t.Errorf("step %d: %d answered by the guard, want %d", i, got, step.want)
		}
	}
}

// slow is a store whose answers can be delayed.
type slow struct {
	limiter.Store
	decided chan struct{} // receives when the store has decided
	answer  chan struct{} // lets the answer go
}

func (s *slow) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	err := s.Store.Take(ctx, hits, out)
	if s.decided != nil {
		s.decided <- struct{}{}
		<-s.answer
	}
	return err
}

// A denial that arrives after a later refund is not cached.
func TestDenialOlderThanARefund(t *testing.T) {
	clock := limitertest.NewClock()
	store := memory(t, clock.Now)
	s := &slow{Store: store}
	d := believing(s, clock.Now)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	take := func(by limiter.Store, n int64) limiter.Decision {
		var out [1]limiter.Decision
		if err := by.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: n, Peek: n == 0}}, out[:]); err != nil {
			t.Error(err)
		}
		return out[0]
	}
	take(store, 1)
	s.decided, s.answer = make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if d := take(d, 1); d.Allowed {
			t.Error("a second hit passed")
		}
	})
	<-s.decided
	take(store, -1)
	d.Forget("k")
	close(s.answer)
	wg.Wait()
	s.decided = nil
	if got := take(d, 1); !got.Allowed {
		t.Errorf("after the refund: %+v, want it to pass", got)
	}
}

// byModule is the route of hits that the redis-cell module decides.
type byModule struct{}

func (byModule) UsesRedisCell() bool { return true }

// A cached denial is valid only for its store and engine. The same key in another store is queried there.
func TestDenialsAreOfOneRoute(t *testing.T) {
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	for name, c := range map[string]struct {
		denied, asked any
		cached        bool
	}{
		"the same store":    {placed{store: "a"}, placed{store: "a"}, true},
		"another store":     {placed{store: "a"}, nil, false},
		"by the module now": {nil, byModule{}, false},
		"by the module":     {byModule{}, byModule{}, false},
	} {
		clock := limitertest.NewClock()
		d := believing(memory(t, clock.Now), clock.Now)
		hit := []limiter.Hit{{Key: "k", Policy: p, N: 1, Route: c.denied}}
		for range 2 { // the second is denied
			if err := d.Take(t.Context(), hit, make([]limiter.Decision, 1)); err != nil {
				t.Fatal(err)
			}
		}
		hit[0].Route = c.asked
		if _, cached := d.Cached(hit[0]); cached != c.cached {
			t.Errorf("%s: cached %t, want %t", name, cached, c.cached)
		}
	}
}
