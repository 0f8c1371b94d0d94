package rlqs

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Answers tell the end of a window a little later or earlier each time. It is another window only when the end is far
// from the last one: what was charged in one window is never returned to the next.
func TestWindowsAreTold(t *testing.T) {
	p := policyOf(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 100, Window: 10 * time.Second})
	ct := &counter{policy: p}
	for _, c := range []struct {
		answer, ends time.Duration
		window       int
	}{
		{10 * time.Second, 10 * time.Second, 0},
		{10*time.Second + 3*time.Millisecond, 10 * time.Second, 0},
		{10*time.Second - 3*time.Millisecond, 10*time.Second - 3*time.Millisecond, 0},
		{20 * time.Second, 20 * time.Second, 1},
	} {
		if ct.sees(c.answer); ct.ends != c.ends || ct.window != c.window {
			t.Errorf("after an answer of %s window %d ends at %s, want window %d at %s", c.answer, ct.window, ct.ends, c.window,
				c.ends)
		}
	}
}

// Hits return to their window only if they arrive before it ends.
func TestHitsReturnBeforeTheWindowEnds(t *testing.T) {
	const tick = time.Millisecond
	for left, want := range map[time.Duration]int64{windowMargin + tick: 7, windowMargin - tick: 0} {
		g := &group{counters: []*counter{{ends: time.Minute}}, back: 7.5}
		if n := g.takeBack(time.Minute - left); n != want {
			t.Errorf("%s before the end of a window %d hits are returned, want %d", left, n, want)
		}
	}
	g := &group{counters: []*counter{{ends: time.Minute, window: 1}}, back: 7.5} // of window 0
	if n := g.takeBack(0); n != 0 {
		t.Errorf("%d hits of a window are returned to the next one", n)
	}
}
