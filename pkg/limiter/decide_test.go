package limiter_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// mapStore is the simplest store: a map, a lock, and Decide.
type mapStore struct {
	mu     sync.Mutex
	now    func() int64
	states map[string]storekit.State
}

func (s *mapStore) Take(_ context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	slots := make([]storekit.Counter, len(hits))
	if err := storekit.Link(hits, out, slots); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range hits {
		slots[i].State = s.states[hits[i].Key]
	}
	storekit.Decide(oneClock(s.now()), hits, slots, out)
	for i := range slots {
		if slots[i].Changed {
			s.states[hits[i].Key] = slots[i].Next
		}
	}
	return nil
}

// TestContract runs the contract of stores on Decide itself.
func TestContract(t *testing.T) {
	limitertest.Run(t, func(_ *testing.T, clock *limitertest.Clock) limiter.Store {
		return &mapStore{now: clock.Now, states: map[string]storekit.State{}}
	})
}

// hourly are policies of few hits an hour, of each algorithm and ChargeDenied.
func hourly(tb testing.TB) (all []*limiter.Policy) {
	tb.Helper()
	for _, a := range algorithms {
		for c := limiter.ChargeNone; c <= limiter.ChargeFull; c++ {
			p, err := limiter.NewPolicy(limiter.Params{Algorithm: a, Limit: 4, Window: time.Hour, ChargeDenied: c})
			if err != nil {
				tb.Fatal(err)
			}
			all = append(all, p)
		}
	}
	return all
}

// drawHits draws a request of hits on few keys.
func drawHits(t *rapid.T, policies []*limiter.Policy) []limiter.Hit {
	hits := make([]limiter.Hit, rapid.IntRange(1, 5).Draw(t, "hits"))
	for i := range hits {
		k := rapid.IntRange(0, len(policies)-1).Draw(t, "key")
		hits[i] = limiter.Hit{
			Key: strconv.Itoa(k), Policy: policies[k],
			N: rapid.Int64Range(-1, 5).Draw(t, "cost"),
			Mode: rapid.SampledFrom([]limiter.Mode{limiter.Enforce, limiter.Enforce, limiter.Shadow, limiter.Quota}).Draw(t,
				"mode"), Group: i,
		}
		hits[i].Peek = hits[i].N == 0
		if i > 0 && rapid.IntRange(0, 2).Draw(t, "joined") == 0 {
			hits[i].Mode, hits[i].Group = hits[i-1].Mode, hits[i-1].Group
		}
	}
	return hits
}

// load fills slots for the hits.
func load(t *rapid.T, states map[string]storekit.State, hits []limiter.Hit) []storekit.Counter {
	slots := make([]storekit.Counter, len(hits))
	if err := storekit.Link(hits, make([]limiter.Decision, len(hits)), slots); err != nil {
		t.Fatal(err)
	}
	for i := range hits {
		slots[i].State = states[hits[i].Key]
	}
	return slots
}

// spending returns the policy by which an admitted request charges a Quota hit that does not fit: the whole cost with
// ChargeFull, nothing for Concurrency, else what is left.
func spending(p *limiter.Policy) *limiter.Policy {
	if p.Params().ChargeDenied == limiter.ChargeFull && p.Algorithm() != limiter.Concurrency {
		return p
	}
	in := limiter.Params{
		Algorithm: p.Algorithm(), Limit: p.Limit(), Window: p.Window(),
		ChargeDenied: limiter.ChargeRemaining,
	}
	if p.Algorithm() == limiter.Concurrency {
		in.ChargeDenied = limiter.ChargeNone
	}
	p, err := limiter.NewPolicy(in)
	if err != nil {
		panic(err)
	}
	return p
}

// TestAdmittedHitsAreCharged: an admitted request charges the hits that fit, one after another, and then its quotas
// that are over.
func TestAdmittedHitsAreCharged(t *testing.T) {
	policies := hourly(t)
	rapid.Check(t, func(t *rapid.T) {
		states := map[string]storekit.State{}
		for range rapid.IntRange(1, 15).Draw(t, "requests") {
			hits := drawHits(t, policies)
			slots, out := load(t, states, hits), make([]limiter.Decision, len(hits))
			if !storekit.Decide(oneClock(epoch), hits, slots, out) {
				continue
			}
			for i, h := range hits {
				if next, d := storekit.Step(h.Policy, states[h.Key], epoch, h.N); d.Allowed || h.Mode == limiter.Shadow {
					if d != out[i] {
						t.Fatalf("hit %d of %+v: %+v, alone %+v", i, hits, out[i], d)
					}
					states[h.Key] = next
				}
			}
			for i, h := range hits {
				if out[i].Allowed || h.Mode != limiter.Quota {
					continue
				}
				next, d := storekit.Step(spending(h.Policy), states[h.Key], epoch, h.N)
				if out[i].Allowed = d.Allowed; d != out[i] && !d.Allowed {
					t.Fatalf("hit %d of %+v, a quota that is over: %+v, alone %+v", i, hits, out[i], d)
				}
				states[h.Key] = next
			}
			for i, h := range hits {
				if slots[i].Changed && fmt.Sprint(slots[i].Next) != fmt.Sprint(states[h.Key]) {
					t.Fatalf("%s after %+v: %+v, want %+v", h.Key, hits, slots[i].Next, states[h.Key])
				}
			}
		}
	})
}

// TestSingleHit: the shortcut for one Enforce hit decides as the general code does for one Quota hit.
func TestSingleHit(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		for range rapid.IntRange(1, 30).Draw(t, "hits") {
			w.move(t)
			hit := limiter.Hit{Policy: w.policy, N: w.cost(t, -3)}
			hit.Peek = hit.N == 0
			short, long := make([]storekit.Counter, 1), make([]storekit.Counter, 1)
			short[0].State, long[0].State = w.state, w.state
			got, want := make([]limiter.Decision, 1), make([]limiter.Decision, 1)
			if err := storekit.Link([]limiter.Hit{hit}, want, long); err != nil {
				t.Fatal(err)
			}
			admitted := storekit.Decide(oneClock(w.now), []limiter.Hit{hit}, short, got)
			hit.Mode = limiter.Quota
			if storekit.Decide(oneClock(w.now), []limiter.Hit{hit}, long, want) != admitted || got[0] != want[0] {
				t.Fatalf("%+v: cost %d at %d: %+v, the long way %+v", w.in, hit.N, w.now, got[0], want[0])
			}
			a, b := &short[0], &long[0]
			if fmt.Sprint(a.Next, a.Changed, a.KeepFor) != fmt.Sprint(b.Next, b.Changed, b.KeepFor) {
				t.Fatalf("%+v: cost %d at %d leaves %+v, the long way %+v", w.in, hit.N, w.now, short, long)
			}
			w.last = got[0]
			if short[0].Changed {
				w.state = short[0].Next
			}
		}
	})
}

// oneClock returns the Clocks of a store with one clock.
func oneClock(now int64) storekit.Clocks { return storekit.Clocks{Steady: now, Wall: now} }
