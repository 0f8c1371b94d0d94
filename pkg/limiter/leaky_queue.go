package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// LeakyQueue is the leaky bucket as a queue: it delays requests so that they pass evenly spaced.
const LeakyQueue Algorithm = 7

// NewLeakyQueue returns a limit that delays requests so that limit of them pass per window, evenly spaced. No request
// waits for longer than maxWait, nor for longer than window. A maxWait of 0 means window.
func NewLeakyQueue(limit int64, window, maxWait time.Duration) Params {
	return Params{Algorithm: LeakyQueue, Limit: limit, Window: window, MaxWait: maxWait}
}

// leakyQueue is a meter with a floor: after a charge the level is at least floor, which equals still. A request departs
// when the level, which includes its own hits, has leaked to still.
type leakyQueue struct{ meter }

func newLeakyQueue(in *Params) (step.Algorithm, error) {
	in.Burst = orDefault(in.Burst, in.Limit)
	q := &leakyQueue{newMeter(in)}
	q.burst = in.Burst
	ok := q.scale(in, func() bool {
		wait := q.ticks(in.MaxWait)
		if q.burst > q.maxLevel/q.cost/4 || wait > q.maxLevel/q.leak/4 {
			return false
		}
		q.still = q.burst * q.cost
		q.floor = q.still
		q.capacity = 2 * q.still
		if in.MaxWait != 0 {
			q.capacity = min(q.capacity, q.still+wait*q.leak)
		}
		return true
	})
	if !ok {
		return nil, burstError(in)
	}
	return q, nil
}

func (q *leakyQueue) Traits() step.Traits {
	t := q.meter.Traits()
	t.Extra, t.Overshoots = 1, true
	return t
}
