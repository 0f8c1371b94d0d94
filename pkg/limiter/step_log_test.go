package limiter_test

import (
	"testing"
	"time"

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
