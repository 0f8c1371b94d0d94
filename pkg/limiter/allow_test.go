package limiter_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// newLimiter returns a Limiter over a memory store of its own, on the clock of the test's bubble.
func newLimiter(t *testing.T, params ...limiter.Params) *limiter.Limiter {
	t.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return casetest.Limiter(t, store, params...)
}

var (
	threePerSecond = limiter.Params{Algorithm: limiter.Funnel, Limit: 3, Window: time.Second}
	fourPerMinute  = limiter.Params{Algorithm: limiter.SlidingLog, Limit: 4, Window: time.Minute}
)

func TestAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, threePerSecond)
		for i, want := range []bool{true, true, true, false} {
			d, err := l.Allow(t.Context(), "ann")
			if err != nil || d.Allowed != want {
				t.Fatalf("request %d: %+v, %v; want allowed %v", i, d, err, want)
			}
		}
		if d, err := l.Allow(t.Context(), "bob"); err != nil || !d.Allowed {
			t.Errorf("another key shares the counter: %+v, %v", d, err)
		}
		if d, err := l.AllowN(t.Context(), "eve", 4); err != nil || d.Allowed || d.RetryAfter != limiter.Never {
			t.Errorf("4 hits fit into 3: %+v, %v", d, err)
		}
	})
}

// Two policies are charged together or not at all, and the Decision is the one that matters most.
func TestAllowBySeveralPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, threePerSecond, fourPerMinute)
		allow := func(n int64) limiter.Decision {
			t.Helper()
			d, err := l.AllowN(t.Context(), "ann", n)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		if d := allow(3); !d.Allowed || d.Remaining != 0 {
			t.Errorf("the first 3: %+v, want allowed and nothing left of 3 a second", d)
		}
		time.Sleep(time.Second)
		if d := allow(1); !d.Allowed || d.Remaining != 0 {
			t.Errorf("the fourth: %+v, want allowed and nothing left of 4 a minute", d)
		}
		if d := allow(1); d.Allowed || d.RetryAfter != 59*time.Second {
			t.Errorf("the fifth: %+v, want denied for 59s by 4 a minute", d)
		}
		pacing := limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: time.Second, Burst: 10}
		strict := l
		l = newLimiter(t, fourPerMinute, pacing)
		if first, second := allow(1), allow(1); first.Wait != 0 || second.Wait != time.Second || second.Remaining != 2 {
			t.Errorf("%+v, %+v; want the second, one of 4 a minute, to wait for the queue of one a second", first, second)
		}
		l = strict
		each, err := l.AllowEach(t.Context(), "ann", 1)
		if err != nil || len(each) != 2 || !each[0].Allowed || each[0].Remaining != 2 || each[1].Allowed {
			t.Errorf("%+v, %v; want 3 a second not charged by what 4 a minute denied", each, err)
		}
	})
}

func TestLimitersOfOtherKindsCountApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		for _, p := range []limiter.Params{
			threePerSecond, fourPerMinute,
			{Algorithm: limiter.Funnel, Limit: 3, Window: time.Minute},
			{Algorithm: limiter.SlidingWindow, Limit: 3, Window: time.Second},
		} {
			d, err := casetest.Limiter(t, store, p).AllowN(t.Context(), "ann", p.Limit)
			if err != nil || !d.Allowed {
				t.Errorf("%+v: %+v, %v; want a counter of its own", p, d, err)
			}
		}
	})
}

// TestPoliciesHaveCountersOfTheirOwn: neither Limiters with different names nor the policies of one Limiter share one.
func TestPoliciesHaveCountersOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		for _, name := range []string{"login", "search", "login", "search"} {
			l, err := limiter.New(store, name, limiter.NewFunnel(1, time.Minute, 4), limiter.NewFunnel(2, time.Minute, 6))
			if err != nil {
				t.Fatal(err)
			}
			all, err := l.AllowEach(t.Context(), "ann", 2)
			if err != nil || all[1].Remaining != all[0].Remaining+2 {
				t.Errorf("%s: %+v, %v; want two counters, of which the second has 2 more left", name, all, err)
			}
		}
	})
}

func TestNewRefuses(t *testing.T) {
	funnel := limiter.NewFunnel(1, time.Minute, 0)
	for want, f := range map[string]func() (*limiter.Limiter, error){
		"limiter a, policy 2: limit: is missing: set the number of hits per window, at least 1, or DenyAll " +
			"to deny all": func() (*limiter.Limiter, error) {
			return limiter.New(nil, "a", funnel, limiter.Params{Algorithm: limiter.Funnel, Window: time.Minute})
		},
		`limiter: the name must be a text without |, { and }, such as login; got ""`: func() (*limiter.Limiter, error) {
			return limiter.New(nil, "", funnel)
		},
		`limiter: the name must be a text without |, { and }, such as login; got "a|b"`: func() (*limiter.Limiter, error) {
			return limiter.New(nil, "a|b", funnel)
		},
	} {
		if l, err := f(); err == nil || err.Error() != want {
			t.Errorf("%v, %v; want %s", l, err, want)
		}
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, threePerSecond)
		start := time.Now()
		var callers sync.WaitGroup
		for range 9 {
			callers.Go(func() {
				if err := l.Wait(t.Context(), "ann"); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if took := time.Since(start); took < 2*time.Second || took > 2*time.Second+10*time.Millisecond {
			t.Errorf("9 callers of 3 a second have passed after %s, want 2s", took)
		}
	})
}

func TestWaitOfDelayedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 10, Window: time.Second})
		start := time.Now()
		for range 5 {
			if err := l.Wait(t.Context(), "ann"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 400*time.Millisecond {
			t.Errorf("the fifth of 10 a second has gone on after %s, want 400ms", took)
		}
		slower := newLimiter(t, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: time.Minute, Burst: 9},
			limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: time.Second, Burst: 2})
		for i, want := range []time.Duration{0, time.Minute} {
			if d, err := slower.Allow(t.Context(), "ann"); err != nil || d.Wait != want {
				t.Errorf("request %d of two queues: %+v, %v, want the longer wait, %s", i, d, err, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := l.Wait(ctx, "ann"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 400*time.Millisecond {
			t.Errorf("a delay beyond the deadline: %v after %s, want an error at once", err, time.Since(start))
		}
	})
}

func TestWaitGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, threePerSecond)
		if err := l.WaitN(t.Context(), "ann", 4); !errors.Is(err, limiter.ErrNeverFits) {
			t.Errorf("4 hits of 3: %v, want ErrNeverFits", err)
		}
		if err := l.WaitN(t.Context(), "ann", 3); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := l.Wait(ctx, "ann")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "needs a wait of 333.334ms") {
			t.Errorf("%v, want that the wait is longer than the deadline", err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("a wait that cannot succeed took %s", took)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		if err := l.Wait(ctx, "ann"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Errorf("a cancelled wait took %s, want 50ms", took)
		}
	})
}

// hasty is a store that denies every hit with a RetryAfter of 0.
type hasty struct{ asked int }

func (s *hasty) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	if s.asked++; s.asked > 1000 {
		return limiter.ErrUnavailable
	}
	return nil
}

// Wait pauses between its attempts, whatever RetryAfter a store returns.
func TestWaitPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hasty{}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := casetest.Limiter(t, store, threePerSecond).Wait(ctx, "ann")
		if !errors.Is(err, context.DeadlineExceeded) || store.asked > 101 {
			t.Errorf("%v after %d questions, want one a millisecond", err, store.asked)
		}
	})
}

// A mistake of the caller is an error, and neither a panic nor a request that passes.
func TestMistakesAreErrors(t *testing.T) {
	for name, l := range map[string]*limiter.Limiter{
		"cost of zero":   newLimiter(t, threePerSecond),
		"cost too large": newLimiter(t, threePerSecond),
	} {
		n := map[string]int64{"cost too large": limiter.MaxHits + 1}[name]
		if d, err := l.AllowN(t.Context(), "ann", n); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%s: %+v, %v; want ErrInvalid", name, d, err)
		}
	}
}

// Requests in flight are released; what another policy charged stays charged, until it is refunded.
func TestReleaseAndRefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute},
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 3, Window: time.Hour, ChargeDenied: limiter.ChargeNone})
		want := func(what string, inFlight, hourly bool) {
			t.Helper()
			each, err := l.AllowEach(t.Context(), "ann", 1)
			if err != nil || each[0].Allowed != inFlight || each[1].Allowed != hourly {
				t.Fatalf("%s: %+v, %v; want %v and %v", what, each, err, inFlight, hourly)
			}
		}
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx := t.Context()
		want("first", true, true)
		want("while the first is in flight", false, true)
		for range 2 {
			do(l.Release(ctx, "ann", 1))
			want("after a release", true, true)
		}
		do(l.Release(ctx, "ann", 1))
		want("the fourth of the hour", true, false)
		do(l.Refund(ctx, "ann", 1))
		want("after a refund", true, true)
		if err := l.Release(t.Context(), "ann", 0); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("a release of nothing: %v, want ErrInvalid", err)
		}
	})
}

func TestTightest(t *testing.T) {
	allowed := func(remaining int64) limiter.Decision { return limiter.Decision{Allowed: true, Remaining: remaining} }
	denied := func(wait time.Duration) limiter.Decision { return limiter.Decision{RetryAfter: wait} }
	for _, tt := range []struct {
		all  []limiter.Decision
		want int
	}{
		{[]limiter.Decision{allowed(3)}, 0},
		{[]limiter.Decision{allowed(3), allowed(2), allowed(2)}, 1},
		{[]limiter.Decision{allowed(0), denied(time.Second)}, 1},
		{[]limiter.Decision{denied(time.Second), denied(time.Minute), allowed(0)}, 1},
		{[]limiter.Decision{denied(limiter.Never), denied(time.Minute)}, 0},
		{[]limiter.Decision{{Allowed: true, ResetAfter: 4}, {Allowed: true, ResetAfter: 5}}, 1},
	} {
		if got := limiter.Tightest(tt.all); got != tt.want {
			t.Errorf("Tightest(%+v) = %d, want %d", tt.all, got, tt.want)
		}
	}
}

// routes is a store that sees the routes of hits.
type routes struct{ seen []any }

func (r *routes) Take(_ context.Context, hits []limiter.Hit, _ []limiter.Decision) error {
	for i := range hits {
		r.seen = append(r.seen, hits[i].Route)
	}
	return nil
}

// WithRoute changes neither the Limiter that it is called on, nor anything else of the new one.
func TestWithRoute(t *testing.T) {
	var store routes
	l := casetest.Limiter(t, &store, threePerSecond, fourPerMinute)
	for _, by := range []*limiter.Limiter{l.WithRoute("there"), l} {
		if err := errors.Join(second(by.Allow(t.Context(), "ann")), by.Refund(t.Context(), "ann", 1)); err != nil {
			t.Fatal(err)
		}
	}
	want := []any{"there", "there", "there", "there", nil, nil, nil, nil}
	if !slices.Equal(store.seen, want) {
		t.Errorf("the hits' routes are %v, want %v", store.seen, want)
	}
}

func second[T any](_ T, err error) error { return err }
