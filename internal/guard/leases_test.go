package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// far is a store behind a network: it counts calls, takes its time before it decides, and may fail.
type far struct {
	calls atomic.Int64

	mu sync.Mutex
	network
}

type network struct {
	limiter.Store
	delay time.Duration
	down  bool
	see   func(hits []limiter.Hit, out []limiter.Decision) // nil: none
}

// set changes the network.
func (f *far) set(change func(n *network)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.network)
}

var errDown = fmt.Errorf("%w: down", limiter.ErrUnavailable)

func (f *far) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	f.calls.Add(1)
	f.mu.Lock()
	n := f.network
	f.mu.Unlock()
	if n.delay > 0 {
		select {
		case <-time.After(n.delay):
		case <-ctx.Done():
			return errors.Join(limiter.ErrUnavailable, ctx.Err())
		}
	}
	if n.down {
		return errDown
	}
	err := n.Take(ctx, hits, out)
	if n.see != nil {
		n.see(hits, out)
	}
	return err
}

func newFar(t *testing.T) *far {
	t.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &far{network: network{Store: s}}
}

func newLeases(t *testing.T, store limiter.Store) *guard.Leases {
	t.Helper()
	l := guard.NewLeases(store)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// leased is a policy with leases of the default length.
func leased(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	if in.LeaseFor == 0 {
		in.LeaseFor = limiter.DefaultLeaseFor
	}
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// hourly is a leased limit whose count says exactly how many were charged and not given back.
func hourly(tb testing.TB, limit int64) *limiter.Policy {
	tb.Helper()
	return leased(tb, limiter.Params{Algorithm: limiter.SlidingLog, Limit: limit, Window: time.Hour, MaxLogEntries: 1_000_000})
}

// take decides a request and fails the test on an error.
func take(tb testing.TB, s limiter.Store, hits ...limiter.Hit) []limiter.Decision {
	tb.Helper()
	out := make([]limiter.Decision, len(hits))
	if err := s.Take(context.Background(), hits, out); err != nil {
		tb.Fatal(err)
	}
	return out
}

// charged is how many hits the store counts for a key of a policy.
func charged(tb testing.TB, f *far, key string, p *limiter.Policy) int64 {
	tb.Helper()
	return p.Limit() - take(tb, f.Store, limiter.Hit{Key: key, Policy: p})[0].Remaining
}

// A hot key asks the store once in many requests, and the store counts what passed, no more and no less.
func TestHotKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		const requests = 20_000
		for range requests {
			if d := take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})[0]; !d.Allowed {
				t.Fatal("denied far below the limit")
			}
			time.Sleep(100 * time.Microsecond)
		}
		if calls := f.calls.Load(); calls > requests/50 {
			t.Errorf("%d requests asked the store %d times, want at most once in 50", requests, calls)
		}
		if s := l.Stats(); int64(s.Answers) < requests*49/50 || s.Permits < 0 || charged(t, f, "k", p) != requests+s.Permits {
			t.Errorf("%+v, and %d charged after %d requests", s, charged(t, f, "k", p), requests)
		}
		time.Sleep(4 * limiter.DefaultLeaseFor)
		synctest.Wait()
		if s := l.Stats(); s.Permits != 0 || s.Keys != 0 || s.Lost != 0 || s.Taken-s.Returned >= requests {
			t.Errorf("after the traffic: %+v, want nothing on lease or lost", s)
		}
		if n := charged(t, f, "k", p); n != requests {
			t.Errorf("%d charged, want %d", n, requests)
		}
	})
}

// Many hot keys share the calls that take ahead for them.
func TestHotKeysShareCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = fmt.Sprint("k", i)
		}
		const requests = 60_000 // 300 a second for each
		var before int64
		for i := range 2 * requests {
			if i == requests { // they have become hot
				before = f.calls.Load()
			}
			take(t, l, limiter.Hit{Key: keys[i*37%len(keys)], Policy: p, N: 1})
			time.Sleep(33 * time.Microsecond)
		}
		t.Logf("%d calls at first, %d then", before, f.calls.Load()-before)
		if calls := f.calls.Load() - before; calls > requests/50 {
			t.Errorf("%d requests asked the store %d times, want at most once in 50", requests, calls)
		}
	})
}

// A key that is not hot is as with strict: the same calls.
func TestColdKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 1000)
		f.set(func(n *network) {
			n.see = func(hits []limiter.Hit, _ []limiter.Decision) {
				if len(hits) != 1 || hits[0].N != 1 {
					t.Errorf("the store was asked %v, want the one hit", hits)
				}
			}
		})
		for range 500 {
			take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})
			time.Sleep(limiter.DefaultLeaseFor / 2)
		}
		if calls := f.calls.Load(); calls != 500 || l.Stats().Keys != 0 {
			t.Errorf("%d calls, %+v; want one for each of 500 requests, and no lease", calls, l.Stats())
		}
	})
}

// What is not leased goes to the store as it is, however often.
func TestOthersAreStrict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		strict, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 100_000, Window: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		small := hourly(t, 9)
		p := hourly(t, 100_000)
		f.set(func(n *network) {
			n.see = func(hits []limiter.Hit, _ []limiter.Decision) {
				if len(hits) != 1 {
					t.Errorf("the store was asked %v, want the one hit", hits)
				}
			}
		})
		for _, h := range []limiter.Hit{
			{Key: "strict", Policy: strict, N: 1},
			{Key: "small", Policy: small, N: 1},
			{Key: "look", Policy: p},
			{Key: "back", Policy: p, N: -1},
			{Key: "shadow", Policy: p, N: 1, Mode: limiter.Shadow},
			{Key: "quota", Policy: p, N: 1, Mode: limiter.Quota},
		} {
			before := f.calls.Load()
			for range 100 {
				take(t, l, h)
			}
			if calls := f.calls.Load() - before; calls != 100 {
				t.Errorf("%s: %d calls for 100 requests", h.Key, calls)
			}
		}
	})
}

var leasable = []limiter.Algorithm{
	limiter.Funnel, limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindow, limiter.SlidingLog,
}

// While time stands still, one process decides exactly as strict, whatever is asked: nobody is denied for permits
// that lie here, and a request is charged as a whole or not at all.
func TestAloneAsStrict(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var policies []*limiter.Policy
		for i := range 3 {
			policies = append(policies, leased(t, limiter.Params{
				Algorithm: rapid.SampledFrom(leasable).Draw(rt, "algorithm"),
				Limit:     rapid.Int64Range(1, 200).Draw(rt, "limit"), Window: time.Duration(i+1) * time.Hour,
			}))
		}
		hit := rapid.Custom(func(rt *rapid.T) limiter.Hit {
			k := rapid.IntRange(0, 2).Draw(rt, "key")
			return limiter.Hit{Key: strconv.Itoa(k), Policy: policies[k], N: rapid.Int64Range(1, 3).Draw(rt, "n")}
		})
		history := rapid.SliceOfN(rapid.SliceOfN(hit, 1, 4), 1, 100).Draw(rt, "requests")
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = unlikeStrict(t, policies, history) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// unlikeStrict plays the requests and says where they are decided otherwise than by the store alone.
func unlikeStrict(t *testing.T, policies []*limiter.Policy, history [][]limiter.Hit) string {
	t.Helper()
	f, strict := newFar(t), newFar(t)
	l := newLeases(t, f)
	for at, hits := range history {
		synctest.Wait() // what a denied request gives back goes its own way
		got, want := take(t, l, hits...), take(t, strict, hits...)
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
		return limiter.Hit{Key: key, Policy: p, N: n}
	}
	for spent := range 10 {
		for n := range int64(10) {
			history := [][]limiter.Hit{{hit("1", b, 1)}}
			for range spent {
				history = append(history, []limiter.Hit{hit("0", a, 1)})
			}
			history = append(history, []limiter.Hit{hit("0", a, n+1), hit("1", b, 1)})
			synctest.Test(t, func(t *testing.T) {
				if wrong := unlikeStrict(t, []*limiter.Policy{a, b}, history); wrong != "" {
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
		var mu sync.Mutex // calls come at the same time
		most := int64(0)
		f.set(func(n *network) {
			n.delay = time.Millisecond
			n.see = func(hits []limiter.Hit, out []limiter.Decision) {
				mu.Lock()
				defer mu.Unlock()
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
			hits := []limiter.Hit{{Key: "k", Policy: p, N: 1}}
			if i%3 == 0 {
				hits = append(hits, limiter.Hit{Key: "other", Policy: other, N: 1})
			}
			wg.Go(func() { take(t, l, hits...) })
			time.Sleep(time.Duration(i%2000) * time.Microsecond) // above the limit and below it
		}
		wg.Wait()
		if share := p.Capacity() / guard.LeaseShare; most > share || most < share/2 {
			t.Errorf("%d were on lease, want at most %d, and not much less", most, share)
		}
	})
}

// Requests that come while permits are on their way wait for them.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		for i := 0; i < 1000 || l.Stats().Permits > 0; i++ {
			take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})
		}
		f.set(func(n *network) { n.delay = time.Millisecond })
		before, start := f.calls.Load(), time.Now()
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 5 {
					take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})
				}
			})
		}
		wg.Wait()
		if calls, took := f.calls.Load()-before, time.Since(start); calls != 1 || took != time.Millisecond {
			t.Errorf("320 requests of 64 callers asked %d times and took %s, want once and 1ms", calls, took)
		}
	})
}

// A caller who has gone does not wait, neither for its own call nor for another's.
func TestCallerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		f.set(func(n *network) { n.delay = 10 * time.Millisecond })
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				start := time.Now()
				var out [1]limiter.Decision
				err := l.Take(ctx, []limiter.Hit{{Key: "k", Policy: p, N: 1}}, out[:])
				if !errors.Is(err, limiter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Take returns %v", err)
				}
				if took := time.Since(start); took != time.Millisecond {
					t.Errorf("Take took %s", took)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		if s := l.Stats(); s.Permits != 0 {
			t.Errorf("%+v: permits taken for callers who have gone are not given back", s)
		}
	})
}

// What is held is spent while the store fails, then its error is told; once it answers again all is as before.
func TestStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		h := limiter.Hit{Key: "k", Policy: p, N: 1}
		admitted := int64(0)
		for range 200 {
			take(t, l, h)
			admitted++
		}
		held := l.Stats().Permits
		if held == 0 {
			t.Fatal("nothing is held")
		}
		f.set(func(n *network) { n.down = true })
		for range held {
			take(t, l, h)
			admitted++
		}
		var out [1]limiter.Decision
		if err := l.Take(t.Context(), []limiter.Hit{h}, out[:]); !errors.Is(err, errDown) {
			t.Errorf("with nothing left, Take returns %v, want the store's error", err)
		}
		time.Sleep(10 * limiter.DefaultLeaseFor)
		f.set(func(n *network) { n.down = false })
		for range 200 {
			take(t, l, h)
			admitted++
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if n := charged(t, f, "k", p); n != admitted {
			t.Errorf("%d charged, want %d", n, admitted)
		}
	})
}

// What is held when the store fails for longer than a lease is lost, and counted: it is not given back twice.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		for range 200 {
			take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})
		}
		held := l.Stats().Permits
		f.set(func(n *network) { n.down = true })
		time.Sleep(10 * limiter.DefaultLeaseFor)
		f.set(func(n *network) { n.down = false })
		time.Sleep(10 * limiter.DefaultLeaseFor)
		if s := l.Stats(); s.Permits != 0 || int64(s.Lost) != held || charged(t, f, "k", p) != 200+held {
			t.Errorf("%+v, %d charged; want %d lost", s, charged(t, f, "k", p), held)
		}
	})
}

// Permits of a rule that changed are given back, not spent, in the call that asks under the new rule.
func TestRuleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		before, after := hourly(t, 100_000), hourly(t, 250)
		for range 200 {
			take(t, l, limiter.Hit{Key: "k", Policy: before, N: 1})
		}
		if l.Stats().Permits < 51 {
			t.Fatalf("%+v: too little is held to tell", l.Stats())
		}
		calls, admitted := f.calls.Load(), 0
		for range 100 {
			if take(t, l, limiter.Hit{Key: "k", Policy: after, N: 1})[0].Allowed {
				admitted++
			}
			if admitted == 1 && f.calls.Load() != calls+1 {
				t.Errorf("%d calls for the first request under the new rule", f.calls.Load()-calls)
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
		a := limiter.Hit{Key: "a", Policy: p, N: 1}
		for range 100 {
			take(t, l, a)
		}
		held := l.Stats().Permits
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
			out := take(t, l, a, limiter.Hit{Key: "b", Policy: few, N: 1, Group: 1})
			if !out[0].Allowed || out[1].Allowed != (i < 5) {
				t.Errorf("request %d: %v", i, out)
			}
			if got, want := l.Stats().Permits, held-min(i+1, 5); got != want {
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

// A cover that comes back after its lease has ended is given back, not spent.
func TestCoverComesBackLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p, few := hourly(t, 100_000), hourly(t, 1)
		a := limiter.Hit{Key: "a", Policy: p, N: 1}
		for range 100 {
			take(t, l, a)
		}
		take(t, l, limiter.Hit{Key: "b", Policy: few, N: 1})
		f.set(func(n *network) { n.delay = 2 * limiter.DefaultLeaseFor })
		if out := take(t, l, a, limiter.Hit{Key: "b", Policy: few, N: 1, Group: 1}); out[1].Allowed {
			t.Error("b has none left")
		}
		f.set(func(n *network) { n.delay = 0 })
		time.Sleep(time.Second)
		if s := l.Stats(); s.Permits != 0 || s.Lost != 0 || charged(t, f, "a", p) != 100 {
			t.Errorf("%+v, %d charged; want the 100 that passed", s, charged(t, f, "a", p))
		}
	})
}

// Permits of a fixed window are neither spent nor given back in the next one.
func TestWindowEnds(t *testing.T) {
	for _, align := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit} {
		synctest.Test(t, func(t *testing.T) {
			f := newFar(t)
			l := newLeases(t, f)
			p := leased(t, limiter.Params{Algorithm: limiter.FixedWindow, Align: align, Limit: 1000, Window: 170 * time.Millisecond})
			var ends time.Time // of the window that the store counts in
			inWindow, charged := 0, int64(0)
			f.set(func(n *network) {
				n.see = func(hits []limiter.Hit, out []limiter.Decision) {
					for i, h := range hits {
						if now := time.Now(); !now.Before(ends) {
							ends, charged, inWindow = now.Add(out[i].ResetAfter), 0, 0
						}
						if out[i].Allowed {
							charged += h.N
						}
						if got := p.Limit() - out[i].Remaining; got != charged {
							t.Errorf("the store counts %d after %v, want %d: something of another window was given back", got, hits, charged)
							charged = got
						}
					}
				}
			})
			for i := range 30_000 {
				if take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})[0].Allowed && time.Now().Before(ends) {
					inWindow++
				}
				if inWindow > 1000 {
					t.Fatalf("%d passed in one window", inWindow)
				}
				if i%2000 < 1800 {
					time.Sleep(20 * time.Microsecond)
				} else {
					time.Sleep(time.Duration(i%7) * 300 * time.Microsecond)
				}
			}
			if s := l.Stats(); s.Answers < 10_000 || s.Returned == 0 {
				t.Errorf("%+v: too little was leased to tell", s)
			}
		})
	}
}

// Permits that were charged just before their window's end are not spent behind it, and not given back.
func TestHotAtAWindowsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := leased(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1000, Window: time.Second})
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(997 * time.Millisecond)))
		for range 10 {
			take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})
		}
		held := l.Stats().Permits
		time.Sleep(4 * time.Millisecond)
		take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})
		time.Sleep(time.Millisecond)
		synctest.Wait()
		s := l.Stats()
		if n := charged(t, f, "k", p); held == 0 || int64(s.Lost) != held || n != 1+s.Permits {
			t.Errorf("%d charged in the next window for one request, %+v; %d were held", n, s, held)
		}
	})
}

// Permits that come later than their lease ends are given back, not spent.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		f.set(func(n *network) { n.delay = 2 * limiter.DefaultLeaseFor })
		for range 20 {
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1}) })
			}
			wg.Wait()
		}
		time.Sleep(time.Second)
		if s := l.Stats(); s.Answers > 0 || s.Taken == 0 || s.Permits != 0 || charged(t, f, "k", p) != 200 {
			t.Errorf("%+v, %d charged: want no answers and 200 charged", s, charged(t, f, "k", p))
		}
	})
}

// Beyond their bound, keys are strict.
func TestManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := leased(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1000, Window: time.Hour})
		for i := range guard.MaxLeases * 5 / 4 {
			for range 4 {
				take(t, l, limiter.Hit{Key: strconv.Itoa(i), Policy: p, N: 1})
			}
		}
		if s := l.Stats(); s.Keys > guard.MaxLeases || s.Keys < guard.MaxLeases*9/10 {
			t.Errorf("%d keys are on lease, want about but at most %d", s.Keys, guard.MaxLeases)
		}
	})
}

// stuck never answers, except when it is told to stop.
type stuck struct{ limiter.Store }

func (stuck) Take(ctx context.Context, _ []limiter.Hit, _ []limiter.Decision) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, ctx.Err())
}

// Close gives back what is on lease, waits for a store that does not answer only for so long, and leaves a store that
// decides as strict.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := guard.NewLeases(f)
		p := hourly(t, 100_000)
		for i := range 3000 {
			take(t, l, limiter.Hit{Key: strconv.Itoa(i % 500), Policy: p, N: 1})
		}
		held, calls := l.Stats().Permits, f.calls.Load()
		if err := l.Close(); err != nil || held == 0 || l.Stats().Permits != 0 || f.calls.Load()-calls > 5 {
			t.Errorf("Close returns %v; of %d permits it leaves %d, in %d calls", err, held, l.Stats().Permits, f.calls.Load()-calls)
		}
		for i := range 500 {
			if n := charged(t, f, strconv.Itoa(i), p); n != 6 {
				t.Fatalf("%d charged, want 6", n)
			}
		}
		before := f.calls.Load()
		for range 10 {
			take(t, l, limiter.Hit{Key: "0", Policy: p, N: 1})
		}
		if n := f.calls.Load() - before; n != 10 {
			t.Errorf("%d calls for 10 requests after Close", n)
		}
	})
}

// Close waits only so long for a store that does not answer.
func TestCloseInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := guard.NewLeases(f)
		p := hourly(t, 100_000)
		for range 200 {
			take(t, l, limiter.Hit{Key: "k", Policy: p, N: 1})
		}
		f.set(func(n *network) { n.Store = stuck{} })
		start := time.Now()
		if err := l.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close returns %v", err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Close took %s", took)
		}
	})
}
