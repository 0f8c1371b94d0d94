package rlqs

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A stream that broke is charged for until its last assignment has ended, and no longer.
func TestBrokenStream(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 1000)
	inVirtualTime(t, one(p), 2, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(800)
		}
		f.play(20 * time.Second)
		f.unreachable = true
		for _, e := range f.envoys {
			e.disconnect()
		}
		if st := f.keeper.Stats(); st.Streams != 0 || st.Broken != 2 || st.Buckets != 2 {
			t.Errorf("%+v, want 2 broken streams", st)
		}
		charged, passed := f.store.sum(), f.covered
		f.play(8 * time.Second)
		if c, n := f.store.sum()-charged, f.covered-passed; c < 7900 || n > c+400 {
			t.Errorf("%d were charged and %d passed in 8 s without streams", c, n)
		}
		f.play(8 * time.Second)
		charged = f.store.sum()
		f.play(5 * time.Second)
		if n := f.store.sum() - charged; n > 0 {
			t.Errorf("%d were charged after all assignments had ended", n)
		}
		if st := f.keeper.Stats(); st.Broken != 0 || st.Buckets != 0 || len(f.keeper.books) != 0 {
			t.Errorf("%+v, want nothing", st)
		}
	})
}

// A lower rate that was sent just before a stream broke may not have arrived: the higher one is charged.
func TestLastMessageIsLost(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 1000)), 1, func(t *testing.T, f *fleet) {
		e := f.envoys[0]
		e.demand["b"] = steady(300)
		f.play(12 * time.Second)
		e.delay = 50 * time.Millisecond
		before := f.listed()[0].Rate
		f.rules.set(one(perSecond(t, limiter.Funnel, 600)))
		f.keeper.Changed()
		f.play(20 * time.Millisecond)
		if rate := f.listed()[0].Rate; rate > 600 || before < 900 {
			t.Fatalf("%g/s are assigned by a limit of 600/s, before %g/s", rate, before)
		}
		e.disconnect()
		if rate := f.listed()[0].Rate; rate != before {
			t.Errorf("%g/s are charged, the Envoy may have %g/s", rate, before)
		}
	})
}

// An Envoy that says who it is goes on with what it had.
func TestReconnect(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 1000)
	for _, node := range []string{"pod-7", ""} {
		t.Run("node "+node, func(t *testing.T) {
			inVirtualTime(t, one(p), 1, func(t *testing.T, f *fleet) {
				e := f.envoys[0]
				e.node = node
				e.demand["b"] = steady(800)
				f.play(22 * time.Second)
				e.disconnect()
				f.play(5 * time.Second)
				if st := f.keeper.Stats(); node != "" && (st.Buckets != 1 || st.Streams != 1 || st.Broken != 0) {
					t.Errorf("%+v, want one bucket", st)
				}
				f.play(16 * time.Second)
				if st := f.keeper.Stats(); st.Buckets != 1 || st.Broken != 0 {
					t.Errorf("%+v, want one bucket", st)
				}
				if n := f.passedIn(20 * time.Second); n < 15_900 {
					t.Errorf("%d of 16,000 passed", n)
				}
			})
		})
	}
}

// Envoys whose streams break do not lose their shares to the streams that broke, also where all want more.
func TestAllReconnect(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 1000)), 5, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(600)
		}
		f.play(20 * time.Second)
		for _, e := range f.envoys {
			e.disconnect()
		}
		from := f.now()
		f.play(15 * time.Second)
		if n := f.between(from, f.now()); n < 14_500 || n > 15_200 {
			t.Errorf("%d of 15,000 passed in the 15 s after all streams broke", n)
		}
		if st := f.keeper.Stats(); st.Broken != 0 || st.Buckets != 5 {
			t.Errorf("%+v, want 5 buckets", st)
		}
	})
}

// A new limit holds at once.
func TestRulesChange(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 1000)), 4, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(400)
		}
		f.play(20 * time.Second)
		for _, limit := range []int64{100, 800} {
			f.rules.set(one(perSecond(t, limiter.Funnel, limit)))
			f.keeper.Changed()
			f.play(200 * time.Millisecond)
			if limit == 800 { // each share rises when its Envoy reports, at the latest
				f.play(6 * time.Second)
			}
			if n := f.passedIn(10 * time.Second); n < limit*5 || n > limit*10+limit/10 {
				t.Errorf("%d passed in 10 s with a limit of %d a second", n, limit)
			}
		}
		f.rules.set(func(string, BucketID) Target { return Target{Refused: "no"} })
		f.keeper.Changed()
		f.play(time.Second)
		for _, e := range f.envoys {
			if b := e.buckets["b"]; b != nil && b.isAssigned {
				t.Errorf("%+v is still assigned", b.has)
			}
		}
		f.rules.set(func(string, BucketID) Target { return Target{} })
		f.keeper.Changed()
		f.play(interval) // a refused bucket is not remembered
		for _, e := range f.envoys {
			if b := e.buckets["b"]; b == nil || !b.isAssigned || b.has.Strategy != AllowAll {
				t.Errorf("%+v, want AllowAll", b)
			}
		}
	})
}

// After a reset the counter is charged again for what may pass.
func TestReset(t *testing.T) {
	p := policyOf(t, limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 1000, Window: time.Hour, ChargeDenied: limiter.ChargeNone,
	})
	inVirtualTime(t, one(p), 2, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(100)
		}
		f.play(150 * time.Second) // what remains is assigned by and by
		if b := f.envoys[0].buckets["b"]; b.has.rate() > 1 || f.passed > 1000 || f.passed < 980 {
			t.Fatalf("%+v after %d passed", b.has, f.passed)
		}
		f.store.Reset("k")
		f.keeper.Changed()
		f.play(500 * time.Millisecond)
		if b := f.envoys[0].buckets["b"]; b.has.rate() < 10 {
			t.Fatalf("%+v half a second after the reset", b.has)
		}
		f.play(150 * time.Second)
		if f.passed < 1960 || f.passed > 2000 {
			t.Errorf("%d passed, want 2,000", f.passed)
		}
	})
}

// A keeper that stops has charged what the Envoys may let pass until they ask another one.
func TestStop(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 1000)
	inVirtualTime(t, one(p), 2, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(40)
		}
		f.play(20 * time.Second)
		rate := 0.0
		for _, b := range f.listed() {
			rate += b.Rate
		}
		charged := f.store.sum()
		f.keeper.Stop(t.Context())
		f.keeper.Stop(t.Context())
		if n := float64(f.store.sum() - charged); n < rate*4.5 && n < 900 || n > rate*5+1 {
			t.Errorf("%g were charged for rates of %g/s", n, rate)
		}
		sent := f.messages
		f.play(6 * time.Second)
		if f.messages > sent {
			t.Error("something was sent after Stop")
		}
	})
}

// Everything may be called at any time.
func TestConcurrently(t *testing.T) {
	store := newLedger(t)
	defer store.Close()
	p := perSecond(t, limiter.FixedWindow, 1000)
	rules := &fakeRules{resolve: func(_ string, id BucketID) Target {
		return Target{Hits: []limiter.Hit{{Key: "all", Policy: p}, {Key: string(id), Policy: p}}[:1+len(id)%2]}
	}}
	k, err := New(Options{
		Store: store, Resolve: rules.Resolve, TTL: ttl, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := k.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for i := range 4 {
		wait.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				s := k.Open("", "shop", []string{"", "a"}[n%2])
				for j := range 20 {
					s.Report([]Usage{
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
			if st, all := k.Stats(), k.List("", "", 100); st.Buckets > 100_000 || len(all.Buckets) > 9 {
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

// An Envoy that is silent has nothing after a while, although its stream is open.
func TestSilence(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 100)
	inVirtualTime(t, one(p), 1, func(t *testing.T, f *fleet) {
		s := f.keeper.Open("", "shop", "")
		isAssigned := func() bool { return f.listed()[0].State != "waiting" }
		s.Report([]Usage{{ID: "b", Allowed: 50, Elapsed: 5 * time.Second}})
		f.play(5 * time.Second)
		if !isAssigned() {
			t.Error("nothing is assigned")
		}
		f.play(60 * time.Second)
		charged := f.store.sum()
		f.play(10 * time.Second)
		if isAssigned() || f.store.sum() > charged {
			t.Error("an Envoy that is silent is still charged for")
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
				Hits:   []limiter.Hit{{Key: "k", Policy: p}},
				Limits: []*descriptors.Limit{{OnStoreFailure: c.on, Local: perSecond(t, limiter.Funnel, 25)}},
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
		if len(e.buckets) != 0 || f.keeper.Stats().Buckets != 0 || f.keeper.Stats().Sent[Abandon] != 1 {
			t.Errorf("an idle bucket is still there: %+v", f.keeper.Stats())
		}
		if n := len(f.keeper.books) + len(f.keeper.counters); n > 0 {
			t.Errorf("%d groups and counters are still there", n)
		}
		f.play(40 * time.Second)
		if b := e.buckets["b"]; b == nil || !b.isAssigned {
			t.Error("a bucket that has requests again got nothing")
		}
	})
}

// What an Envoy claims to have seen moves no account out of its bounds, and takes no more from others than a demand
// that is as high as theirs.
func TestHugeNumbers(t *testing.T) {
	for _, a := range algorithms {
		inVirtualTime(t, one(perSecond(t, a, 1000)), 1, func(t *testing.T, f *fleet) {
			f.envoys[0].demand["b"] = steady(400)
			f.play(12 * time.Second)
			hostile := f.keeper.Open("", "shop", "")
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
