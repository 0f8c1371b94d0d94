package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// TokenBucket is the funnel's mirror: what the level leaves of the capacity are its tokens. With RefillsAtOnce it is
// an intervalBucket.
const TokenBucket Algorithm = 3

// NewTokenBucket returns a limit of limit hits per window, of which up to burst at once; 0 is limit.
func NewTokenBucket(limit int64, window time.Duration, burst int64) Params {
	return Params{Algorithm: TokenBucket, Limit: limit, Window: window, Burst: burst}
}

// tokenBucket is a TokenBucket that is refilled continuously.
type tokenBucket struct{ meter }

func newTokenBucket(in *Params) (step.Algorithm, error) {
	in.Burst = orDefault(in.Burst, in.Limit)
	if in.RefillsAtOnce {
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
