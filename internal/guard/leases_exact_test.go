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

// While time stands still, one process decides exactly as strict, whatever is asked: nobody is denied for permits
// that lie here, and a request is charged as a whole or not at all.
func TestAloneAsStrict(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		policies, history := drawHistory(t, rt)
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = unlikeStrict(t, policies, history, itself) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// drawHistory draws three limits, and requests with hits on them.
func drawHistory(tb testing.TB, rt *rapid.T) (policies []*limiter.Policy, history [][]limiter.Hit) {
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
			Key: strconv.Itoa(k), Policy: policies[k], Route: onLease,
			N: rapid.Int64Range(1, 3).Draw(rt, "n"),
		}
	})
	return policies, rapid.SliceOfN(rapid.SliceOfN(hit, 1, 4), 1, 100).Draw(rt, "requests")
}

// itself is leases that are asked by Take alone.
func itself(l *guard.Leases) limiter.Store { return l }

// unlikeStrict plays the requests and says where they are decided otherwise than by the store alone. asked is how the
// leases are asked.
func unlikeStrict(
	t *testing.T, policies []*limiter.Policy, history [][]limiter.Hit, asked func(*guard.Leases) limiter.Store,
) string {
	t.Helper()
	f, strict := newFar(t), newFar(t)
	l := newLeases(t, f)
	s := asked(l)
	for at, hits := range history {
		synctest.Wait() // what a denied request releases goes its own way
		got, want := take(t, s, hits...), take(t, strict, hits...)
		for i := range hits {
			if got[i].Allowed != want[i].Allowed {
				return fmt.Sprintf("request %d, hit %d of %v: %+v, with strict %+v", at, i, hits, got, want)
			}
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

// Where a request of two keys is denied for one of them, the other's permits are taken or left, and not forgotten.
func TestDeniedBeside(t *testing.T) {
	a, b := hourly(t, 10), hourly(t, 1)
	hit := func(key string, p *limiter.Policy, n int64) limiter.Hit {
		return limiter.Hit{Key: key, Policy: p, Route: onLease, N: n, Look: n == 0}
	}
	for spent := range 10 {
		for n := range int64(10) {
			history := [][]limiter.Hit{{hit("1", b, 1)}}
			for range spent {
				history = append(history, []limiter.Hit{hit("0", a, 1)})
			}
			history = append(history, []limiter.Hit{hit("0", a, n+1), hit("1", b, 1)})
			synctest.Test(t, func(t *testing.T) {
				if wrong := unlikeStrict(t, []*limiter.Policy{a, b}, history, itself); wrong != "" {
					t.Errorf("%d spent of 10, and %d asked beside another that denies: %s", spent, n+1, wrong)
				}
			})
		}
	}
}

// However hot a key is, a tenth of its capacity is the most that is on lease, also while the store decides the rest
// of a request; and near the limit it is less.
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

// Permits of a rule that changed are released, not spent, in the call that asks under the new rule.
func TestRuleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		before, after := hourly(t, 100_000), hourly(t, 250)
		for range 200 {
			take(t, l, limiter.Hit{Key: "k", Policy: before, Route: onLease, N: 1})
		}
		if settled(l).Permits < 51 {
			t.Fatalf("%+v: too little is held to tell", settled(l))
		}
		calls, admitted := f.calls.Load(), 0
		for range 100 {
			if take(t, l, limiter.Hit{Key: "k", Policy: after, Route: onLease, N: 1})[0].Allowed {
				admitted++
			}
			synctest.Wait() // what is more than a fair part comes back by a call of its own, and is nobody's meanwhile
			if n := f.calls.Load() - calls; admitted == 1 && n > 2 {
				t.Errorf("%d calls for the first request under the new rule", n)
			}
		}
		if admitted != 50 {
			t.Errorf("%d admitted under the new rule, want the 50 that were left", admitted)
		}
	})
}

// A request that is denied leaves what covered it to others; one that passes has spent it.
func TestCovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p, few := hourly(t, 100_000), hourly(t, 5)
		a := limiter.Hit{Key: "a", Policy: p, Route: onLease, N: 1}
		for range 100 {
			take(t, l, a)
		}
		held := settled(l).Permits
		f.set(func(n *network) {
			n.see = func(hits []limiter.Hit, _ []limiter.Decision) {
				for _, h := range hits {
					if h.Key == "a" {
						t.Errorf("the store is asked %v: a is covered", hits)
					}
				}
			}
		})
		for i := range int64(10) {
			out := take(t, l, a, limiter.Hit{Key: "b", Policy: few, Route: onLease, N: 1, Group: 1})
			if !out[0].Allowed || out[1].Allowed != (i < 5) {
				t.Errorf("request %d: %v", i, out)
			}
			if got, want := settled(l).Permits, held-min(i+1, 5); got != want {
				t.Errorf("%d on lease after request %d, want %d", got, i, want)
			}
		}
		f.set(func(n *network) { n.see = nil })
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if n := charged(t, f, "a", p); n != 105 {
			t.Errorf("%d charged, want the 105 that passed", n)
		}
	})
}

// A cover that comes back after its lease has ended is released, not spent.
func TestCoverComesBackLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p, few := hourly(t, 100_000), hourly(t, 1)
		a := limiter.Hit{Key: "a", Policy: p, Route: onLease, N: 1}
		for range 100 {
			take(t, l, a)
		}
		take(t, l, limiter.Hit{Key: "b", Policy: few, Route: onLease, N: 1})
		f.set(func(n *network) { n.delay = 2 * leaseFor })
		if out := take(t, l, a, limiter.Hit{Key: "b", Policy: few, Route: onLease, N: 1, Group: 1}); out[1].Allowed {
			t.Error("b has none left")
		}
		f.set(func(n *network) { n.delay = 0 })
		time.Sleep(time.Second)
		if s := settled(l); s.Permits != 0 || s.Lost != 0 || charged(t, f, "a", p) != 100 {
			t.Errorf("%+v, %d charged; want the 100 that passed", s, charged(t, f, "a", p))
		}
	})
}
