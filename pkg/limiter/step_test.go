package limiter_test

import (
	"fmt"
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

// epoch is 2026-01-01 00:00:00 UTC in microseconds.
const epoch = 1_767_225_600_000_000

var algorithms = limiter.Algorithms()

// eachAlgorithm checks a property of histories under random policies of each algorithm.
func eachAlgorithm(t *testing.T, property func(t *rapid.T, h *walk)) {
	t.Helper()
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			casetest.Check(t, 100, func(t *rapid.T) { property(t, newWalk(t, a)) })
		})
	}
}

// walk is a random history of one counter under a random policy, in time that never steps back.
type walk struct {
	in     limiter.Params
	policy *limiter.Policy
	now    int64
	state  storekit.State
	last   limiter.Decision
}

func newWalk(t *rapid.T, a limiter.Algorithm) *walk {
	w := &walk{in: drawParams(t, a), now: epoch + rapid.Int64Range(0, 10_000_000).Draw(t, "start")}
	var err error
	if w.policy, err = limiter.NewPolicy(w.in); err != nil {
		t.Fatalf("NewPolicy(%+v): %v", w.in, err)
	}
	if w.in.Align == limiter.AlignCalendar {
		w.now = drawTime(t, w.in.TimeZone)
	}
	return w
}

// drawParams draws a policy that NewPolicy accepts: mostly one whose numbers are so small that every edge is met.
func drawParams(t *rapid.T, a limiter.Algorithm) limiter.Params {
	in := limiter.Params{
		Algorithm:    a,
		Limit:        rapid.OneOf(rapid.Int64Range(1, 12), rapid.SampledFrom([]int64{100, 9_973})).Draw(t, "limit"),
		ChargeDenied: rapid.SampledFrom([]limiter.ChargeDenied{0, 1, 2, 3}).Draw(t, "charge_denied"),
		Window: rapid.SampledFrom([]time.Duration{
			time.Millisecond, 6 * time.Millisecond, time.Second, 10 * time.Second, 1_000_003 * time.Microsecond,
			7*time.Second + 12*time.Microsecond, time.Hour, 365 * 24 * time.Hour,
		}).Draw(t, "window"),
	}
	coarse := rapid.IntRange(0, 9).Draw(t, "coarse") == 0 // only fits with coarser ticks
	if in.ChargeDenied == limiter.ChargeFull && (coarse || in.Window > time.Hour) {
		in.ChargeDenied = limiter.ChargeNone // debts would meet the highest level, which is no matter of a definition
	}
	waits := []time.Duration{0, time.Millisecond, 300 * time.Millisecond, time.Hour}
	switch a {
	case limiter.FixedWindow:
		in.Align = rapid.SampledFrom([]limiter.Align{
			limiter.AlignEpoch, limiter.AlignFirstHit,
			limiter.AlignCalendar,
		}).Draw(t, "align")
		if in.Align == limiter.AlignCalendar {
			in.Window = rapid.SampledFrom(calendarWindows).Draw(t, "calendar window")
			in.TimeZone = zone(t, rapid.SampledFrom(hardZones).Draw(t, "zone"))
		}
	case limiter.Funnel, limiter.TokenBucket, limiter.LeakyQueue:
		in.Burst = rapid.Int64Range(0, 20).Draw(t, "burst")
		if coarse {
			in.Limit, in.Window, in.Burst = 999_999_937, time.Hour, rapid.SampledFrom([]int64{100_000, 20_000_000}).Draw(t,
				"burst")
		}
	case limiter.SmoothBursty:
		in.BurstFor = rapid.SampledFrom([]time.Duration{0, time.Millisecond, 250 * time.Millisecond, time.Minute}).Draw(t,
			"burst_for")
		in.MaxWait = rapid.SampledFrom(waits).Draw(t, "max_wait")
		in.MaxCost = rapid.SampledFrom([]int64{0, 1, 7}).Draw(t, "max_cost")
		in.StartsEmpty = rapid.Bool().Draw(t, "initial")
		if coarse {
			in.Limit, in.Window, in.BurstFor, in.MaxWait = 999_999_937, time.Hour, 0, in.MaxWait.Truncate(time.Second)
		}
		if in.Limit > 100 && in.Window%time.Millisecond != 0 {
			in.Window = 1_000_003 * time.Microsecond // longer ones need more than 53 bits
		}
	case limiter.SmoothWarmingUp:
		in.WarmUp = rapid.SampledFrom([]time.Duration{time.Millisecond, 250 * time.Millisecond, 2 * time.Second}).Draw(t,
			"warm_up")
		in.ColdFactor = rapid.SampledFrom([]int64{0, 150, 200, 1000}).Draw(t, "cold_factor")
		in.MaxWait = rapid.SampledFrom(waits).Draw(t, "max_wait")
		in.MaxCost = rapid.SampledFrom([]int64{0, 1, 7}).Draw(t, "max_cost")
		if in.Limit > 100 {
			in.WarmUp = time.Millisecond // where longer ones count on a coarser grid, see TestCostsOfLargeNumbers
			in.Window = min(in.Window, 1_000_003*time.Microsecond)
		}
		if coarse {
			in.Limit, in.Window, in.WarmUp, in.ColdFactor = 999_999_937, time.Hour, 20*time.Second, 0
			in.MaxWait = in.MaxWait.Truncate(time.Second)
		}
	case limiter.SlidingWindow:
		divides := func(s int64) bool { return in.Window.Microseconds()%s == 0 }
		in.Segments = rapid.SampledFrom([]int64{1, 2, 3, 10}).Filter(divides).Draw(t, "segments")
		in.Oldest = rapid.SampledFrom([]limiter.Oldest{0, 1, 2}).Draw(t, "oldest")
		in.SegmentCap = rapid.Int64Range(0, in.Limit).Draw(t, "segment_cap")
	default:
	}
	switch a {
	case limiter.TokenBucket:
		in.StartsEmpty = rapid.Bool().Draw(t, "initial")
		in.RefillsAtOnce = rapid.Bool().Draw(t, "refill")
	case limiter.LeakyQueue:
		in.MaxWait = rapid.SampledFrom(waits).Draw(t, "max_wait")
	default:
	}
	return in
}

// move lets time pass: none, a little, up to two windows, or to within a microsecond of where an answer changes.
func (w *walk) move(t *rapid.T) {
	window := w.in.Window.Microseconds()
	near := rapid.Int64Range(-1, 1).Draw(t, "near")
	var d int64
	switch rapid.IntRange(0, 6).Draw(t, "move") {
	case 0, 1:
	case 2:
		d = rapid.Int64Range(0, 3).Draw(t, "little")
	case 3:
		d = rapid.Int64Range(0, 2*window).Draw(t, "far")
	case 4:
		if w.last.RetryAfter != limiter.Never {
			d = w.last.RetryAfter.Microseconds() + near
		}
	case 5:
		d = w.last.ResetAfter.Microseconds() + near
	case 6: // the edge of a window or a segment
		edge := window / max(1, w.in.Segments)
		d = edge - w.now%edge + near
		if edges := limit.Edges(w.policy, w.now); edges != nil {
			d = edges[2] - w.now + near
		}
	}
	w.now += max(0, d)
}

// cost draws what a hit costs, at least least.
func (w *walk) cost(t *rapid.T, least int64) int64 {
	capacity := min(w.policy.Capacity(), step.MaxCost-1)
	return max(least, rapid.OneOf(
		rapid.Just(int64(1)),
		rapid.Int64Range(-3, 4),
		rapid.SampledFrom([]int64{
			min(w.last.Remaining, capacity), min(w.last.Remaining, capacity) + 1, capacity,
			capacity + 1, -capacity,
		}),
	).Draw(t, "cost"))
}

// step decides a cost.
func (w *walk) step(n int64) limiter.Decision {
	w.state, w.last = storekit.Step(w.policy, w.state, w.now, n)
	return w.last
}

// TestStepAgreesWithItsDefinition runs a step and its oracle side by side, and checks each number of the step against
// the oracle. TestDebtsInALogAreNeverForgotten refunds the debts of a log.
func TestStepAgreesWithItsDefinition(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		o, refunds := newOracle(w.in, w.policy), -w.policy.Capacity()
		isLog := w.in.Algorithm == limiter.SlidingLog || w.in.Algorithm == limiter.Concurrency
		if isLog && w.policy.Params().ChargeDenied == limiter.ChargeFull {
			refunds = 0
		}
		for range rapid.IntRange(1, 40).Draw(t, "hits") {
			w.move(t)
			n := w.cost(t, refunds)
			fits := n < 0 || o.fits(w.now, max(1, n))
			left, goes := left(w, o), goes(w, o, n)
			d := w.step(n)
			if d.Allowed != fits {
				t.Fatalf("%+v: cost %d at %d: allowed is %t where %d are left", w.in, n, w.now, d.Allowed, left)
			}
			switch charge := w.policy.Params().ChargeDenied; {
			case n < 0:
				o.refund(w.now, -n)
			case n == 0:
			case fits, charge == limiter.ChargeFull:
				o.charge(w.now, n)
			case charge == limiter.ChargeRemaining:
				o.charge(w.now, min(n, left))
			default:
				o.charge(w.now, 0)
			}
			if wait := d.Wait.Microseconds(); wait != goes-w.now && (d.Allowed || wait != 0) {
				t.Fatalf("%+v: cost %d at %d: told to wait %s, and it goes on after %d us", w.in, n, w.now, d.Wait, goes-w.now)
			}
			if s, ok := o.(starting); ok && !s.begun(w.now) { // a peek cannot say more than that
				if d.Remaining != left || w.in.Algorithm == limiter.TokenBucket && d.Allowed {
					t.Fatalf("%+v: a peek at %d before the first hit: %+v", w.in, w.now, d)
				}
				continue
			}
			checkTold(t, w, o, n, d)
		}
	})
}

// left returns how many hits of cost 1 would pass, one after another.
func left(w *walk, o oracle) int64 {
	return most(w.policy.Capacity()+1, func(m int64) bool {
		if o, ok := o.(waiting); ok {
			return o.oneByOne(w.now, m)
		}
		return o.fits(w.now, m)
	})
}

// goes returns when a cost of n that is admitted now goes on, by the policy's clock.
func goes(w *walk, o oracle, n int64) int64 {
	if o, ok := o.(waiting); ok && n > 0 {
		return max(w.now, ceilTo(o.goes(w.now, n), w.policy.Core().Args()[1]))
	}
	return w.now
}

// largest is the largest cost that ever fits.
func (w *walk) largest() int64 { return w.policy.Core().Largest }

// most returns the largest m up to bound with holds(m), or 0. holds must be true for every smaller m.
func most(bound int64, holds func(m int64) bool) int64 {
	lo, hi := int64(0), bound
	for lo < hi {
		if mid := lo + (hi-lo+1)/2; holds(mid) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// checkTold asks the oracle, which has taken the hit, whether the decision's numbers are true.
func checkTold(t *rapid.T, w *walk, o oracle, n int64, d limiter.Decision) {
	largest, after := w.largest(), func(d time.Duration) int64 { return w.now + d.Microseconds() }
	if left := left(w, o); d.Remaining != left {
		t.Fatalf("%+v: after cost %d at %d: %d remain, told %d", w.in, n, w.now, left, d.Remaining)
	}
	if clock, ok := o.(windowed); ok {
		if end := clock.ends(w.now); after(d.ResetAfter) != end {
			t.Fatalf("%+v: after cost %d at %d: told that the window ends in %s, want at %d", w.in, n, w.now, d.ResetAfter, end)
		}
	} else if !o.isNew(after(d.ResetAfter)) || d.ResetAfter > 0 && o.isNew(after(d.ResetAfter)-1) {
		t.Fatalf("%+v: after cost %d at %d: told to be as new in %s, and it is not, or earlier", w.in, n, w.now, d.ResetAfter)
	}
	switch need := max(1, n); {
	case d.Allowed:
		if d.RetryAfter != 0 {
			t.Fatalf("%+v: cost %d at %d fits and is told to retry after %s", w.in, n, w.now, d.RetryAfter)
		}
	case d.RetryAfter == limiter.Never:
		if need <= largest {
			t.Fatalf("%+v: cost %d at %d is told never to fit", w.in, n, w.now)
		}
	case need > largest:
		t.Fatalf("%+v: cost %d at %d can never fit, told to retry after %s", w.in, n, w.now, d.RetryAfter)
	case !o.fits(after(d.RetryAfter), need) || o.fits(after(d.RetryAfter)-1, need):
		t.Fatalf("%+v: cost %d at %d: told to retry after %s, and it does not fit then, or it does earlier",
			w.in, n, w.now, d.RetryAfter)
	}
}

// TestDebtsInALogAreNeverForgotten: a log joins entries behind a debt, so that after a refund it may deny a little
// longer than its definition, but never admit what the definition does not.
func TestDebtsInALogAreNeverForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWalk(t, rapid.SampledFrom([]limiter.Algorithm{limiter.SlidingLog, limiter.Concurrency}).Draw(t, "algorithm"))
		o := newOracle(w.in, w.policy)
		for range rapid.IntRange(1, 40).Draw(t, "hits") {
			w.move(t)
			n := w.cost(t, -w.policy.Capacity())
			fits := n < 0 || o.fits(w.now, max(1, n))
			if w.step(n).Allowed && !fits {
				t.Fatalf("%+v: cost %d at %d was admitted", w.in, n, w.now)
			}
			if n < 0 {
				o.refund(w.now, -n)
			} else if w.last.Allowed || w.policy.Params().ChargeDenied == limiter.ChargeFull {
				o.charge(w.now, n)
			}
		}
	})
}

// TestNoWindowAdmitsMore checks a history against Bound, the promise of docs/algorithms.
func TestNoWindowAdmitsMore(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		var admitted []event
		largest := int64(1)
		for range rapid.IntRange(1, 80).Draw(t, "hits") {
			w.move(t)
			n := w.cost(t, 0)
			if d := w.step(n); d.Allowed { // and goes on once it has waited
				admitted, largest = append(admitted, event{w.now + d.Wait.Microseconds(), n}), max(largest, n)
			}
		}
		window, bound := w.in.Window.Microseconds(), limit.Bound(w.policy, largest)
		if w.in.Align == limiter.AlignCalendar { // a day of 23 hours, and both days beside it
			bound = 3 * w.in.Limit
		}
		for _, first := range admitted {
			inside := slices.DeleteFunc(slices.Clone(admitted), func(e event) bool {
				return e.at < first.at ||
					e.at >= first.at+window
			})
			if got := sum(inside, func(event) bool { return true }); got > bound {
				t.Fatalf("%+v: %d hits passed in the window from %d, at most %d may", w.in, got, first.at, bound)
			}
		}
	})
}

// TestForgettingChangesNothing keeps one counter for ever and another for as long as its decision says that it matters.
func TestForgettingChangesNothing(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		kept, forgetful := make([]storekit.Counter, 1), make([]storekit.Counter, 1)
		var expires int64
		for range rapid.IntRange(1, 40).Draw(t, "hits") {
			w.move(t)
			if w.now >= expires {
				forgetful[0].State = storekit.State{}
			}
			hits := []limiter.Hit{{Policy: w.policy, N: w.cost(t, -3)}}
			want, got := make([]limiter.Decision, 1), make([]limiter.Decision, 1)
			storekit.Decide(oneClock(w.now), hits, kept, want)
			storekit.Decide(oneClock(w.now), hits, forgetful, got)
			if got[0] != want[0] {
				t.Fatalf("%+v: forgotten at %d, then cost %d at %d: %+v, want %+v", w.in, expires, hits[0].N, w.now, got[0],
					want[0])
			}
			w.last = want[0]
			for _, slot := range [][]storekit.Counter{kept, forgetful} {
				if slot[0].Changed {
					expires = w.now + slot[0].KeepFor.Microseconds()
					slot[0] = storekit.Counter{State: slot[0].Next}
				}
			}
		}
	})
}

// TestStepLeavesItsStateAlone: an older state does not change, and the same step on it makes the same decision.
func TestStepLeavesItsStateAlone(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		for range rapid.IntRange(1, 30).Draw(t, "hits") {
			w.move(t)
			n, before := w.cost(t, -3), w.state
			list := slices.Clone(before.List)
			first := w.step(n)
			if !slices.Equal(before.List, list) {
				t.Fatalf("%+v: cost %d at %d changed the list that it was given: %v, was %v", w.in, n, w.now, before.List, list)
			}
			left := slices.Clone(w.state.List)
			if _, again := storekit.Step(w.policy, before, w.now, n); again != first {
				t.Fatalf("%+v: cost %d at %d: %+v, and again %+v", w.in, n, w.now, first, again)
			}
			for _, other := range []int64{-1, 2} { // which share no memory with the first
				storekit.Step(w.policy, before, w.now+w.in.Window.Microseconds()/2, other)
			}
			if !slices.Equal(w.state.List, left) {
				t.Fatalf("%+v: another step from %v changed the list that the first one left: %v, was %v", w.in, before,
					w.state.List, left)
			}
		}
	})
}

// TestPeeksAndDenialsWriteNothing, unless the policy charges denials.
func TestPeeksAndDenialsWriteNothing(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		for range rapid.IntRange(1, 30).Draw(t, "hits") {
			w.move(t)
			if w.in.StartsEmpty {
				w.step(1) // the first hit writes, for the bucket fills from then on
			}
			n, before := w.cost(t, 0), w.state
			d := w.step(n)
			writes := n > 0 && (d.Allowed || w.policy.Params().ChargeDenied != limiter.ChargeNone)
			if !writes && fmt.Sprint(w.state) != fmt.Sprint(before) {
				t.Fatalf("%+v: cost %d at %d (%+v) wrote %v over %v", w.in, n, w.now, d, w.state, before)
			}
		}
	})
}
