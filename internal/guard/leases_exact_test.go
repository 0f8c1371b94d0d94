package guard_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var leasable = []limiter.Algorithm{
	limiter.Funnel, limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindow, limiter.SlidingLog,
}

// While time does not advance, one process decides requests of one hit exactly as the store alone: its permits on lease
// cause no denials.
func TestAloneAsStrict(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		policies, history := drawHistory(t, rt)
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = unlikeStrict(t, policies, history) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// drawHistory draws three limits, and requests of one hit on them.
func drawHistory(tb testing.TB, rt *rapid.T) (policies []*limiter.Policy, history []limiter.Hit) {
	tb.Helper()
	for i := range 3 {
		policies = append(policies, leased(tb, limiter.Params{
			Algorithm: rapid.SampledFrom(leasable).Draw(rt, "algorithm"),
			Limit:     rapid.Int64Range(1, 200).Draw(rt, "limit"), Window: time.Duration(i+1) * time.Hour,
		}))
	}
	hit := rapid.Custom(func(rt *rapid.T) limiter.Hit {
		k := rapid.IntRange(0, 2).Draw(rt, "key")
		return limiter.Hit{
			Key: strconv.Itoa(k), Policy: policies[k], Route: onLease, N: 1,
		}
	})
	return policies, rapid.SliceOfN(hit, 1, 300).Draw(rt, "requests")
}

// unlikeStrict plays the requests, and returns those that leases decide differently from the store alone.
func unlikeStrict(t *testing.T, policies []*limiter.Policy, history []limiter.Hit) string {
	t.Helper()
	f, strict := newFar(t), newFar(t)
	l := newLeases(t, f)
	for at, hit := range history {
		synctest.Wait() // what is acquired and released goes its own way
		if got, want := take(t, l, hit)[0], take(t, strict, hit)[0]; got.Allowed != want.Allowed {
			return fmt.Sprintf("request %d of key %s: %+v, with strict %+v", at, hit.Key, got, want)
		}
	}
	if err := l.Close(); err != nil {
		return err.Error()
	}
	for k, p := range policies {
		if got, want := charged(t, f, strconv.Itoa(k), p), charged(t, strict, strconv.Itoa(k), p); got != want {
			return fmt.Sprintf("key %d: %d charged, with strict %d", k, got, want)
		}
	}
	return ""
}

// At most a tenth of a hot key's capacity is on lease, even while the store decides the other limits of a request. Near
// the limit it is less.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p, other := leased(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1000, Window: time.Second}), hourly(t, 9)
		most := int64(0)
		f.set(func(n *network) {
			n.delay = time.Millisecond
			n.see = func(hits []limiter.Hit, out []limiter.Decision) {
				most = max(most, l.Stats().Permits)
				for i, h := range hits {
					if h.Mode == limiter.Shadow && out[i].Allowed && 2*h.N > out[i].Remaining {
						t.Errorf("%d are taken ahead, and %d remain", h.N, out[i].Remaining)
					}
				}
			}
		})
		var wg sync.WaitGroup
		for i := range 6000 {
			hits := []limiter.Hit{{Key: "k", Policy: p, Route: onLease, N: 1}}
			if i%3 == 0 {
				hits = append(hits, limiter.Hit{Key: "other", Policy: other, Route: onLease, N: 1})
			}
			wg.Go(func() { take(t, l, hits...) })
			time.Sleep(time.Duration(i%2000) * time.Microsecond) // above the limit and below it
		}
		wg.Wait()
		f.between(func() {
			if share := p.Capacity() / guard.LeaseShare; most > share || most < share/2 {
				t.Errorf("%d were on lease, want at most %d, and not much less", most, share)
			}
		})
	})
}
