package limiter_test

import (
	"errors"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// charge is a charge of n hits, under a policy with a Reserve, at the time at. gone is the TakenAt of its decision.
type charge struct{ at, n, gone int64 }

// takingBack is an oracle that returns n hits of a charge that still counts at now.
type takingBack interface {
	oracle
	takeBack(now, n int64, of charge)
}

func (o *fixedOracle) takeBack(now, n int64, of charge) {
	if o.current(now)(event{at: of.at}) {
		o.refund(now, n)
	}
}

func (o *calendarOracle) takeBack(now, n int64, of charge) {
	if o.current(now)(event{at: of.at}) {
		o.refund(now, n)
	}
}

func (o *segmentOracle) takeBack(now, n int64, of charge) {
	o.events = takeNewest(o.events, n, func(e event) bool {
		return o.age(now, e) <= o.segments && o.age(now, e) >= o.age(now, event{at: of.at})
	})
}

func (o *logOracle) takeBack(_, n int64, of charge) {
	o.events = takeNewest(o.events, n, func(e event) bool { return e.at == of.at })
}

// unleaked returns how many of n hits have not leaked at now, if they are the last hits that leak before gone.
func unleaked(rate *big.Rat, tick, now, n, gone int64) *big.Rat {
	return earlier(rat(n), times(rate, gone-gone%tick-(now-now%tick)))
}

func (o *funnelOracle) takeBack(now, n int64, of charge) {
	o.set(now, new(big.Rat).Sub(o.at(now), unleaked(o.rate, o.tick, now, n, of.gone)))
}

func (o *bucketOracle) takeBack(now, n int64, of charge) {
	tokens := new(big.Rat).Add(o.at(now), unleaked(o.rate, o.tick, now, n, of.gone))
	o.tokens, o.last = earlier(tokens, o.capacity), now-now%o.tick
}

// reserve gives the walk's policy a random Reserve, and reports whether it can have one.
func (w *walk) reserve(t *rapid.T) bool {
	if !w.in.Algorithm.Kind().Is(step.Prepayable) || w.in.StartsEmpty || w.in.RefillsAtOnce {
		return false
	}
	most := w.policy.Capacity()
	w.in.ChargeDenied = limiter.ChargeNone
	w.in.Reserve = rapid.SampledFrom([]int64{1, (most + 1) / 2, most}).Draw(t, "reserve")
	w.policy = mustPolicy(t, w.in)
	return true
}

// owing returns a policy of the same counter that always charges: descriptors.Limit.Ends.
func owing(t *rapid.T, in limiter.Params) *limiter.Policy {
	in.ChargeDenied = limiter.ChargeFull
	return mustPolicy(t, in)
}

// decide decides a hit with storekit.Decide.
func (w *walk) decide(t *rapid.T, h limiter.Hit) limiter.Decision {
	hits, out, counters := []limiter.Hit{h}, make([]limiter.Decision, 1), make([]storekit.Counter, 1)
	if err := storekit.Link(hits, out, counters); err != nil {
		t.Fatal(err)
	}
	counters[0].State = w.state
	storekit.Decide(oneClock(w.now), hits, counters, out)
	if counters[0].Changed {
		w.state = counters[0].Next
	}
	w.last = out[0]
	return out[0]
}

// TestChargesAreTakenBack charges, takes charges back, and charges more than fits, side by side with an oracle.
func TestChargesAreTakenBack(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		if !w.reserve(t) {
			return
		}
		o, ok := newOracle(w.in, w.policy).(takingBack)
		if !ok {
			t.Fatalf("the oracle of %s takes no charge back", w.in.Algorithm)
		}
		ends := owing(t, w.in)
		owes := w.in.Algorithm != limiter.SlidingLog && w.in.Window <= time.Hour && w.in.Limit < 999_999_937
		var charges []charge
		for range rapid.IntRange(1, 40).Draw(t, "hits") {
			w.move(t)
			switch op := rapid.IntRange(0, 3).Draw(t, "op"); {
			case op == 0 && len(charges) > 0:
				c := rapid.SampledFrom(charges).Draw(t, "charge")
				n := rapid.Int64Range(1, c.n).Draw(t, "back")
				d := w.decide(t, limiter.Hit{Policy: w.policy, N: -n, TakenAt: c.gone, Mode: limiter.Shadow})
				if w.now < c.gone {
					o.takeBack(w.now, n, c)
				}
				checkTold(t, w, o, -n, d)
			case op == 1 && owes && (!w.policy.Core().Is(step.IsRate) || o.fits(w.now, 1)): // within the largest debt
				n := rapid.Int64Range(1, w.policy.Capacity()).Draw(t, "more")
				o.charge(w.now, n)
				checkTold(t, w, o, n, w.decide(t, limiter.Hit{Policy: ends, N: n, Mode: limiter.Shadow}))
			default:
				n := w.cost(t, 1)
				fits := o.fits(w.now, n)
				d := w.decide(t, limiter.Hit{Policy: w.policy, N: n})
				if d.Allowed != fits || (d.TakenAt != 0) != fits || fits && d.TakenAt != w.now+d.ResetAfter.Microseconds() {
					t.Fatalf("%+v: cost %d at %d: fits is %t: %+v", w.in, n, w.now, fits, d)
				}
				if fits {
					o.charge(w.now, n)
					charges = append(charges, charge{w.now, n, d.TakenAt})
				}
				checkTold(t, w, o, n, d)
			}
		}
	})
}

// TestReservationsKeepTheirBound plays requests whose ends are late, lost, sent twice, or in another order, and lost
// counters. It draws by itself, because rapid prefers small numbers. casetest.Ledger has the bound.
func TestReservationsKeepTheirBound(t *testing.T) {
	casetest.WithoutRace(t)
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		if !w.reserve(t) || w.in.Align == limiter.AlignCalendar {
			return
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 40 {
			w.state, w.last = storekit.State{}, limiter.Decision{}
			w.playReservations(t, rng)
		}
	})
}

func (w *walk) playReservations(t *rapid.T, rng *rand.Rand) {
	ends, ledger := owing(t, w.in), casetest.NewLedger(w.policy)
	window, alone, rarely := w.in.Window.Microseconds(), rng.IntN(2) == 0, 2*rng.IntN(2)
	var open, ended []*casetest.Request
	end := func(all *[]*casetest.Request) {
		if len(*all) == 0 {
			return
		}
		i := rng.IntN(len(*all))
		r := (*all)[i]
		*all = slices.Delete(*all, i, i+1)
		ended = append(ended, r)
		ledger.End(r, w.now)
		switch more := r.Real - r.Charged; {
		case more < 0:
			w.decide(t, limiter.Hit{Policy: w.policy, N: more, TakenAt: r.Gone, Mode: limiter.Shadow})
		case more > 0:
			w.decide(t, limiter.Hit{Policy: ends, N: more, Mode: limiter.Shadow})
		}
	}
	for range 100 {
		w.now += []int64{
			0, 0, 0, 1, window / 10, window / 2, window, rng.Int64N(window), window / max(1, w.in.Segments),
			w.last.ResetAfter.Microseconds(),
		}[rng.IntN(10)]
		switch op := rng.IntN(100); {
		case op < rarely:
			w.state = storekit.State{}
			ledger.Lose(w.now)
		case op < 2*rarely: // the end is sent twice
			end(&ended)
		case op < 50:
			end(&open)
		default:
			n := []int64{1, max(1, min(w.in.Reserve, w.last.Remaining)), w.in.Reserve}[rng.IntN(3)]
			spent := []int64{0, 0, 0, n, n, n, n, n / 2, n + rng.Int64N(w.policy.Capacity())}[rng.IntN(9)]
			if alone && (spent > n || slices.ContainsFunc(open, func(r *casetest.Request) bool { return r.Real < r.Charged })) {
				spent = n
			}
			if d := w.decide(t, limiter.Hit{Policy: w.policy, N: n}); d.Allowed {
				open = append(open, ledger.Start(w.now, n, spent, d.TakenAt))
			}
		}
	}
	if err := ledger.Check(); err != nil {
		t.Fatalf("%+v: %v", w.in, err)
	}
}

// TestOwesReturnsReservedCharges: after the hits of Owes, a request has charged nothing but hits without a Reserve,
// whatever its modes, and the TakenAt of a decision says what was charged.
func TestOwesReturnsReservedCharges(t *testing.T) {
	var policies []*limiter.Policy
	for _, a := range algorithms {
		if p, err := limiter.NewPolicy(limiter.Params{Algorithm: a, Limit: 4, Window: time.Hour, Reserve: 4}); err == nil {
			policies = append(policies, p)
		}
	}
	if len(policies) != 5 {
		t.Fatalf("%d algorithms take a Reserve, want 5", len(policies))
	}
	rapid.Check(t, func(t *rapid.T) {
		store := &mapStore{now: func() int64 { return epoch }, states: map[string]storekit.State{}}
		take := func(hits []limiter.Hit) []limiter.Decision {
			out := make([]limiter.Decision, len(hits))
			if err := store.Take(t.Context(), hits, out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		for range 3 { // until most hits no longer fit
			take(costly(drawHits(t, policies)))
		}
		hits := costly(drawHits(t, policies))
		hits[0].ByItself = rapid.Bool().Draw(t, "by itself")
		peeks := costly(drawHits(t, policies))
		for i := range peeks {
			peeks[i].N, peeks[i].Peek = 0, true
		}
		before, out := take(peeks), take(hits)
		if owed := limit.Owes(nil, hits, out, true); len(owed) > 0 {
			if owed[0].TakenAt == 0 || owed[0].OrOldest || owed[0].Mode != limiter.Enforce {
				t.Fatalf("owes %+v", owed[0])
			}
			take(owed)
		}
		for i, after := range take(peeks) {
			if after.Remaining != before[i].Remaining || after.TakenAt != 0 {
				t.Fatalf("%+v: then %s: %+v, before %+v", hits, peeks[i].Key, after, before[i])
			}
		}
	})
}

// Even in 2112, a store accepts the refund of a charge by its TakenAt.
func TestTakenAtIsBounded(t *testing.T) {
	p := mustPolicy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 9, Window: time.Hour, Reserve: 9})
	hits, out, counters := []limiter.Hit{{Policy: p, N: 5}}, make([]limiter.Decision, 1), make([]storekit.Counter, 1)
	storekit.Decide(oneClock(step.Horizon-1000), hits, counters, out)
	if out[0].TakenAt != step.Horizon-1 {
		t.Errorf("the charge counts until %d", out[0].TakenAt)
	}
	hits[0].N, hits[0].TakenAt = -5, out[0].TakenAt
	if err := storekit.Check(hits, out); err != nil {
		t.Error(err)
	}
	hits[0].TakenAt++
	if err := storekit.Check(hits, out); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// costly returns the hits with costs of at least 1, and with one mode per key.
func costly(hits []limiter.Hit) []limiter.Hit {
	for i := range hits {
		hits[i].N, hits[i].Peek = max(1, hits[i].N), false
		first := slices.IndexFunc(hits, func(h limiter.Hit) bool { return h.Key == hits[i].Key })
		hits[i].Mode = hits[first].Mode
	}
	return hits
}

// TestReserve: with a Reserve, a denied request is not charged, and a limit of 0 has none.
func TestReserve(t *testing.T) {
	in := limiter.Params{Algorithm: limiter.FixedWindow, Limit: 9, Window: time.Hour, Reserve: 9}
	if p := mustPolicy(t, in); p.Params().ChargeDenied != limiter.ChargeNone || p.Core().Reserve != 9 {
		t.Errorf("%+v, reserve %d", p.Params(), p.Core().Reserve)
	}
	in.Limit, in.DenyAll = 0, true
	if p := mustPolicy(t, in); p.Params().Reserve != 0 || p.Core().Reserve != 0 {
		t.Errorf("a limit of 0 reserves %d", p.Core().Reserve)
	}
}

// TestChargesOfTheWallClock: the windows of a store with two clocks end by the wall clock, which is behind here.
func TestChargesOfTheWallClock(t *testing.T) {
	p := mustPolicy(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 9, Window: time.Hour, Reserve: 9})
	clocks := storekit.Clocks{Steady: epoch + 7_200_000_000, Wall: epoch}
	var counters [1]storekit.Counter
	var out [1]limiter.Decision
	storekit.Decide(clocks, []limiter.Hit{{Policy: p, N: 5}}, counters[:], out[:])
	if out[0].TakenAt != epoch+3_600_000_000 {
		t.Errorf("the charge counts until %d, want the end of the window", out[0].TakenAt)
	}
	storekit.Decide(clocks, []limiter.Hit{{Policy: p, N: -3, TakenAt: out[0].TakenAt}}, counters[:], out[:])
	if out[0].Remaining != 7 {
		t.Errorf("%d remain, want 7", out[0].Remaining)
	}
}
