package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// SmoothBursty is a token bucket that admits a large request at once and lets later ones pay: Guava's RateLimiter.
const SmoothBursty Algorithm = 6

// NewSmoothBursty returns a limit of limit hits per window. A request waits up to maxWait for the requests before it.
func NewSmoothBursty(limit int64, window, maxWait time.Duration) Params {
	return Params{Algorithm: SmoothBursty, Limit: limit, Window: window, MaxWait: maxWait}
}

// smoothBursty is a meter that decides only by the level that a request finds: a request of any cost up to MaxCost
// passes if one hit passes, and later requests wait until its debt has leaked away.
type smoothBursty struct{ meter }

func newSmoothBursty(in *Params) (step.Algorithm, error) {
	in.MaxCost = orDefault(in.MaxCost, defaultMaxCost(in))
	if in.BurstFor == 0 {
		in.BurstFor = time.Second
	}
	b := &smoothBursty{newMeter(in)}
	b.burst, b.paysLater = in.MaxCost, true
	ok := b.scale(in, func() bool {
		saved, wait := b.ticks(in.BurstFor), b.ticks(in.MaxWait)
		if saved+wait > b.maxLevel/b.leak/2 || b.cost > b.maxLevel/2 {
			return false
		}
		b.still = saved * b.leak
		b.start = b.still // no saved permits and no debt
		b.capacity = b.still + wait*b.leak
		if b.startsEmpty {
			b.linger = saved * b.tick
		}
		return b.canOwe(b.capacity + b.units(b.burst, b.maxLevel-b.capacity))
	})
	if !ok {
		return nil, paramError("limit", "%d per %s needs more than 53 bits to count what one large request owes; "+
			"choose a rate with fewer digits, or a max_wait and a time to save up in whole seconds", in.Limit, in.Window)
	}
	return b, nil
}

func (b *smoothBursty) Traits() step.Traits {
	t := b.meter.Traits()
	t.Capacity = b.passing(0)
	// Extra is the capacity without the requests that wait. The last request is paid for later, so it may overshoot.
	waiting := float64(b.limit) * float64(t.MaxWait.Microseconds()) / float64(b.window)
	t.Extra, t.Overshoots = t.Capacity-int64(waiting), true
	return t
}

// defaultMaxCost returns the hits that the limit admits in the whole windows of an hour, in at least one window.
func defaultMaxCost(in *Params) int64 {
	windows := max(1, int64(time.Hour/in.Window))
	if in.Limit > step.MaxCost/windows {
		return step.MaxCost
	}
	return in.Limit * windows
}
