package rlqs

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// The last charge of a sliding window's segment is counted just before it ends, also by a store whose clock differs and
// that is far away.
func TestChargesBeforeASegmentEnds(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		window, long time.Duration
	}{{time.Second, 50 * ms}, {2 * time.Second, 50 * ms}, {1500 * ms, 50 * ms}, {300 * ms, 30 * ms}, {700 * ms, 70 * ms}} {
		p := policyOf(t, limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 1000, Window: c.window})
		cad := cadenceOf([]limiter.Hit{{Policy: p}})
		if cad.long != c.long && c.window/10 >= shortTick {
			t.Errorf("a window of %s is charged each %s, want %s", c.window, cad.long, c.long)
		}
		segment := c.window / 10
		for _, skew := range []time.Duration{0, 13 * ms, 77 * ms} { // of the store's clock
			for _, late := range []time.Duration{0, 4 * ms, 30 * ms} { // until a charge is counted
				now := 12345 * ms
				for range 3 {
					counted := now + late + skew
					answer := limiter.Decision{ResetAfter: 11*segment - counted%segment}
					cad.learn(p, &answer, now)
					now = cad.next(now)
				}
				isLast := false
				for range 10 {
					left := segment - (now+late+skew)%segment
					isLast = isLast || left == callMargin
					next := cad.next(now)
					if next <= now || next > now+c.long {
						t.Errorf("after %s the next charge is at %s", now, next)
					}
					now = next
				}
				if !isLast {
					t.Errorf("window %s, clock %s ahead, %s to the store: no charge is counted just before a segment ends",
						c.window, skew, late)
				}
			}
		}
	}
}

// What can be charged for ever is less than the limit by what is charged too early.
func TestSustained(t *testing.T) {
	for _, c := range []struct {
		in   limiter.Params
		want float64
	}{
		{limiter.Params{Algorithm: limiter.Funnel, Limit: 1000, Window: time.Second}, 1000},
		{limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1000, Window: time.Second}, 1000},
		{limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 1010, Window: time.Second}, 1000},
		{limiter.Params{
			Algorithm: limiter.SlidingWindow, Limit: 1110, Window: time.Second, Oldest: limiter.OldestFull,
		}, 1000},
		{limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 1010, Window: time.Second, SegmentCap: 55}, 500},
		{limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 6010, Window: time.Minute}, 100},
		{limiter.Params{Algorithm: limiter.SlidingLog, Limit: 1010, Window: time.Second}, 1000},
		{limiter.Params{Algorithm: limiter.SlidingLog, Limit: 6010, Window: time.Minute}, 100},
	} {
		p := policyOf(t, c.in)
		cad := cadenceOf([]limiter.Hit{{Policy: p}})
		if got := cad.sustained(p); got < c.want*.999 || got > c.want*1.001 {
			t.Errorf("%+v can be charged %g a second, want %g", c.in, got, c.want)
		}
	}
}
