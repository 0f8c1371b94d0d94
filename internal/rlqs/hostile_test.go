package rlqs

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// What an Envoy claims to have seen moves no account out of its bounds, and takes no more from others than a demand
// that is as high as theirs.
func TestHugeNumbers(t *testing.T) {
	for _, a := range algorithms {
		inVirtualTime(t, one(perSecond(t, a, 1000)), 1, func(t *testing.T, f *fleet) {
			f.envoys[0].demand["b"] = steady(400)
			f.play(12 * time.Second)
			hostile := f.keeper.Open("", "shop", "", nobody{})
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
						"want": c.want, "share": c.share, "rate": c.rate, "burst": c.burst, "float": c.float, "unused": c.unused,
						"debt": c.debt, "in window": c.inWindow, "unpaid": c.unpaid, "to return": c.group.back,
					} {
						isBad := math.IsNaN(v) || math.Abs(v) > 1e20 || v < 0 && name != "float"
						if isBad || name == "debt" && v > 1000 {
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

// However often streams break and begin again, nothing stays of those that are gone.
func TestReconnectStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, newLedger(t), one(perSecond(t, limiter.TokenBucket, 1_000_000)), 0)
		defer f.close()
		const streams, buckets = 150, 20
		var usages []Usage
		for i := range buckets {
			usages = append(usages, Usage{ID: BucketID(fmt.Sprint("b", i)), Allowed: 10, Elapsed: time.Second})
		}
		open := make([]*Stream, streams)
		for round := range 4 {
			for i := range open {
				if open[i] != nil {
					open[i].Close(false)
				}
				if round%2 == 1 { // all are broken before the first one comes again
					continue
				}
				open[i] = f.keeper.Open("", "shop", "", nobody{})
				open[i].Report(usages)
			}
			for i := range open {
				if round%2 == 1 {
					open[i] = f.keeper.Open("", "shop", "", nobody{})
					open[i].Report(usages)
				}
			}
			synctest.Wait()
			time.Sleep(time.Second)
			if st := f.keeper.Stats(); st.Buckets != streams*buckets || st.Broken != 0 || len(f.keeper.pools) != 0 {
				t.Errorf("round %d: %+v, %d pools; want %d buckets", round, st, len(f.keeper.pools), streams*buckets)
			}
		}
		for _, s := range open {
			s.Close(false)
		}
		time.Sleep(DefaultTTL + time.Second)
		k := f.keeper
		if st := k.Stats(); st.Buckets != 0 || st.Broken != 0 || len(k.pools)+len(k.groups)+len(k.counters) != 0 {
			t.Errorf("%+v, %d pools, %d groups, %d counters", st, len(k.pools), len(k.groups), len(k.counters))
		}
	})
}
