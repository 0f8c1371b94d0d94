package rlqs

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// perSecond is a limit of n a second.
func perSecond(tb testing.TB, a limiter.Algorithm, n int64) *limiter.Policy {
	tb.Helper()
	return policyOf(tb, limiter.Params{Algorithm: a, Limit: n, Window: time.Second, ChargeDenied: limiter.ChargeNone})
}

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// inVirtualTime starts a fleet, and ends it after f.
func inVirtualTime(t *testing.T, resolve func(string, BucketID) Target, envoys int, do func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, newLedger(t), resolve, envoys)
		defer f.close()
		do(t, f)
	})
}

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
	queue := policyOf(t, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 10, Window: time.Second})
	for name, c := range map[string]struct {
		target  Target
		want    Strategy
		none    bool
		refused string
	}{
		"no limit":             {target: Target{}, want: AllowAll},
		"limit of 0":           {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: zero}}}, want: DenyAll},
		"one of them 0":        {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: many}, {Key: "l", Policy: zero}}}, want: DenyAll},
		"shadow rule":          {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: zero}}, Shadow: true}, want: AllowAll},
		"shadow limit of 0":    {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: zero, Mode: limiter.Shadow}}}, want: AllowAll},
		"refused":              {target: Target{Refused: "rules.yaml:7: no"}, none: true, refused: "rules.yaml:7: no"},
		"cannot be prepaid":    {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: queue}}}, none: true, refused: "leaky_queue"},
		"quota mode, enforced": {target: Target{Hits: []limiter.Hit{{Key: "k", Policy: many, Mode: limiter.Quota}}}, want: TokenBucket},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(string, BucketID) Target { return c.target }, 1, func(t *testing.T, f *fleet) {
				e := f.envoys[0]
				e.demand["b"] = steady(20)
				f.play(100 * time.Millisecond)
				b := e.buckets["b"]
				if b.isAssigned == c.none || b.isAssigned && b.has.Strategy != c.want {
					t.Errorf("assigned %t %+v, want strategy %d", b.isAssigned, b.has, c.want)
				}
				infos := f.keeper.Buckets(10)
				if len(infos) != 1 || !strings.Contains(infos[0].Refused, c.refused) || (infos[0].Refused == "") != (c.refused == "") {
					t.Errorf("Buckets are %+v, want refused %q", infos, c.refused)
				}
				f.play(40 * time.Second)
				if b.isAssigned == c.none {
					t.Errorf("after 40 s assigned is %t", b.isAssigned)
				}
			})
		})
	}
}

// What is not enforced is charged by what was reported.
func TestShadowHitsAreChargedAfterwards(t *testing.T) {
	enforced := perSecond(t, limiter.Funnel, 100)
	counted := policyOf(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1_000_000, Window: time.Hour})
	target := Target{Hits: []limiter.Hit{{Key: "k", Policy: enforced}, {Key: "s", Policy: counted, Mode: limiter.Shadow}}}
	inVirtualTime(t, func(string, BucketID) Target { return target }, 1, func(t *testing.T, f *fleet) {
		f.envoys[0].demand["b"] = steady(400)
		f.play(30*time.Second + 200*time.Millisecond)
		all := 1_000_000 - f.left(target.Hits[1])
		if all < 400*24 || all > 400*31 {
			t.Errorf("%d requests were counted, want those of 30 s but for the last few", all)
		}
		if f.passed > 100*30+100 {
			t.Errorf("%d passed, want 100 a second", f.passed)
		}
	})
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
		for _, b := range f.keeper.Buckets(9) {
			if b.ID == "small" && (b.Rate < 90 || b.Rate > 100) || b.ID == "large" && b.Rate < 890 {
				t.Errorf("%s has %g/s", b.ID, b.Rate)
			}
		}
	})
}

// What an Envoy did not use is returned to its window.
func TestUnusedHitsAreReturned(t *testing.T) {
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
				if unused := charged - f.passed; unused < 0 || unused > 600 || st.Returned == 0 {
					t.Errorf("%d charged, %d passed, %+v", charged, f.passed, st)
				}
			})
		})
	}
}

// What was charged to a bucket has leaked: if it were returned, others could use what nobody has left.
func TestBucketsReturnNothing(t *testing.T) {
	for _, a := range []limiter.Algorithm{limiter.Funnel, limiter.TokenBucket} {
		p := policyOf(t, limiter.Params{Algorithm: a, Limit: 100_000, Window: time.Hour})
		inVirtualTime(t, one(p), 1, func(t *testing.T, f *fleet) {
			f.envoys[0].demand["b"] = steady(2)
			f.play(40 * time.Second)
			f.envoys[0].disconnect(true)
			f.play(time.Second)
			if st := f.keeper.Stats(); st.Returned > 0 {
				t.Errorf("%s: %+v", a, st)
			}
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
				if b := e.buckets["b"]; b.isAssigned && b.has.Strategy != DenyAll {
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

func TestIdleBucketsAreAbandoned(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 100)), 1, func(t *testing.T, f *fleet) {
		e := f.envoys[0]
		e.demand["b"] = func(at time.Duration) float64 {
			if at > 10*time.Second && at < 60*time.Second {
				return 0
			}
			return 20
		}
		f.play(40 * time.Second)
		if len(e.buckets) != 0 || f.keeper.Stats().Buckets != 0 || f.keeper.Stats().Abandoned != 1 {
			t.Errorf("an idle bucket is still there: %+v", f.keeper.Stats())
		}
		if n := len(f.keeper.groups) + len(f.keeper.counters); n > 0 {
			t.Errorf("%d groups and counters are still there", n)
		}
		f.play(40 * time.Second)
		if b := e.buckets["b"]; b == nil || !b.isAssigned {
			t.Error("a bucket that has requests again got nothing")
		}
	})
}

func TestTooManyBuckets(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 100)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, newLedger(t), one(p), 1)
		defer f.close()
		var log bytes.Buffer
		f.keeper.o.MaxBuckets = 3
		f.keeper.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		for i := range 5 {
			f.envoys[0].demand[BucketID(fmt.Sprint("b", i))] = steady(10)
		}
		f.play(12 * time.Second)
		st := f.keeper.Stats()
		if st.Buckets != 3 || st.Dropped < 4 {
			t.Errorf("%+v, want 3 buckets, others dropped", st)
		}
		if n := strings.Count(log.String(), "too many quota buckets"); n != 1 {
			t.Errorf("%d log lines: %s", n, log.String())
		}
	})
}

// A host gets another bucket while it has fewer than are free, so that others always get some. Buckets of streams that
// broke count, too, as long as what was assigned to them may be in force.
func TestTooManyBucketsOfAHost(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 100)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, newLedger(t), one(p), 0)
		defer f.close()
		var log bytes.Buffer
		f.keeper.most = 8
		f.keeper.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		report := func(host, node string) *Stream {
			s := f.keeper.Open(host, "shop", node, nobody{})
			s.Report([]Usage{{ID: "x" + BucketID(node), Allowed: 1}, {ID: "y" + BucketID(node), Allowed: 1}})
			synctest.Wait()
			time.Sleep(time.Second)
			return s
		}
		want := func(when string, dropped uint64, hosts map[string]int) {
			t.Helper()
			if st := f.keeper.Stats(); st.Dropped != dropped || !maps.Equal(f.keeper.hosts, hosts) {
				t.Errorf("%s: %v, %d dropped; want %v, %d", when, f.keeper.hosts, st.Dropped, hosts, dropped)
			}
		}
		for _, node := range []string{"a", "b", "c"} {
			report("greedy", node).Close(false)
		}
		want("a host alone", 2, map[string]int{"greedy": 4})
		other := report("other", "d")
		report("third", "e").Close(false)
		want("beside it", 3, map[string]int{"greedy": 4, "other": 2, "third": 1})
		report("other", "a").Close(false)
		want("an Envoy that comes from another host", 3, map[string]int{"greedy": 2, "other": 4, "third": 1})
		other.Close(true)
		time.Sleep(20 * time.Second)
		want("after the assignments ended", 3, map[string]int{})
		if n := strings.Count(log.String(), "its host has as many"); n != 1 {
			t.Errorf("%d log lines: %s", n, log.String())
		}
	})
}

type nobody struct{}

func (nobody) Send([]Assignment) {}

// Requests that passed before there was an assignment are charged later. What is charged ahead is returned with the
// report after it.
func TestDebtsArePaid(t *testing.T) {
	p := policyOf(t, limiter.Params{
		Algorithm: limiter.SlidingLog, Limit: 10_000, Window: time.Hour, ChargeDenied: limiter.ChargeNone,
	})
	inVirtualTime(t, one(p), 1, func(t *testing.T, f *fleet) {
		s := f.keeper.Open("", "shop", "", f.envoys[0])
		s.Report([]Usage{{ID: "b", Allowed: 4000, Elapsed: 5 * time.Second}})
		f.play(5 * time.Second)
		s.Report([]Usage{{ID: "b"}})
		f.play(200 * time.Millisecond)
		if used := 10_000 - f.left(limiter.Hit{Key: "k", Policy: p}); used < 4000 || used > 5500 {
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
		f.play(12 * time.Second)
		f.ask(f.left(limiter.Hit{Key: "k", Policy: f.rules.resolve("", "").Hits[0].Policy}))
		debts := func() (sum float64) {
			f.keeper.mu.Lock()
			defer f.keeper.mu.Unlock()
			f.keeper.eachClient(func(c *client) { sum += c.debt })
			return sum
		}
		f.envoys[0].stream.Report([]Usage{{ID: "b", Allowed: 700, Denied: 300}})
		if debts() < 90 {
			t.Fatalf("the debt is %g", debts())
		}
		f.play(3 * time.Second)
		if debts() > 1 {
			t.Errorf("the debt is still %g after 3 s", debts())
		}
	})
}

func TestWhileTheStoreFails(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 100)
	for _, c := range []struct {
		on        descriptors.OnStoreFailure
		low, high float64 // passed a second while it fails
	}{
		{descriptors.Allow, 90, 110},
		{descriptors.Deny, 0, 1},
		{descriptors.Local, 22, 28},
		{descriptors.Fail, 0, 1}, // the fake Envoy denies what has no assignment
	} {
		t.Run(c.on.String(), func(t *testing.T) {
			target := Target{
				Hits: []limiter.Hit{{Key: "k", Policy: p}}, OnFailure: []descriptors.OnStoreFailure{c.on},
				Local: []*limiter.Policy{perSecond(t, limiter.Funnel, 25)},
			}
			inVirtualTime(t, func(string, BucketID) Target { return target }, 2, func(t *testing.T, f *fleet) {
				f.denyUnassigned = true
				for _, e := range f.envoys {
					e.demand["b"] = steady(200)
				}
				f.play(20 * time.Second)
				f.store.fail(errors.New("gone"))
				f.play(20 * time.Second)
				if rate := float64(f.passedIn(20*time.Second)) / 20; rate < c.low || rate > c.high {
					t.Errorf("%g a second passed while the store failed, want %g to %g", rate, c.low, c.high)
				}
				if f.keeper.Stats().Failures == 0 {
					t.Error("no failure was counted")
				}
				if over := f.keeper.Stats().Over; over > 10 {
					t.Errorf("%d requests are to be charged that passed while the store failed", over)
				}
				f.store.fail(nil)
				f.play(6 * time.Second)
				if n := f.passedIn(20 * time.Second); n < 1900 || n > 2150 {
					t.Errorf("%d passed in 20 s after the store was back", n)
				}
			})
		})
	}
}
