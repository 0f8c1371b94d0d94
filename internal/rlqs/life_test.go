package rlqs

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Everything may be called at any time.
func TestConcurrently(t *testing.T) {
	p := perSecond(t, limiter.FixedWindow, 1000)
	f := newFleet(t, func(_ string, id BucketID) Target {
		return Target{Hits: []limiter.Hit{{Key: "all", Policy: p}, {Key: string(id), Policy: p}}[:1+len(id)%2]}
	}, 1)
	defer f.close()
	k := f.keeper
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s := k.Open([]string{"", "a"}[n%2], "shop")
				for j := range 20 {
					s.Report([]Usage{ //nolint:contextcheck // the log does not use the context
						{ID: BucketID("abcdefgh"[:1+(i+j)%8]), Allowed: uint64(j), Elapsed: time.Second},
						{ID: "x", Denied: math.MaxUint64, Allowed: math.MaxUint64, Elapsed: -1},
					})
					time.Sleep(time.Millisecond)
				}
				k.Changed()
				s.Close()
			}
		})
	}
	wait.Go(func() {
		for ctx.Err() == nil {
			if st := k.Stats(); st.Buckets > 100_000 {
				t.Error(st)
			}
			time.Sleep(time.Millisecond)
		}
	})
	time.Sleep(300 * time.Millisecond)
	k.Stop(t.Context())
	cancel()
	wait.Wait()
}

// What an Envoy claims to have seen moves no account out of its bounds, and takes no more from others than a demand
// that is as high as theirs.
func TestHugeNumbers(t *testing.T) {
	for _, a := range algorithms {
		inVirtualTime(t, one(perSecond(t, a, 1000)), 1, func(t *testing.T, f *fleet) {
			f.envoys[0].demand["b"] = steady(400)
			f.play(12 * time.Second)
			hostile := f.keeper.Open("", "shop")
			for i, u := range []Usage{
				{},
				{Allowed: math.MaxUint64, Denied: math.MaxUint64, Elapsed: math.MaxInt64},
				{Denied: math.MaxUint64, Elapsed: -time.Hour},
				{Denied: math.MaxUint64, Elapsed: math.MinInt64},
				{Denied: 1 << 63},
			} {
				u.ID = "b"
				for range 1 + i*10 {
					hostile.Report([]Usage{u, u})
				}
				f.play(2 * time.Second)
				f.keeper.mu.Lock()
				f.keeper.eachClient(func(c *client) {
					for name, v := range map[string]float64{
						"want": c.want, "share": c.share, "rate": c.rate, "burst": c.burst, "could": c.could, "debt": c.book.debt,
						"ahead": c.book.ahead, "to return": c.book.back,
					} {
						isBad := math.IsNaN(v) || math.Abs(v) > 1e20 || v < 0 && name != "ahead"
						if isBad || name == "debt" && v > 4000 {
							t.Errorf("%s, report %d: %s is %g", a, i, name, v)
						}
					}
				})
				f.keeper.mu.Unlock()
			}
			for range 10 { // its debt is paid by its own rate
				hostile.Report([]Usage{{ID: "b", Denied: math.MaxUint64}})
				f.play(time.Second)
			}
			passed := f.passed
			for range 10 {
				hostile.Report([]Usage{{ID: "b", Denied: math.MaxUint64}})
				f.play(time.Second)
			}
			if n := f.passed - passed; n < 3500 {
				t.Errorf("%s: %d of 4,000 passed beside an Envoy that wants everything", a, n)
			}
		})
	}
}

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

func perSecond(tb testing.TB, a limiter.Algorithm, n int64) *limiter.Policy {
	tb.Helper()
	window := shortest(a)
	return policyOf(tb, limiter.Params{
		Algorithm: a, Limit: n * int64(window/time.Second), Window: window, ChargeDenied: limiter.ChargeNone,
	})
}

func inVirtualTime(t *testing.T, resolve func(string, BucketID) Target, envoys int, do func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, resolve, envoys)
		defer f.close()
		do(t, f)
	})
}
