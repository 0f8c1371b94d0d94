package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Funnel is the leaky bucket as a meter (GCRA, ITU-T I.371): it holds up to Burst hits, and leaks Limit hits a Window.
const Funnel Algorithm = 2

// NewFunnel returns a limit of limit hits per window, with up to burst hits at once. A burst of 0 means limit.
func NewFunnel(limit int64, window time.Duration, burst int64) Params {
	return Params{Algorithm: Funnel, Limit: limit, Window: window, Burst: burst}
}

// funnel is a plain meter.
type funnel struct{ meter }

func newFunnel(in *Params) (step.Algorithm, error) {
	f := &funnel{newMeter(in)}
	in.Burst = orDefault(in.Burst, in.Limit)
	return f, f.holdBurst(in)
}

func (f *funnel) Traits() step.Traits {
	t := f.meter.Traits()
	t.Cacheable = f.denied == ChargeNone
	return t
}
