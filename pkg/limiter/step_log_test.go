package limiter_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestLogCountsAnew: a log whose totals are close to 2^53 answers as the same log with small ones, and its totals stay
// below.
func TestLogCountsAnew(t *testing.T) {
	for _, charge := range []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeFull} {
		p, err := limiter.NewPolicy(limiter.Params{
			Algorithm: limiter.SlidingLog, Limit: 10, Window: time.Second, ChargeDenied: charge,
		})
		if err != nil {
			t.Fatal(err)
		}
		const offset = exact - 10
		small := storekit.State{A: 0, List: []int64{epoch, 2, epoch + 1, 4}}
		large := storekit.State{A: offset, List: []int64{epoch, offset + 2, epoch + 1, offset + 4}}
		for i, n := range []int64{3, -1, 4, 5, 1, -3, 2, 9} {
			now := epoch + int64(i*100_000)
			var want, got limiter.Decision
			small, want = storekit.Step(p, small, now, n)
			large, got = storekit.Step(p, large, now, n)
			if got != want {
				t.Errorf("charge_denied %s, hit %d: %+v, with small totals %+v", charge, i, got, want)
			}
			if newest := large.List[len(large.List)-1]; newest >= exact {
				t.Errorf("charge_denied %s, hit %d: total %d", charge, i, newest)
			}
		}
		if large.A != 0 {
			t.Errorf("charge_denied %s: the log still counts from %d", charge, large.A)
		}
	}
}

// TestDebtOfALogStopsGrowing, and with it its memory.
func TestDebtOfALogStopsGrowing(t *testing.T) {
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.SlidingLog, Limit: 10, Window: time.Hour, ChargeDenied: limiter.ChargeFull,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := storekit.State{List: []int64{epoch, 1<<52 - 3*limiter.MaxHits}}
	for i := range int64(10) {
		var d limiter.Decision
		s, d = storekit.Step(p, s, epoch+i, limiter.MaxHits)
		if total := s.List[len(s.List)-1]; d.Allowed || total > 1<<52 || len(s.List) > 4 {
			t.Fatalf("hit %d: %+v, total %d in %d entries", i, d, total, len(s.List)/2)
		}
	}
	for i := range int64(1000) {
		s, _ = storekit.Step(p, s, epoch+i, -limiter.MaxHits)
		s, _ = storekit.Step(p, s, epoch+i, 6)
	}
	if len(s.List) > 2*11 {
		t.Errorf("the log of at most 10 hits holds %d entries", len(s.List)/2)
	}
}

// TestChangedWindowForgetsNothing: when a rule's window or its segments change, what was admitted within the new,
// shorter window stays counted.
func TestChangedWindowForgetsNothing(t *testing.T) {
	windows := []time.Duration{600 * time.Millisecond, time.Second, 6 * time.Second, 10 * time.Second}
	for _, a := range []limiter.Algorithm{limiter.SlidingWindow, limiter.SlidingLog, limiter.Concurrency} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				draw := func() limiter.Params {
					in := limiter.Params{
						Algorithm: a, Limit: rapid.Int64Range(1, 12).Draw(t, "limit"),
						Window: rapid.SampledFrom(windows).Draw(t, "window"),
					}
					if a == limiter.SlidingWindow {
						in.Oldest, in.Segments = limiter.OldestFull, rapid.SampledFrom([]int64{1, 2, 5, 10}).Draw(t, "segments")
					}
					return in
				}
				before, after := draw(), draw()
				after.Window = min(before.Window, after.Window)
				w := &walk{now: epoch}
				var admitted []event
				for _, w.in = range []limiter.Params{before, after} {
					var err error
					if w.policy, err = limiter.NewPolicy(w.in); err != nil {
						t.Fatal(err)
					}
					for range rapid.IntRange(1, 15).Draw(t, "hits") {
						w.move(t)
						n := w.cost(t, 1)
						if !w.step(n).Allowed {
							continue
						}
						admitted = append(admitted, event{w.now, n})
						inside := func(e event) bool { return w.now-w.in.Window.Microseconds() < e.at }
						if got := sum(admitted, inside); got > w.in.Limit {
							t.Fatalf("%+v after %+v: %d hits in the window up to %d", w.in, before, got, w.now)
						}
					}
				}
			})
		})
	}
}
