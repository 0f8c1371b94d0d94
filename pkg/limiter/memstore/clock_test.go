package memstore_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// twoClocks are a steady clock and one on the wall.
type twoClocks struct{ steady, wall atomic.Int64 }

func clocksAt(t time.Time) *twoClocks {
	c := &twoClocks{}
	c.steady.Store(t.UnixMicro())
	c.wall.Store(t.UnixMicro())
	return c
}

// pass lets time pass, which both clocks see.
func (c *twoClocks) pass(d time.Duration) {
	c.steady.Add(d.Microseconds())
	c.wall.Add(d.Microseconds())
}

// set sets the clock on the wall, d later or earlier than it was.
func (c *twoClocks) set(d time.Duration) { c.wall.Add(d.Microseconds()) }

func (c *twoClocks) store(t *testing.T) *memstore.Store {
	t.Helper()
	return start(t, memstore.Options{Now: c.steady.Load, Wall: c.wall.Load, SweepEvery: time.Hour})
}

// aligned are policies of 5 an hour whose windows begin where the clocks on the wall say so.
func aligned(t *testing.T) []*limiter.Policy {
	t.Helper()
	var all []*limiter.Policy
	for _, align := range []limiter.Align{limiter.AlignEpoch, limiter.AlignCalendar} {
		all = append(all, policy(t, limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Hour,
			Align: align,
		}))
	}
	return all
}

// A process that starts before its clock is set counts in the right windows once it is.
func TestWindowsFollowAClockThatIsSetLater(t *testing.T) {
	funnel := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 5, Window: time.Hour}) // does not notice
	for _, p := range aligned(t) {
		c := clocksAt(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)) // where such machines begin
		s := c.store(t)
		hit(t, s, "k", p, 5)
		c.pass(10 * time.Second)
		c.set(time.Date(2026, 11, 22, 9, 45, 0, 0, time.UTC).Sub(time.Date(2024, 1, 1, 0, 0, 10, 0, time.UTC)))
		hits := []limiter.Hit{{Key: "k", Policy: p, N: 3}, {Key: "f", Policy: funnel, N: 1}}
		d := make([]limiter.Decision, 2)
		if err := s.Take(t.Context(), hits, d); err != nil || d[0].Remaining != 2 || d[0].ResetAfter != 15*time.Minute {
			t.Errorf("after the clock was set to 9:45: %+v, %v, want a fresh window that ends at 10:00", d, err)
		}
		c.pass(15 * time.Minute)
		if d := hit(t, s, "k", p, 1); d.Remaining != 4 || d.ResetAfter != time.Hour {
			t.Errorf("at 10:00: %+v, want a fresh window that ends at 11:00", d)
		}
	}
}

// A machine that was suspended has a steady clock that stood still.
func TestWindowsFollowAMachineThatIsResumed(t *testing.T) {
	for _, p := range aligned(t) {
		c := clocksAt(time.Date(2026, 11, 21, 18, 50, 0, 0, time.UTC))
		s := c.store(t)
		hit(t, s, "k", p, 5)
		for day := range 3 {
			c.pass(20 * time.Millisecond)
			c.set(15 * time.Hour)
			if d := hit(t, s, "k", p, 5); !d.Allowed || d.ResetAfter != 10*time.Minute-time.Duration(day+1)*20*time.Millisecond {
				t.Errorf("resumed on day %d: %+v, want a fresh window that ends with the hour", day, d)
			}
			if d := hit(t, s, "k", p, 1); d.Allowed {
				t.Errorf("resumed on day %d: %+v, want it full", day, d)
			}
		}
	}
}

// A clock that is set back grants nothing twice in the current window, and locks nobody out beyond it.
func TestWindowsFollowAClockThatIsSetBack(t *testing.T) {
	for _, p := range aligned(t) {
		c := clocksAt(time.Date(2027, 3, 1, 12, 20, 0, 0, time.UTC)) // months ahead
		s := c.store(t)
		hit(t, s, "k", p, 5)
		c.pass(time.Second)
		c.set(-100 * 24 * time.Hour)
		c.set(-25 * time.Minute) // 11:55:01
		if d := hit(t, s, "k", p, 1); d.Allowed || d.RetryAfter != 5*time.Minute-time.Second {
			t.Errorf("set back: %+v, want what was counted to count until 12:00", d)
		}
		c.pass(5*time.Minute - time.Second)
		if d := hit(t, s, "k", p, 1); !d.Allowed || d.Remaining != 4 || d.ResetAfter != time.Hour {
			t.Errorf("at 12:00: %+v, want a fresh window", d)
		}
	}
}

// Whatever is set, no other limit notices.
func TestOnlyWindowsOnTheClockNotice(t *testing.T) {
	start := time.Date(2026, 11, 22, 9, 59, 30, 0, time.UTC)
	c, steady := clocksAt(start), clocksAt(start)
	s, still := c.store(t), steady.store(t)
	all := algorithms(t)[1:]
	for _, in := range []limiter.Params{
		{Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit},
		{Algorithm: limiter.SmoothBursty},
		{Algorithm: limiter.SmoothWarmingUp},
		{Algorithm: limiter.LeakyQueue},
		{Algorithm: limiter.TokenBucket, RefillsAtOnce: true},
		{Algorithm: limiter.TokenBucket, StartsEmpty: true},
	} {
		in.Limit, in.Window = 10, time.Minute
		all = append(all, policy(t, in))
	}
	for _, jump := range []time.Duration{
		0, time.Second, -3 * time.Second, 1000 * time.Hour, -2000 * time.Hour,
		5 * time.Second, 0,
	} {
		c.set(jump)
		for i, p := range all {
			key := p.Algorithm().String() + string(rune('a'+i))
			for _, n := range []int64{1, 3, 4, 0, 2} {
				if got, want := hit(t, s, key, p, n), hit(t, still, key, p, n); got != want {
					t.Errorf("%s, cost %d after a jump of %s: %+v, want %+v", p.Algorithm(), n, jump, got, want)
				}
			}
		}
		hit(t, s, "aligned", aligned(t)[0], 1)
		c.pass(7 * time.Second)
		steady.pass(7 * time.Second)
	}
}

// A counter that an edit has put further ahead than its new policy can is counted when it is cut.
func TestCutCountersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, memstore.Options{})
		slow := policy(t, limiter.Params{Algorithm: limiter.TokenBucket, Limit: 5, Window: time.Hour})
		fast := policy(t, limiter.Params{Algorithm: limiter.TokenBucket, Limit: 1000, Window: time.Minute})
		for _, key := range []string{"a", "b", "c"} {
			hit(t, s, key, slow, 5)
		}
		for range 3 {
			if d := hit(t, s, "a", fast, 1); d.Allowed || d.RetryAfter != 60*time.Millisecond {
				t.Errorf("at once: %+v", d)
			}
		}
		time.Sleep(60 * time.Millisecond)
		for _, key := range []string{"a", "b"} {
			if d := hit(t, s, key, fast, 1); !d.Allowed {
				t.Errorf("%s, after 60 ms: %+v", key, d)
			}
		}
		if cut := s.Stats().Cut; cut != 2 {
			t.Errorf("%d were cut, want 2", cut)
		}
	})
}
