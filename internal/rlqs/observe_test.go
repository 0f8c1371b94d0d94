package rlqs

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
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

// withLimits gives a target's hits limits to count by.
func withLimits(t Target) Target {
	t.Limits = nil
	for range t.Hits {
		t.Limits = append(t.Limits, &descriptors.Limit{})
	}
	return t
}

// countedFleet is a fleet whose keeper hands on what Envoys reported.
func countedFleet(t *testing.T, target Target, do func(f *fleet, y *tally)) {
	t.Helper()
	y := &tally{of: map[string]map[decide.Outcome]uint64{}}
	target = withLimits(target)
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
		var allowed, denied uint64
		for _, o := range []decide.Outcome{decide.Allowed, decide.Uncharged, decide.Denied} {
			t.Logf("%s: many %d, few %d", o, y.get("many", o), y.get("few", o))
		}
		allowed, denied = y.get("few", decide.Allowed), y.get("few", decide.Denied)
		if allowed == 0 || allowed+denied < 200*25 || allowed+denied > 200*31 {
			t.Errorf("%d allowed and %d denied, want those of 30 s at 200 a second but for the last few", allowed, denied)
		}
		if got := y.get("many", decide.Allowed); got != allowed {
			t.Errorf("%d allowed by the larger limit, want %d", got, allowed)
		}
		if got := y.get("many", decide.Uncharged); got == 0 || got != denied {
			t.Errorf("%d uncharged by the larger limit, want %d", got, denied)
		}
		if got := y.get("many", decide.Denied); got != 0 {
			t.Errorf("%d denied by the larger limit", got)
		}
		if y.first != allowed+denied {
			t.Errorf("%d requests by first limits, want %d", y.first, allowed+denied)
		}
	})
}

// A limit in shadow mode is decided by its counter: what would have been denied is seen.
func TestDecidedInShadowMode(t *testing.T) {
	hour := policyOf(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1000, Window: 24 * time.Hour})
	target := Target{Hits: []limiter.Hit{{Key: "k", Policy: hour, Mode: limiter.Shadow}}}
	countedFleet(t, target, func(f *fleet, y *tally) {
		f.envoys[0].demand["b"] = steady(100)
		f.play(35*time.Second + 500*time.Millisecond) // what is reported at 30 s is charged until then
		allowed, over := y.get("k", decide.Allowed), y.get("k", decide.ShadowDenied)
		if allowed != 1000 || over < 1500 || over > 2600 || y.get("k", decide.Denied) != 0 {
			t.Errorf("%d allowed, %d over the limit, want 1000 and the rest of 30 s at 100 a second", allowed, over)
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

// What was reported last is counted when the keeper stops, and what no sane Envoy reports overflows nothing.
func TestDecidedAtTheEnd(t *testing.T) {
	y := &tally{of: map[string]map[decide.Outcome]uint64{}}
	target := withLimits(Target{Hits: []limiter.Hit{{Key: "k", Policy: perSecond(t, limiter.Funnel, 50)}}})
	store := newLedger(t)
	defer store.Close()
	k, err := New(Options{
		Store: store, Resolve: func(string, BucketID) Target { return target }, TTL: ttl, Timeout: time.Second,
		Logger: slog.New(slog.DiscardHandler), Decided: y.decided,
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		_ = k.Run(ctx)
	}()
	s := k.Open("", "shop", "")
	s.Report([]Usage{{ID: "b", Allowed: 1}})
	for y.get("k", decide.Allowed) == 0 {
		time.Sleep(time.Millisecond)
	}
	s.Report([]Usage{{ID: "b", Allowed: math.MaxUint64, Denied: math.MaxUint64, Elapsed: time.Second}})
	s.Report([]Usage{{ID: "b", Allowed: math.MaxUint64, Denied: math.MaxUint64, Elapsed: time.Second}})
	k.Stop(context.Background())
	cancel()
	<-done
	if got := y.get("k", decide.Allowed); got < limiter.MaxHits/2 || got > limiter.MaxHits+1 {
		t.Errorf("%d allowed", got)
	}
}
