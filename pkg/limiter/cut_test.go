package limiter_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestCorrectedClockGrantsNothingTwice checks the bound of an algorithm by a clock that stands still while the store's
// clock is set back: no time counts twice. A clock that is set back may begin a window or segment again.
func TestCorrectedClockGrantsNothingTwice(t *testing.T) {
	eachAlgorithm(t, func(t *rapid.T, w *walk) {
		var admitted []event
		var elapsed int64
		var back []int64
		largest, window := int64(1), w.in.Window.Microseconds()
		for range rapid.IntRange(1, 80).Draw(t, "hits") {
			if rapid.IntRange(0, 4).Draw(t, "set") == 0 {
				w.now -= rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, min(3*window+10, 1<<45))).Draw(t, "back")
				back = append(back, elapsed)
			}
			before := w.now
			w.move(t)
			elapsed += w.now - before
			n := w.cost(t, 0)
			if d := w.step(n); d.Allowed {
				admitted, largest = append(admitted, event{elapsed + d.Wait.Microseconds(), n}), max(largest, n)
			}
		}
		bound := limit.Bound(w.policy, largest)
		if w.in.Align == limiter.AlignCalendar { // a day of 23 hours, and the days before and after it
			bound = 3 * w.in.Limit
		}
		begins := w.policy.Core().OnWall || w.in.Algorithm == limiter.SlidingWindow && w.in.Oldest == limiter.OldestNone
		for _, first := range admitted {
			most, got := bound, int64(0)
			for _, at := range back {
				if begins && first.at <= at && at < first.at+window {
					most += w.in.Limit
				}
			}
			for _, e := range admitted {
				if first.at <= e.at && e.at < first.at+window {
					got += e.n
				}
			}
			if got > most {
				t.Fatalf("%+v: %d hits passed in the window from %d, at most %d may", w.in, got, first.at, most)
			}
		}
	})
}

// TestEditsGrantNothingTwice edits the rate, window and burst of a funnel or token bucket again and again. Each hit
// costs the time in which it leaks. All hits together never cost more than the largest policy holds, the time that has
// passed, and what was cut when a hit was admitted. A denied hit changes nothing.
func TestEditsGrantNothingTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom([]limiter.Algorithm{limiter.Funnel, limiter.TokenBucket}).Draw(t, "algorithm")
		var all []*limiter.Policy
		var holds, elapsed, taken, hits float64
		per := func(p *limiter.Policy) float64 { return float64(p.Window().Microseconds()) / float64(p.Limit()) }
		for range 4 {
			p := mustPolicy(t, limiter.Params{
				Algorithm: a, Limit: rapid.Int64Range(1, 12).Draw(t, "limit"),
				Burst:  rapid.Int64Range(1, 20).Draw(t, "burst"),
				Window: rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "window"),
			})
			all, holds = append(all, p), max(holds, per(p)*float64(p.Capacity()))
		}
		var s storekit.State
		now, written := int64(epoch), int64(epoch)
		for range rapid.IntRange(1, 60).Draw(t, "hits") {
			p := rapid.SampledFrom(all).Draw(t, "policy")
			d := rapid.OneOf(rapid.Int64Range(0, 1e6), rapid.Int64Range(0, 1e9)).Draw(t, "moves")
			now, elapsed = now+d, elapsed+float64(d)
			full := per(p)*float64(p.Capacity()) - float64(now-written) // of a state that was full when it was written
			n := rapid.Int64Range(1, 20).Draw(t, "cost")
			next, got := storekit.Step(p, s, now, n)
			if got.Allowed {
				holds += max(0, float64(s.A-now)*1.000001-max(0, full)) // the state stores this time with limited precision
				taken, hits, written = taken+per(p)*float64(n), hits+1, now
			}
			s = next
			if taken > holds+elapsed+2*hits {
				t.Fatalf("hits took %.0f us, where %.0f are held at most and %.0f passed", taken, holds, elapsed)
			}
		}
	})
}

// TestNoWaitIsLongerThanThePolicysOwn: a rule reads a state that another rule left, perhaps after the clock was set
// back. RetryAfter is never longer than this rule alone could make it.
func TestNoWaitIsLongerThanThePolicysOwn(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w, next := newWalk(t, a), newWalk(t, a)
				if w.in.RefillsAtOnce != next.in.RefillsAtOnce {
					t.Skip("another counter")
				}
				for range rapid.IntRange(1, 20).Draw(t, "hits") {
					w.move(t)
					w.step(w.cost(t, 0))
				}
				next.state, next.now = w.state, w.now-rapid.Int64Range(0, (2*365*24*time.Hour).Microseconds()).Draw(t, "back")
				n := next.cost(t, 0)
				d := next.step(n)
				if own := ownLongest(next, max(1, n)); !d.Allowed && d.RetryAfter != limiter.Never && d.RetryAfter > own {
					t.Fatalf("%+v after %+v: cost %d is told to retry after %s, longer than %s", next.in, w.in, n, d.RetryAfter, own)
				}
			})
		})
	}
}

// ownLongest returns the longest time that the policy itself can make a cost of n wait.
func ownLongest(w *walk, n int64) time.Duration {
	in := w.policy.Params()
	const day, tick = 24 * time.Hour, 2 * time.Second // two of the longest ticks, to which prices are rounded
	window, hit := in.Window.Seconds(), in.Window.Seconds()/float64(in.Limit)
	longest, debt := hit*float64(n), max(day, in.Window).Seconds()
	switch in.Algorithm {
	case limiter.FixedWindow:
		longest, debt = window, 0
		if in.Align == limiter.AlignCalendar {
			longest = 2 * window
		}
	case limiter.SlidingWindow:
		longest, debt = window+window/float64(in.Segments), 0
	case limiter.SlidingLog, limiter.Concurrency:
		longest, debt = window, 0
	case limiter.SmoothBursty:
		longest, debt = hit*float64(in.MaxCost), 0
	case limiter.SmoothWarmingUp:
		factor := float64(in.ColdFactor) / 100
		longest, debt = hit*float64(in.MaxCost)+in.WarmUp.Seconds()*(factor-1)/(factor+1), 0
	case limiter.TokenBucket:
		if in.RefillsAtOnce {
			longest, debt = window*float64((n+in.Limit-1)/in.Limit), debt+window
		}
	default:
	}
	if in.ChargeDenied == limiter.ChargeFull {
		longest += debt
	}
	if longest > limiter.Never.Seconds()/2 {
		return limiter.Never
	}
	return time.Duration(longest*float64(time.Second)) + tick
}

// TestLongestWaits has the formulas of docs/algorithms/rule-changes.md: a rule that takes over the fullest state of an
// extreme rule, by a clock that may have been set back two years, announces no longer wait than its own fullest state
// causes by the algorithm's definition.
func TestLongestWaits(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	for _, tc := range []struct {
		in         limiter.Params
		none, full time.Duration // wait of one hit, by ChargeDenied
	}{
		{limiter.Params{Algorithm: limiter.FixedWindow}, time.Minute, time.Minute},
		{limiter.Params{Algorithm: limiter.SlidingWindow}, 66 * time.Second, 66 * time.Second},
		{limiter.Params{Algorithm: limiter.SlidingLog}, time.Minute, time.Minute},
		{limiter.Params{Algorithm: limiter.Concurrency}, time.Minute, time.Minute},
		{limiter.Params{Algorithm: limiter.Funnel, Burst: 12}, 10 * time.Second, 10*time.Second + day},
		{limiter.Params{Algorithm: limiter.TokenBucket, Burst: 12}, 10 * time.Second, 10*time.Second + day},
		{limiter.Params{Algorithm: limiter.TokenBucket, RefillsAtOnce: true}, time.Minute, time.Minute + day},
		{limiter.Params{Algorithm: limiter.LeakyQueue}, 10 * time.Second, 10*time.Second + day},
		{limiter.Params{Algorithm: limiter.SmoothBursty, StartsEmpty: true}, time.Hour, time.Hour},
		{limiter.Params{Algorithm: limiter.SmoothWarmingUp}, time.Hour + 5*time.Second, time.Hour + 5*time.Second},
	} {
		for charge, want := range map[limiter.ChargeDenied]time.Duration{
			limiter.ChargeNone: tc.none, limiter.ChargeFull: tc.full,
		} {
			in := tc.in
			in.Limit, in.Window, in.ChargeDenied = 6, time.Minute, charge
			p := mustPolicy(t, in)
			o := newOracle(in, p)
			for largest := p.Core().Largest; o.fits(epoch, largest); {
				o.charge(epoch, largest)
			}
			if charge == limiter.ChargeFull {
				o.charge(epoch, limiter.MaxHits)
			}
			own := 1 + most(2*day.Microseconds(), func(us int64) bool { return !o.fits(epoch+us, 1) })
			want += time.Microsecond // to which prices are rounded
			if got := time.Duration(own) * time.Microsecond; got > want || got < want*9/10 {
				t.Errorf("%+v: the longest wait by the definition is %s, want %s", in, got, want)
			}
			for _, before := range []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeFull} {
				for _, back := range []time.Duration{0, 2 * year} {
					old := tc.in
					old.Limit, old.Window, old.ChargeDenied = 1, year, before
					extreme, s := mustPolicy(t, old), storekit.State{}
					for _, n := range []int64{extreme.Core().Largest, limiter.MaxHits, limiter.MaxHits} {
						s, _ = storekit.Step(extreme, s, epoch, n)
					}
					_, d := storekit.Step(p, s, epoch-back.Microseconds(), 1)
					if d.RetryAfter > want {
						t.Errorf("%+v after %+v, %s back: retry after %s, longer than %s", in, old, back, d.RetryAfter, want)
					}
				}
			}
		}
	}
}

// isBehind reports whether the clock is a moment behind the start of the state's window or segment. Until the clock
// reaches that start, no time passes, and decisions count from that start.
func isBehind(w *walk) bool {
	switch w.in.Algorithm {
	case limiter.FixedWindow:
		return w.state.A > w.now
	case limiter.SlidingWindow:
		return w.state.A*w.state.B > w.now
	default:
		return false
	}
}

// TestAClockSteppingToAndFro steps the clock over the start of a window, which must grant that window only once.
func TestAClockSteppingToAndFro(t *testing.T) {
	for _, a := range []limiter.Algorithm{limiter.FixedWindow, limiter.SlidingWindow} {
		p := mustPolicy(t, limiter.Params{Algorithm: a, Limit: 10, Window: time.Minute})
		var s storekit.State
		var d limiter.Decision
		passed := int64(0)
		for i := range int64(100) {
			now := epoch + time.Minute.Microseconds() - i%2 // epoch is the begin of a minute
			if s, d = storekit.Step(p, s, now, 1); d.Allowed {
				passed++
			} else if d.RetryAfter > time.Minute+6*time.Second {
				t.Errorf("%s: told to retry after %s", a, d.RetryAfter)
			}
		}
		if passed != 10 {
			t.Errorf("%s: %d passed around one minute's begin, want 10", a, passed)
		}
	}
}

// TestTimesAreTrueWhateverTheStateIs: a rule reads a state that another rule left, perhaps after the clock stepped
// back. RetryAfter and ResetAfter are exact to the microsecond for the state that its step leaves.
func TestTimesAreTrueWhateverTheStateIs(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w, next := newWalk(t, a), newWalk(t, a)
				if w.in.RefillsAtOnce != next.in.RefillsAtOnce || next.in.Align == limiter.AlignCalendar { // see ADR 0004
					t.Skip("another counter, or windows that need not be known")
				}
				for range rapid.IntRange(1, 10).Draw(t, "hits") {
					w.move(t)
					w.step(w.cost(t, -3))
				}
				if rapid.Bool().Draw(t, "debt") {
					w.step(limiter.MaxHits)
				}
				next.state, next.last = w.state, w.last
				next.now = w.now - rapid.OneOf(rapid.Just(int64(0)),
					rapid.Int64Range(0, min(3*w.in.Window.Microseconds(), (365*24*time.Hour).Microseconds()))).Draw(t, "back")
				for range rapid.IntRange(1, 4).Draw(t, "hits") {
					n := next.cost(t, -3)
					if next.in.StartsEmpty {
						n = max(1, n) // a peek does not begin a bucket
					}
					next.step(n)
					checkTimes(t, next, n)
					next.move(t)
				}
			})
		})
	}
}

// checkTimes checks the times of the last decision against the state that a cost of n left.
func checkTimes(t *rapid.T, w *walk, n int64) {
	after := func(d time.Duration, n int64) limiter.Decision {
		_, next := storekit.Step(w.policy, w.state, w.now+d.Microseconds(), n)
		return next
	}
	d, need := w.last, max(1, n)
	if d.RetryAfter == limiter.Never && need <= w.largest() {
		t.Fatalf("%+v: cost %d at %d is told never to fit %v", w.in, n, w.now, w.state)
	}
	if wait := d.RetryAfter; !d.Allowed && wait != limiter.Never && !isBehind(w) {
		if early, then := after(wait-time.Microsecond, need), after(wait, need); early.Allowed || !then.Allowed {
			t.Fatalf("%+v: cost %d at %d leaves %v, told to retry after %s: then %+v, a microsecond earlier %+v",
				w.in, n, w.now, w.state, wait, then, early)
		}
	}
	asNew := w.policy.Capacity()
	if !w.in.StartsEmpty {
		_, look := storekit.Step(w.policy, storekit.State{}, w.now, 0)
		asNew = look.Remaining
	}
	window := w.in.Algorithm == limiter.FixedWindow // whose ResetAfter is the window's end in any case
	if then := after(d.ResetAfter, 0); !window && then.ResetAfter != 0 || then.Remaining != asNew {
		t.Fatalf("%+v: cost %d at %d leaves %v, told to be as new in %s: then %+v", w.in, n, w.now, w.state, d.ResetAfter,
			then)
	}
	begun := !window || w.in.Align == limiter.AlignEpoch || after(0, 0).Remaining < asNew
	if early := after(d.ResetAfter-time.Microsecond, 0); begun && d.ResetAfter > 0 &&
		early.ResetAfter != time.Microsecond {
		t.Fatalf("%+v: cost %d at %d leaves %v, told to be as new in %s: a microsecond earlier %+v",
			w.in, n, w.now, w.state, d.ResetAfter, early)
	}
}
