package limiter

import "github.com/weir-ratelimit/weir/internal/step"

// TokenBucket is the funnel's mirror: what the level leaves of the capacity are its tokens. With RefillInterval it is
// an intervalBucket.
const TokenBucket Algorithm = 3

// tokenBucket is a TokenBucket that is refilled continuously.
type tokenBucket struct{ meter }

func newTokenBucket(in *Params) (step.Algorithm, error) {
	in.Burst = orDefault(in.Burst, in.Limit)
	if in.Refill == RefillInterval {
		return newIntervalBucket(in)
	}
	b := &tokenBucket{newMeter(in)}
	return b, b.holdBurst(in)
}

func (b *tokenBucket) Traits() step.Traits {
	t := b.meter.Traits()
	// A bucket that starts empty begins to fill with a request, also with a denied one.
	t.Cacheable = b.denied == ChargeNone && !b.startsEmpty
	return t
}
