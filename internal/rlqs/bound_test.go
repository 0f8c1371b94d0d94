package rlqs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// algorithms are those that a keeper can assign.
var algorithms = []limiter.Algorithm{
	limiter.Funnel, limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindow, limiter.SlidingLog,
}

// Nothing passes that was not charged before, but for a new bucket's first request and what comes with it; and in no
// span of time passes more than the limit allows, and what was charged ahead when it began.
func TestBound(t *testing.T) {
	casetest.WithoutRace(t)
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			passed, highest, aheads := int64(0), 0.0, 0.0
			casetest.Check(t, 6, func(rt *rapid.T) {
				p := policyOf(t, limiter.Params{
					Algorithm: a, Limit: rapid.SampledFrom([]int64{50, 300, 1000}).Draw(rt, "limit"),
					Window: drawWindow(rt, a),
					Oldest: oldest(a), ChargeDenied: limiter.ChargeNone,
				})
				seed := rapid.Uint64().Draw(rt, "seed")
				delay := rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond}).Draw(rt, "delay")
				beside := rapid.SampledFrom([]float64{0, 0.3, 2}).Draw(rt, "beside")
				var err error
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, one(p), 5)
					defer f.close()
					f.denyUnassigned = true
					err = f.playRandom(rand.New(rand.NewPCG(seed, 1)), p, delay, beside, 40*time.Second)
					passed += f.passed
					most := f.most(p.Window(), 0)
					ahead := float64(p.Capacity())/burstPart + 5 + 2*rateOf(p)*(tick+2*aheadOf).Seconds()
					uncovered := f.passed - f.covered
					if err == nil && float64(most) > float64(limit.Bound(p, 1))+ahead+float64(uncovered) {
						err = fmt.Errorf("%d passed in a window, want at most %d and %.0f that were charged ahead", most, limit.Bound(p, 1), ahead)
					}
					leaks := a == limiter.Funnel || a == limiter.TokenBucket // others get back what was charged
					stated := float64(p.Capacity())/burstPart + float64(len(f.envoys)) + rateOf(p)*(tick+aheadOf).Seconds()
					if most := float64(f.mostAhead); err == nil && leaks && most > stated {
						err = fmt.Errorf("%.0f passed in a span beyond what was charged in it, want at most %.0f", most, stated)
					}
					aheads = max(aheads, float64(f.mostAhead)/stated)
					highest = max(highest, float64(most)/float64(limit.Bound(p, 1)))
				})
				if err != nil {
					rt.Fatal(err)
				}
			})
			t.Logf("%d passed, the most in a window was %.2f of the limit's bound; charged ahead were %.2f of what may be",
				passed, highest, aheads)
		})
	}
}

// oldest is the form of a sliding window that is never exceeded.
func oldest(a limiter.Algorithm) limiter.Oldest {
	if a == limiter.SlidingWindow {
		return limiter.OldestFull
	}
	return limiter.OldestProportional
}

// playRandom has demand jump, streams break and come again, or requests come to the same counter beside the Envoys: a
// broken stream's rate cannot be lowered for them. It returns an error as soon as more has passed than was charged.
func (f *fleet) playRandom(
	r *rand.Rand, p *limiter.Policy, delay time.Duration, beside float64, long time.Duration,
) error {
	rates := make([]float64, len(f.envoys))
	for i, e := range f.envoys {
		e.delay = delay
		e.demand["b"] = func(time.Duration) float64 { return rates[i] }
	}
	for until := f.now() + long; f.now() < until; {
		for i := range rates {
			if r.IntN(3) == 0 {
				rates[i] = []float64{0, .05, .2, 1, 4}[r.IntN(5)] * rateOf(p)
			}
		}
		if e := f.envoys[r.IntN(len(f.envoys))]; e.stream != nil && beside == 0 && r.IntN(4) == 0 {
			e.disconnect()
		}
		for phase := f.now() + time.Duration(500+r.IntN(4000))*time.Millisecond; f.now() < phase; {
			f.play(playStep)
			f.ask(int64(beside * rateOf(p) * playStep.Seconds() * 2 * r.Float64()))
			if ahead := f.store.sum() - f.covered; ahead < 0 {
				return fmt.Errorf("%d requests have passed after %s that were not charged", -ahead, f.now())
			}
			if bursts, buckets := f.bursts(); bursts > float64(p.Capacity())/burstPart+buckets {
				return fmt.Errorf("the bursts of %g buckets are %g together after %s", buckets, bursts, f.now())
			}
		}
	}
	return nil
}

// bursts returns the number of requests that all Envoys may admit at once, and the number of buckets.
func (f *fleet) bursts() (sum, buckets float64) {
	f.keeper.mu.Lock()
	defer f.keeper.mu.Unlock()
	f.keeper.eachClient(func(c *client) { sum, buckets = sum+c.burst, buckets+1 })
	return sum, buckets
}

// ask is requests that the rate limit service decides, on the same counter.
func (f *fleet) ask(n int64) {
	if n <= 0 {
		return
	}
	h := f.rules.Resolve("shop", "b").Hits[0]
	h.N = n
	out := make([]limiter.Decision, 1)
	if err := f.store.Store.Take(f.t.Context(), []limiter.Hit{h}, out); err != nil {
		f.t.Error(err)
	}
	if out[0].Allowed {
		f.beside += n
		f.admitted = append(f.admitted, admission{f.now(), n})
	}
}

// drawWindow draws a window that the algorithm may have.
func drawWindow(rt *rapid.T, a limiter.Algorithm) time.Duration {
	return rapid.SampledFrom([]time.Duration{shortest(a), 20 * time.Second}).Draw(rt, "window")
}

// shortest is the shortest window of whole seconds that the algorithm may have.
func shortest(a limiter.Algorithm) time.Duration {
	if a == limiter.SlidingWindow || a == limiter.SlidingLog {
		return minSlide
	}
	return time.Second
}

// Streams break while nothing is to rise and nothing is left: a case that TestBound draws rarely.
func TestNothingIsLeftToAssign(t *testing.T) {
	p := policyOf(t, limiter.Params{
		Algorithm: limiter.Funnel, Limit: 1000, Window: 20 * time.Second, ChargeDenied: limiter.ChargeNone,
	})
	inVirtualTime(t, one(p), 5, func(t *testing.T, f *fleet) {
		f.denyUnassigned = true
		if err := f.playRandom(rand.New(rand.NewPCG(5, 1)), p, 5*time.Millisecond, 0, 10*time.Second); err != nil {
			t.Error(err)
		}
	})
}
