package rlqs

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

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
			e.disconnect(false)
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
		if st := f.keeper.Stats(); st.Broken != 0 || st.Buckets != 0 || len(f.keeper.groups) != 0 {
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
		before := f.keeper.Buckets(1)[0].Rate
		f.rules.set(one(perSecond(t, limiter.Funnel, 600)))
		f.keeper.Changed()
		f.play(20 * time.Millisecond)
		if rate := f.keeper.Buckets(1)[0].Rate; rate > 600 || before < 900 {
			t.Fatalf("%g/s are assigned by a limit of 600/s, before %g/s", rate, before)
		}
		e.disconnect(false)
		if rate := f.keeper.Buckets(1)[0].Rate; rate != before {
			t.Errorf("%g/s are charged, the Envoy may have %g/s", rate, before)
		}
	})
}

// Nothing is charged for a stream that its Envoy has ended.
func TestEndedStream(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 1000)
	inVirtualTime(t, one(p), 1, func(t *testing.T, f *fleet) {
		e := f.envoys[0]
		e.demand["b"] = steady(800)
		f.play(20 * time.Second)
		s := e.stream
		e.disconnect(true)
		s.Close(true)
		s.Report([]Usage{{ID: "b", Allowed: 1}})
		charged := f.store.sum()
		e.demand["b"], e.next = steady(0), f.now()+time.Hour
		f.play(5 * time.Second)
		if n := f.store.sum() - charged; n > 0 || f.keeper.Stats().Buckets > 0 {
			t.Errorf("%d were charged, %+v", n, f.keeper.Stats())
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
				e.disconnect(false)
				f.play(5 * time.Second)
				st := f.keeper.Stats()
				if st.Buckets != 1 || st.Streams != 1 || st.Broken != 0 {
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

// Envoys that do not say who they are cannot be told apart. While one that had little comes again, and one that had
// much does not, all that passes is charged. When both are back, nothing is charged twice.
func TestWhoComesAgain(t *testing.T) {
	for _, first := range []int{0, 1} {
		inVirtualTime(t, one(perSecond(t, limiter.Funnel, 1000)), 2, func(t *testing.T, f *fleet) {
			demands := []float64{1500, 60}
			for i, e := range f.envoys {
				e.demand["b"] = steady(demands[i])
			}
			f.play(22 * time.Second)
			for _, e := range f.envoys {
				e.disconnect(false)
			}
			other := f.envoys[1-first]
			back := other.next + 2*interval
			other.next = back
			for f.now() < back-playStep {
				f.play(playStep)
				if ahead := f.store.sum() - f.covered; ahead < 0 {
					t.Fatalf("%d requests have passed after %s that were not charged", -ahead, f.now())
				}
			}
			f.play(6 * time.Second)
			if st := f.keeper.Stats(); st.Broken != 0 || st.Buckets != 2 || len(f.keeper.pools) != 0 {
				t.Errorf("%+v, want two buckets", st)
			}
			if n := f.passedIn(10 * time.Second); n < 9800 {
				t.Errorf("%d of 10,000 passed", n)
			}
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
			e.disconnect(false)
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

// What a broken stream has is not assigned a second time: there may be nothing left to assign.
func TestNothingIsLeft(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 1000)), 2, func(t *testing.T, f *fleet) {
		f.envoys[0].demand["b"] = steady(3000)
		f.play(20 * time.Second)
		f.unreachable = true
		f.envoys[0].disconnect(false)
		f.envoys[1].demand["b"] = steady(300)
		charged := f.store.sum()
		f.play(10 * time.Second)
		if n := f.store.sum() - charged; n > 10_500 {
			t.Errorf("%d were charged in 10 s", n)
		}
		f.play(20 * time.Second)
		if n := f.passedIn(5 * time.Second); n < 1450 {
			t.Errorf("%d of 1,500 passed after the broken stream's assignment ended", n)
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
		f.play(time.Second)
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

// The rate limit service and the Envoys have one counter.
func TestBesideTheRateLimitService(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 1000)
	inVirtualTime(t, one(p), 4, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(500)
		}
		for range 6000 {
			f.play(playStep)
			f.ask(1)
			f.ask(1) // 400 a second
		}
		before, beside := f.passed, f.beside
		for range 4000 {
			f.play(playStep)
			f.ask(1)
			f.ask(1)
		}
		besides, all := f.beside-beside, f.beside-beside+f.passed-before
		t.Logf("%d passed in 20 s, %d of them by the rate limit service", all, besides)
		if all < 18_500 || all > 20_400 || besides < 6000 {
			t.Errorf("%d passed in 20 s, %d of them by the rate limit service; want about 20,000 and 8,000", all, besides)
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
		{limiter.Funnel, 1000, 400, 540, 620, 390},
		{limiter.Funnel, 1000, 1000, 0, 100, 850},
		{limiter.TokenBucket, 1000, 3000, 0, 100, 850},
		{limiter.SlidingWindow, 1000, 1000, 0, 150, 800},
		{limiter.SlidingLog, 1000, 1000, 0, 150, 800},
		{limiter.FixedWindow, 1000, 1000, 400, 600, 350}, // the first tick of a window takes as much as calls do
		{limiter.FixedWindow, 1000, 3000, 200, 450, 500},
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

// Nobody can lower the rate of a stream that broke. If calls take all of the limit meanwhile, what it lets pass is not
// charged, and is at most its rate until its assignment ends.
func TestBrokenStreamBesideCalls(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 1000)), 1, func(t *testing.T, f *fleet) {
		e := f.envoys[0]
		e.demand["b"] = steady(600)
		f.play(22 * time.Second)
		rate := f.keeper.Buckets(1)[0].Rate
		f.unreachable = true
		e.disconnect(false)
		most := 0.0
		for range 20 {
			f.playBeside(3000, time.Second)
			most = max(most, float64(f.covered-f.store.sum()))
		}
		if most <= 0 || most > min(rate, 600)*DefaultTTL.Seconds() {
			t.Errorf("%g passed that were not charged, want at most %g a second for %s", most, min(rate, 600), DefaultTTL)
		}
		if b := e.buckets["b"]; b.isAssigned || f.keeper.Stats().Buckets > 0 {
			t.Error("something is assigned after 20 s")
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
		for _, b := range f.keeper.Buckets(9) {
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

// After a replica was killed its Envoys go on with what they had until their next report, to another replica. Only that
// passes uncharged.
func TestKilledKeeper(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 1000)
	inVirtualTime(t, one(p), 5, func(t *testing.T, f *fleet) {
		for _, e := range f.envoys {
			e.demand["b"] = steady(400)
		}
		f.play(20 * time.Second)
		f.cancel()
		<-f.stopped
		killed := f.now()
		for _, e := range f.envoys {
			e.stream = nil
		}
		next := newFleet(t, f.store, one(p), 0)
		f.keeper, f.cancel, f.stopped = next.keeper, next.cancel, next.stopped
		f.play(30 * time.Second)
		if n := f.most(10*time.Second, 0); n > 10_000+1000+5*1000 {
			t.Errorf("%d passed in 10 s, want at most what was in force for 5 s beyond the limit's 11,000", n)
		}
		if n := f.between(killed+15*time.Second, killed+25*time.Second); n < 9500 || n > 10_200 {
			t.Errorf("%d passed in 10 s after all Envoys had found the other replica", n)
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
	k, err := New(Options{Store: store, Resolver: rules, MaxBuckets: 5})
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
				s := k.Open("", "shop", []string{"", "a"}[n%2], deaf{})
				for j := range 20 {
					s.Report([]Usage{
						{ID: BucketID("abcdefgh"[:1+(i+j)%8]), Allowed: uint64(j), Elapsed: time.Second},
						{ID: "x", Denied: math.MaxUint64, Allowed: math.MaxUint64, Elapsed: -1},
					})
					time.Sleep(time.Millisecond)
				}
				k.Changed()
				s.Close(n%3 == 0)
			}
		})
	}
	wait.Go(func() {
		for ctx.Err() == nil {
			if st, all := k.Stats(), k.Buckets(100); st.Buckets > 100_000 || len(all) > 100 {
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

// An Envoy that reports less often than the TTL still has its assignment; one that is silent has not.
func TestSilence(t *testing.T) {
	p := perSecond(t, limiter.Funnel, 100)
	inVirtualTime(t, one(p), 1, func(t *testing.T, f *fleet) {
		e := f.envoys[0]
		s := f.keeper.Open("", "shop", "", e)
		isAssigned := func() bool { return f.keeper.Buckets(1)[0].Assigned }
		for range 3 {
			s.Report([]Usage{{ID: "b", Allowed: 50, Elapsed: 25 * time.Second}})
			f.play(25 * time.Second)
			if !isAssigned() {
				t.Error("an Envoy that reports each 25 s has nothing")
			}
		}
		f.play(60 * time.Second)
		charged := f.store.sum()
		f.play(10 * time.Second)
		if isAssigned() || f.store.sum() > charged {
			t.Error("an Envoy that is silent is still charged for")
		}
	})
}

// An Envoy that is silent while its stream is open keeps nothing from others, also if shares change meanwhile.
func TestSilenceBesideOthers(t *testing.T) {
	inVirtualTime(t, one(perSecond(t, limiter.Funnel, 1000)), 2, func(t *testing.T, f *fleet) {
		f.envoys[0].demand["b"] = steady(900)
		f.envoys[1].demand["b"] = func(at time.Duration) float64 {
			if at%(14*time.Second) < 7*time.Second {
				return 100
			}
			return 900
		}
		f.play(12 * time.Second)
		f.envoys[0].next = time.Hour
		f.envoys[0].demand["b"] = steady(0)
		f.play(25 * time.Second)
		for _, b := range f.keeper.Buckets(9) {
			if b.Assigned && b.ReportAge > interval+time.Second {
				t.Errorf("an Envoy that was silent for %s has %g/s", b.ReportAge, b.Rate)
			}
		}
	})
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

func TestOptionsAreChecked(t *testing.T) {
	store := newLedger(t)
	defer store.Close()
	rules := &fakeRules{}
	for name, o := range map[string]Options{
		"Store and Resolver must be set":                     {},
		"TTL must be whole seconds, at least 10s, got 9s":    {Store: store, Resolver: rules, TTL: 9 * time.Second},
		"TTL must be whole seconds, at least 10s, got 10.5s": {Store: store, Resolver: rules, TTL: 10500 * time.Millisecond},
		"MaxBuckets must not be negative, got -1":            {Store: store, Resolver: rules, MaxBuckets: -1},
		"Timeout must not be negative, got -1s":              {Store: store, Resolver: rules, Timeout: -time.Second},
	} {
		if _, err := New(o); err == nil || !strings.HasSuffix(err.Error(), name) {
			t.Errorf("New says %v, want %q", err, name)
		}
	}
	k, err := New(Options{Store: store, Resolver: rules})
	if err != nil {
		t.Fatal(err)
	}
	k.Stop(t.Context()) // also if it never ran
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
