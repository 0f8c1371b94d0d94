package rlqs

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

func perSecond(tb testing.TB, a limiter.Algorithm, n int64) *limiter.Policy {
	tb.Helper()
	window := shortest(a)
	return policyOf(tb, limiter.Params{
		Algorithm: a, Limit: n * int64(window/time.Second), Window: window, ChargeDenied: limiter.ChargeNone,
	})
}

func inVirtualTime(t *testing.T, resolve func(string, BucketID) Target, envoys int, do func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, newLedger(t), resolve, envoys)
		defer f.close()
		do(t, f)
	})
}

// An Envoy that is alone gets most of the limit at once, also if it had nothing to do before.
func TestAloneGetsMostAtOnce(t *testing.T) {
	for _, a := range algorithms {
		for _, idle := range []time.Duration{0, 8 * time.Second} {
			t.Run(fmt.Sprintf("%s after %s", a, idle), func(t *testing.T) {
				inVirtualTime(t, one(perSecond(t, a, 1000)), 1, func(t *testing.T, f *fleet) {
					if f.envoys[0].demand["b"] = steady(1); idle > 0 {
						f.play(idle)
					}
					f.envoys[0].demand["b"] = steady(800)
					f.play(time.Second)
					for s := 2; s <= 5; s++ {
						n := f.passedIn(time.Second)
						t.Logf("second %d: %d", s, n)
						if n < 400 {
							t.Errorf("%d passed in second %d, want at least 400", n, s)
						}
					}
				})
			})
		}
	}
}

// An Envoy that comes beside a busy one gets a part at once, and both together get the limit.
func TestComesBesideABusyOne(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			inVirtualTime(t, one(perSecond(t, a, 1000)), 2, func(t *testing.T, f *fleet) {
				f.envoys[0].demand["b"] = steady(1500)
				f.play(12 * time.Second)
				f.envoys[1].demand["b"] = steady(600)
				for s := 1; s <= 6; s++ {
					before := f.envoys[1].passed
					all := f.passedIn(time.Second)
					n := f.envoys[1].passed - before
					t.Logf("second %d: %d, all %d", s, n, all)
					if n < 150 || all > 1150 || all < 650 {
						t.Errorf("%d passed in second %d, %d by both", n, s, all)
					}
				}
			})
		})
	}
}
