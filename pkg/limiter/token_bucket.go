package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// TokenBucket holds up to Burst tokens, gets Limit tokens per Window, and spends one per hit. It decides like a Funnel,
// whose level is the number of missing tokens. With RefillsAtOnce it gets its tokens in batches.
const TokenBucket Algorithm = 3

// NewTokenBucket returns a limit of limit hits per window, with up to burst hits at once. A burst of 0 means limit.
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
	// Even a denied request makes a bucket that starts empty begin to fill.
	t.Cacheable = b.denied == ChargeNone && !b.startsEmpty
	return t
}
