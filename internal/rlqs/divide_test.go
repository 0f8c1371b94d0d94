package rlqs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// left is how many hits a counter has left.
func (f *fleet) left(h limiter.Hit) int64 {
	f.t.Helper()
	h.Look, h.N, h.Mode = true, 0, limiter.Enforce
	out := make([]limiter.Decision, 1)
	if err := f.store.Store.Take(f.t.Context(), []limiter.Hit{h}, out); err != nil {
		f.t.Fatal(err)
	}
	return out[0].Remaining
}

func TestWhatNeedsNoShares(t *testing.T) {
	many := perSecond(t, limiter.Funnel, 1000)
	zero := perSecond(t, limiter.Funnel, 0)
	for name, c := range map[string]struct {
		target  Target
		want    Strategy
		none    bool
		refused string
	}{
		"no limit":             {target: Target{}, want: AllowAll},
		"limit of 0":           {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: zero}}}, want: DenyAll},
		"one of them 0":        {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: many}, {Key: "l", Policy: zero}}}, want: DenyAll},
		"shadow limit of 0":    {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: zero, Mode: limiter.Shadow}}}, want: AllowAll},
		"refused":              {target: Target{Refused: "rules.yaml:7: no"}, none: true, refused: "rules.yaml:7: no"},
		"quota mode, enforced": {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: many, Mode: limiter.Quota}}}, want: TokenBucket},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(string, BucketID) Target { return c.target }, 1, func(t *testing.T, f *fleet) {
				e, log := f.envoys[0], &bytes.Buffer{}
				f.keeper.o.Logger = slog.New(slog.NewTextHandler(log, nil))
				e.demand["b"] = steady(20)
				f.play(100 * time.Millisecond)
				b := e.buckets["b"]
				if b.isAssigned == c.none || b.isAssigned && b.has.Strategy != c.want {
					t.Errorf("assigned %t %+v, want strategy %d", b.isAssigned, b.has, c.want)
				}
				if isRefused := f.keeper.Stats().Buckets == 0; isRefused != (c.refused != "") || !strings.Contains(log.String(), c.refused) {
					t.Errorf("it is refused: %t, want %q, the log has %s", isRefused, c.refused, log.String())
				}
				f.play(40 * time.Second)
				if b.isAssigned == c.none {
					t.Errorf("after 40 s assigned is %t", b.isAssigned)
				}
			})
		})
	}
}

// A request that several limits count is charged to all of them, and what one limit keeps a bucket from having others
// get.
func TestSeveralLimits(t *testing.T) {
	global, small := perSecond(t, limiter.Funnel, 1000), perSecond(t, limiter.Funnel, 100)
	resolve := func(_ string, id BucketID) Target {
		hits := []limiter.Hit{{Key: "global", Policy: global}}
		if id == "small" {
			hits = append(hits, limiter.Hit{Key: "small", Policy: small})
		}
		return Target{Hits: hits}
	}
	inVirtualTime(t, resolve, 2, func(t *testing.T, f *fleet) {
		f.envoys[0].demand["small"] = steady(2000)
		f.envoys[1].demand["large"] = steady(2000)
		f.play(20 * time.Second)
		if n := f.passedIn(20 * time.Second); n < 19_500 || n > 20_100 {
			t.Errorf("%d of 20,000 passed in 20 s", n)
		}
		for _, b := range f.listed() {
			if b.Descriptor == "small" && (b.Rate < 90 || b.Rate > 100) || b.Descriptor == "large" && b.Rate < 890 {
				t.Errorf("%s has %g/s", b.Descriptor, b.Rate)
			}
		}
	})
}

// What an Envoy did not use is refunded to its window.
func TestUnusedHitsAreRefunded(t *testing.T) {
	for _, a := range []limiter.Algorithm{limiter.FixedWindow, limiter.SlidingWindow, limiter.SlidingLog} {
		t.Run(a.String(), func(t *testing.T) {
			p := policyOf(t, limiter.Params{Algorithm: a, Limit: 10_000, Window: time.Hour, ChargeDenied: limiter.ChargeNone})
			inVirtualTime(t, one(p), 3, func(t *testing.T, f *fleet) {
				f.store.late = lateUpTo(3 * time.Millisecond) // so each answer has the window end a little later or earlier
				for i, e := range f.envoys {
					e.demand["b"] = steady(float64(2 * (i + 1)))
				}
				f.play(120 * time.Second)
				charged := 10_000 - f.left(limiter.Hit{Key: "k", Policy: p})
				st := f.keeper.Stats()
				if unused := charged - f.passed; unused < 0 || unused > 450 || st.Refunded == 0 {
					t.Errorf("%d charged, %d passed, %+v", charged, f.passed, st)
				}
			})
		})
	}
}

// A limit of a few requests in a long time is assigned, too, one at a time, and what nobody can use is not charged.
func TestSlowLimits(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		limit       int64
		window      time.Duration
		envoys      int
		least       int64 // passed by token buckets in a minute
		mostCharged int64
	}{
		{limit: 1, window: 10 * time.Second, envoys: 1, least: 2, mostCharged: 7},
		{limit: 5, window: day, envoys: 1, least: 1, mostCharged: 5},
		{limit: 100, window: 1000 * day, envoys: 2, least: 2, mostCharged: 95},
	} {
		for _, a := range algorithms {
			p := policyOf(t, limiter.Params{Algorithm: a, Limit: c.limit, Window: c.window, ChargeDenied: limiter.ChargeNone})
			inVirtualTime(t, one(p), c.envoys, func(t *testing.T, f *fleet) {
				f.denyUnassigned = true
				for _, e := range f.envoys {
					e.demand["b"] = steady(1)
				}
				f.play(60 * time.Second)
				unused := f.store.sum() - f.passed
				if f.covered < c.least || f.store.sum() > c.mostCharged || unused > int64(4*c.envoys) {
					t.Errorf("%s of %d in %s: %d passed by token buckets, %d were charged, %d of them not used", a, c.limit, c.window,
						f.covered, f.store.sum(), unused)
				}
			})
		}
	}
}

// An empty window denies all, until the next one begins.
func TestEmptyWindow(t *testing.T) {
	p := policyOf(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 4000, Window: 40 * time.Second})
	inVirtualTime(t, one(p), 4, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(100)
		}
		time.Sleep(p.Window() - time.Duration(time.Now().UnixNano())%p.Window())
		for range 3 {
			began := f.now()
			f.play(39 * time.Second)
			for _, e := range f.envoys {
				if b := e.buckets["b"]; b.isAssigned && b.has.Strategy != DenyAll && b.has.rate() > 1e-3 {
					t.Errorf("at the end of an empty window %+v is assigned", b.has)
				}
			}
			f.play(time.Second)
			if n := f.between(began, f.now()); n < 3800 || n > 4000+400 {
				t.Errorf("%d passed in a window of 4,000", n)
			}
		}
	})
}

// Requests that passed before there was an assignment are charged later. What is charged ahead is refunded with the
// report after it.
func TestDebtsArePaid(t *testing.T) {
	p := policyOf(t, limiter.Params{
		Algorithm: limiter.SlidingLog, Limit: 10_000, Window: time.Hour, ChargeDenied: limiter.ChargeNone,
	})
	inVirtualTime(t, one(p), 1, func(t *testing.T, f *fleet) {
		s := f.keeper.Open("", "shop", "")
		s.Report([]Usage{{ID: "b"}})
		s.Report([]Usage{{ID: "b", Allowed: 4000}})
		f.play(5 * time.Second)
		s.Report([]Usage{{ID: "b"}})
		f.play(200 * time.Millisecond)
		if used := 10_000 - f.left(limiter.Hit{Key: "k", Policy: p}); used < 4000 || used > 4500 {
			t.Errorf("%d were charged, 4000 passed", used)
		}
		if st := f.keeper.Stats(); st.Over != 4000 {
			t.Errorf("%+v, want 4000 over", st)
		}
	})
}

// A debt is also paid where the counter has nothing to spare: by its own Envoy's rate.
func TestDebtsArePaidFromTheRate(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 100)), 2, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(200)
		}
		f.play(12*time.Second + playStep)
		f.ask(f.left(limiter.Hit{Key: "k", Policy: f.rules.resolve("", "").Hits[0].Policy}))
		debts := func() (sum float64) {
			f.keeper.mu.Lock()
			defer f.keeper.mu.Unlock()
			for _, b := range f.keeper.books {
				sum += b.debt
			}
			return sum
		}
		f.envoys[0].stream.Report([]Usage{{ID: "b", Allowed: 700, Denied: 300}})
		if debts() < 90 {
			t.Fatalf("the debt is %g", debts())
		}
		f.play(2900 * time.Millisecond) // until the next report
		if debts() > 2 {
			t.Errorf("the debt is still %g after 2.9 s", debts())
		}
	})
}

// playBeside plays while calls ask the rate limit service about the same counter, that many a second. It returns how
// many requests passed a second by quotas and by calls.
func (f *fleet) playBeside(calls float64, long time.Duration) (byQuotas, byCalls float64) {
	passed, beside, todo := f.passed, f.beside, 0.0
	for range int(long / playStep) {
		f.play(playStep)
		for todo += calls * playStep.Seconds(); todo >= 1; todo-- {
			f.ask(1)
		}
	}
	return float64(f.passed-passed) / long.Seconds(), float64(f.beside-beside) / long.Seconds()
}

// Calls come first: they take what there is when they come, and a keeper only what it finds every 100 ms. The page on
// quotas states these shares.
func TestCallsComeFirst(t *testing.T) {
	for _, c := range []struct {
		algorithm     limiter.Algorithm
		quotas, calls float64 // that want something, a second
		leastQ, mostQ float64 // passed by quotas
		leastCall     float64
	}{
		{limiter.Funnel, 1000, 400, 600, 630, 370},
		{limiter.Funnel, 1000, 1000, 30, 60, 930},
		{limiter.TokenBucket, 1000, 3000, 30, 60, 930},
		{limiter.SlidingWindow, 1000, 1000, 0, 200, 750}, // hits that leave a window may be charged by either: 116 to 185
		{limiter.SlidingLog, 1000, 1000, 0, 200, 750},
		{limiter.FixedWindow, 1000, 1000, 440, 500, 480}, // the first tick of a window takes as much as calls do
		{limiter.FixedWindow, 1000, 3000, 200, 240, 730},
	} {
		inVirtualTime(t, one(perSecond(t, c.algorithm, 1000)), 4, func(t *testing.T, f *fleet) {
			for _, e := range f.envoys {
				e.demand["b"] = steady(c.quotas / 4)
			}
			f.playBeside(c.calls, 20*time.Second)
			byQuotas, byCalls := f.playBeside(c.calls, 20*time.Second)
			t.Logf("%s: quotas want %g and get %g, calls want %g and get %g", c.algorithm, c.quotas, byQuotas, c.calls, byCalls)
			if byQuotas < c.leastQ || byQuotas > c.mostQ || byCalls < c.leastCall || byQuotas+byCalls > 1010 {
				t.Errorf("%s: quotas want %g and get %g, calls want %g and get %g of 1,000", c.algorithm, c.quotas, byQuotas,
					c.calls, byCalls)
			}
		})
	}
}

// A store that is slow costs nothing but time.
func TestSlowStore(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 1000)
	inVirtualTime(t, one(p), 3, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(500)
		}
		f.store.delay = 30 * time.Millisecond
		f.play(20 * time.Second)
		if n := f.passedIn(20 * time.Second); n < 19_000 || n > 20_100 {
			t.Errorf("%d of 20,000 passed in 20 s", n)
		}
	})
}
