package limitertest

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// untilReset is the reset of a counter that was never hit, at the start of an hour.
func untilReset(p *limiter.Policy) time.Duration {
	if p.Algorithm() == limiter.FixedWindow {
		return p.Window()
	}
	return 0
}

// windowEnds: a fixed window says when it ends, to whoever is banned, looks, gives back or is the first, in every mode.
func windowEnds(f *fixture) {
	f.clock.Advance(20 * time.Minute)
	for _, align := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit, limiter.AlignCalendar} {
		for _, limit := range []int64{0, 5} {
			p := policy(f, limiter.Params{Algorithm: limiter.FixedWindow, Limit: limit, Window: time.Hour, Align: align})
			want := 40 * time.Minute
			if align == limiter.AlignFirstHit {
				want = time.Hour // from the hit on that would begin it
			}
			for _, n := range []int64{0, -1, 1, 9, 0, -1, 0} {
				key := fmt.Sprintf("%s of %d", align, limit)
				if d := f.take(limiter.Hit{Key: key, Policy: p, N: n, Look: n == 0})[0]; d.ResetAfter != want {
					f.Errorf("%s, cost %d: reset after %s, want %s", key, n, d.ResetAfter, want)
				}
			}
			for _, mode := range []limiter.Mode{limiter.Enforce, limiter.Shadow, limiter.Quota} {
				hit := limiter.Hit{Key: "fresh", Policy: p, Look: true, Mode: mode}
				if d := f.take(hit, limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1})[0]; d.ResetAfter != want {
					f.Errorf("%s of %d, beside a ban: reset after %s, want %s", align, limit, d.ResetAfter, want)
				}
			}
		}
	}
}

func clockStepsBack(f *fixture) {
	for _, a := range every {
		p, key := f.hourly(a, 3), a.String()
		f.clock.Set(start + 100*24*time.Hour.Microseconds())
		for left := int64(1); left > 0; {
			d := f.take(limiter.Hit{Key: key, Policy: p, N: 1})[0]
			if !d.Allowed {
				f.Fatalf("%s: one of %d that remained: %+v", a, left, d)
			}
			left = d.Remaining
		}
		for _, back := range []time.Duration{time.Microsecond, time.Minute, 59 * time.Minute, time.Hour, 24 * time.Hour} {
			f.clock.Advance(-back)
			d := f.take(limiter.Hit{Key: key, Policy: p, N: 1})[0]
			if d.Allowed || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter == limiter.Never {
				f.Errorf("%s, clock back by %s more: got %+v, want a denial that ends", a, back, d)
			}
		}
	}
}

// changedAlign goes on with a count under another align: it is kept if its window started within the current one.
func changedAlign(f *fixture) {
	daily := func(align limiter.Align, loc *time.Location) limiter.Hit {
		return limiter.Hit{N: 1, Policy: policy(f, limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 1, Window: 24 * hour, Align: align, TimeZone: loc,
			ChargeDenied: limiter.ChargeNone,
		})}
	}
	utc, berlin := daily(limiter.AlignEpoch, nil), daily(limiter.AlignCalendar, zone("Europe/Berlin"))
	first := daily(limiter.AlignFirstHit, nil)
	f.clock.Advance(10 * hour) // 11:00 in Berlin
	f.want("+", utc)
	f.want("-", berlin)
	f.clock.Advance(13 * hour) // midnight
	f.want("-", utc)
	f.want("+", berlin)
	f.want("-", utc)
	f.want("-", first)
	f.clock.Advance(hour) // midnight of UTC: a window that started before it no longer counts
	f.want("-", berlin)
	f.want("-", first)
	f.want("+", utc)
}

// warmingUp is a policy that lets requests wait for 100 s.
func (f *fixture) warmingUp(limit int64, warmUp time.Duration, factor int64) *limiter.Policy {
	f.Helper()
	return policy(f, limiter.Params{
		Algorithm: limiter.SmoothWarmingUp, Limit: limit, Window: sec, WarmUp: warmUp, ColdFactor: factor, MaxWait: 100 * sec,
	})
}

// changedWarmUpExactly: the share is rounded as limiter's step does it.
func changedWarmUpExactly(f *fixture) {
	policies := []*limiter.Policy{
		f.warmingUp(7, hour, 0), f.warmingUp(997, hour, 0), f.warmingUp(1_000_000, hour, 150), f.warmingUp(31, 1000*sec, 299),
		f.warmingUp(9_973, 90*sec, limiter.MaxColdFactor),
	}
	known := reference{}
	for _, from := range policies {
		for _, to := range policies {
			for _, n := range []int64{1, 5, 4_321} {
				key := fmt.Sprint(from.Limit(), to.Limit(), n)
				for _, hit := range []limiter.Hit{
					{Key: key, Policy: from, N: n, Look: n == 0},
					{Key: key, Policy: to, Look: true},
				} {
					want := make([]limiter.Decision, 1)
					known.take(f.clock.Now(), []limiter.Hit{hit}, want)
					if diff := cmp.Diff(want, f.take(hit)); diff != "" {
						f.Errorf("%d hits of %d per second, then %d per second: (-want +got)\n%s", n, from.Limit(), to.Limit(), diff)
					}
				}
			}
		}
	}
}

// changedWarmUp: a debt stays, and of what is in store the share, whatever unit a rule counts in.
func changedWarmUp(f *fixture) {
	with := f.warmingUp
	old := with(10, 10*sec, 0)
	f.waited([]time.Duration{0}, limiter.Hit{Key: "k", Policy: old, N: 75}) // 12.5 s, a quarter of the store stays
	for _, c := range []struct {
		to    *limiter.Policy
		reset time.Duration
	}{
		{old, 20 * sec},
		{with(9_973, 10*sec, 0), 20 * sec},
		{with(10, 60*sec, 0), 57_500 * ms},
		{with(10, 100*ms, 250), 12_575 * ms},
		{with(9_973, hour, limiter.MaxColdFactor), 2_712_500 * ms},
	} {
		d := f.take(limiter.Hit{Key: "k", Policy: c.to, Look: true})[0]
		if late := d.ResetAfter - c.reset; late < 0 || late > ms || !d.Allowed {
			f.Errorf("%d per second: %+v, want to be as new after %s", c.to.Limit(), d, c.reset)
		}
	}
	fast := with(9_973, 10*sec, 0)
	f.waited([]time.Duration{12_500 * ms}, limiter.Hit{Key: "k", Policy: fast, N: 1})
	f.clock.Advance(hour)
	if d := f.take(limiter.Hit{Key: "k", Policy: old, N: -1})[0]; d.ResetAfter != 0 {
		f.Errorf("an hour later: %+v, want it as new", d)
	}
}
