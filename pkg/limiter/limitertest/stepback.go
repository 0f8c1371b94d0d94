package limitertest

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// clockStepsBackWithRoom checks that a limit with room keeps it when the clock is set back. A funnel may lose what
// leaks during a step of less than a second. The room is granted once, and comes back as if the clock had stood still.
func clockStepsBackWithRoom(f *fixture) {
	const capacity, used = 20, 3
	for _, a := range counting {
		for _, charge := range []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeFull} {
			for _, back := range []time.Duration{time.Microsecond, 500 * ms, 30 * sec, 3 * hour, 24 * hour, 300 * 24 * hour} {
				in := limiter.Params{Algorithm: a, Limit: 10, Burst: capacity, Window: sec, ChargeDenied: charge}
				if a != limiter.Funnel && a != limiter.TokenBucket {
					in.Limit, in.Burst = capacity, 0
				}
				hit := limiter.Hit{Key: a.String() + charge.String() + back.String(), Policy: policy(f, in), N: 1}
				f.clock.Set(start + 400*24*hour.Microseconds())
				for range used {
					f.want("+", hit)
				}
				f.clock.Advance(-back)
				admitted := 0
				for range 2 * capacity {
					if f.take(hit)[0].Allowed {
						admitted++
					}
				}
				least := capacity - used
				if isFunnel := in.Burst != 0; isFunnel && back < sec {
					least -= 1 + int(back/(100*ms))
				}
				if admitted < least || admitted > capacity-used {
					f.Errorf("%s, charge_denied %s, clock back by %s: %d of the %d that had room are admitted, want at least %d",
						a, charge, back, admitted, capacity-used, least)
				}
				peek := hit
				peek.N, peek.Peek = 0, true
				d := f.take(peek)[0]
				if d.RetryAfter > 3*sec { // includes the debt of denied hits
					f.Errorf("%s, charge_denied %s, clock back by %s: told to wait for %s", a, charge, back, d.RetryAfter)
				}
				f.clock.Advance(d.RetryAfter + min(back, sec)) // see limiter.slack
				f.want("+", hit)
			}
		}
	}
}
