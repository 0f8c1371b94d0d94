package rlqs

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// tally sums what a keeper hands on.
type tally struct {
	mu    sync.Mutex
	of    map[string]map[decide.Outcome]uint64
	first uint64
}

func (y *tally) decided(d Decided) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.of[d.Key] == nil {
		y.of[d.Key] = map[decide.Outcome]uint64{}
	}
	y.of[d.Key][d.Outcome] += d.Requests
	if d.IsFirst {
		y.first += d.Requests
	}
}

func (y *tally) get(key string, o decide.Outcome) uint64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.of[key][o]
}

// countedFleet is a fleet whose keeper hands on what Envoys reported.
func countedFleet(t *testing.T, target Target, do func(f *fleet, y *tally)) {
	t.Helper()
	y := &tally{of: map[string]map[decide.Outcome]uint64{}}
	inVirtualTime(t, func(string, BucketID) Target { return target }, 1, func(_ *testing.T, f *fleet) {
		f.keeper.o.Decided = y.decided
		do(f, y)
	})
}

// Each request that an Envoy reports counts once under each limit, the denied ones under the limit that gives least.
func TestDecidedIsWhatWasReported(t *testing.T) {
	few, many := perSecond(t, limiter.Funnel, 50), perSecond(t, limiter.Funnel, 1000)
	target := Target{Hits: []limiter.Hit{{Key: "many", Policy: many}, {Key: "few", Policy: few}}}
	countedFleet(t, target, func(f *fleet, y *tally) {
		f.envoys[0].demand["b"] = steady(200)
		f.play(30*time.Second + 500*time.Millisecond)
		f.envoys[0].disconnect() // what was reported has been handed on
		f.play(300 * time.Millisecond)
		allowed, denied := y.get("few", decide.Allowed), y.get("few", decide.Denied)
		if allowed == 0 || allowed+denied < 200*25 || allowed+denied > 200*31 {
			t.Errorf("%d allowed and %d denied, want those of 30 s at 200 a second but for the last few", allowed, denied)
		}
		if y.get("many", decide.Allowed) != allowed || y.get("many", decide.Uncharged) != denied ||
			y.get("many", decide.Denied) != 0 || y.first != allowed+denied {
			t.Errorf("the larger limit has %v, want %d allowed and %d uncharged; %d requests by first limits", y.of["many"],
				allowed, denied, y.first)
		}
	})
}

// A limit in shadow mode is decided by its counter: what would have been denied is seen.
func TestDecidedInShadowMode(t *testing.T) {
	hour := policyOf(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1000, Window: 24 * time.Hour})
	target := Target{Hits: []limiter.Hit{{Key: "k", Policy: hour, Mode: limiter.Shadow}}}
	countedFleet(t, target, func(f *fleet, y *tally) {
		f.envoys[0].demand["b"] = steady(100)
		f.play(35*time.Second + 4*playStep)
		f.keeper.Stop(f.t.Context()) // what was reported last is counted
		allowed, over := y.get("k", decide.Allowed), y.get("k", decide.ShadowDenied)
		if allowed != 1000 || allowed+over != 3501 || y.get("k", decide.Denied) != 0 {
			t.Errorf("%d allowed, %d over the limit, want 1000 and the rest of 35 s at 100 a second", allowed, over)
		}
		if y.first != allowed+over {
			t.Errorf("%d requests by first limits, want %d", y.first, allowed+over)
		}
	})
}

// A limit of 0 denies, and while the store does not answer outcomes say so.
func TestDecidedByALimitOfZeroAndOnFailure(t *testing.T) {
	zero, some := perSecond(t, limiter.Funnel, 0), perSecond(t, limiter.Funnel, 50)
	countedFleet(t, Target{Hits: []limiter.Hit{{Key: "k", Policy: some}, {Key: "zero", Policy: zero}}},
		func(f *fleet, y *tally) {
			f.envoys[0].demand["b"] = steady(20)
			f.play(11 * time.Second)
			if y.get("zero", decide.Denied) < 100 || y.get("k", decide.Denied) != 0 {
				t.Errorf("%d denied by the limit of 0, %d by the other one", y.get("zero", decide.Denied),
					y.get("k", decide.Denied))
			}
		})
	countedFleet(t, Target{Hits: []limiter.Hit{{Key: "k", Policy: some}}}, func(f *fleet, y *tally) {
		f.envoys[0].demand["b"] = steady(200)
		f.play(11 * time.Second)
		f.store.fail(errors.New("no store"))
		f.play(11 * time.Second)
		if y.get("k", decide.AllowedOnFailure) < 100 || y.get("k", decide.DeniedOnFailure) < 100 {
			t.Errorf("%d allowed and %d denied on failure", y.get("k", decide.AllowedOnFailure),
				y.get("k", decide.DeniedOnFailure))
		}
		f.store.fail(nil)
	})
}
