package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Funnel is the leaky bucket as a meter (GCRA): at most Burst hits are in it, and it leaks Limit hits a Window.
const Funnel Algorithm = 2

// NewFunnel returns a limit of limit hits per window, of which up to burst at once; 0 is limit.
func NewFunnel(limit int64, window time.Duration, burst int64) Params {
	return Params{Algorithm: Funnel, Limit: limit, Window: window, Burst: burst}
}

// funnel is a meter as it is.
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
