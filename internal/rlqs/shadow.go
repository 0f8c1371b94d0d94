package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// shadowEvery is how often what was reported is charged to limits in shadow mode.
const shadowEvery = 2 * tick

// shadowHit is a hit that never denies, and its limit.
type shadowHit struct {
	limiter.Hit
	counted
}

// pass keeps requests that were reported, to be charged to limits in shadow mode: evenly in as much time as they came
// in. All at once they would not fit into a limit that admits fewer at once, although they fitted when they came.
func (c *client) pass(requests float64, in, now time.Duration) {
	c.passed = min(c.passed+clampHits(requests), limiter.MaxHits/2)
	c.passedBy = now + min(in, interval)
}

// askShadows asks for the hits of requests that were reported, and that nothing was charged for ahead.
func (k *Keeper) askShadows(now time.Duration) (asks []*ask) {
	asks, k.leftShadows = k.leftShadows, nil
	k.eachClient(func(c *client) {
		if c.isStale || now < c.shadowDue {
			return
		}
		n := c.passed
		if left := c.passedBy - now; left > 0 {
			n = int64(math.Ceil(float64(c.passed) * float64(shadowEvery) / float64(shadowEvery+left)))
		}
		if len(c.shadow) > 0 && n > 0 {
			c.shadowDue = now + shadowEvery
			asks = c.askShadows(asks, n)
		}
	})
	return asks
}

// askAllShadows asks for all that was reported.
func (k *Keeper) askAllShadows() (asks []*ask) {
	asks, k.leftShadows = k.leftShadows, nil
	k.eachClient(func(c *client) { asks = c.askShadows(asks, c.passed) })
	return asks
}

// leaveShadows has the next step charge what was reported of a client that goes.
func (k *Keeper) leaveShadows(c *client) {
	if !k.stopped {
		k.leftShadows = c.askShadows(k.leftShadows, c.passed)
	}
}

// askShadows appends asks for n of the client's requests.
func (c *client) askShadows(asks []*ask, n int64) []*ask {
	if n == 0 {
		return asks
	}
	for i := range c.shadow {
		h := &c.shadow[i]
		asks = append(asks, &ask{
			hits: []limiter.Hit{h.Hit}, n: n, shadow: h.counted, isFirst: i == 0 && len(c.enforced) == 0,
		})
	}
	c.passed -= n
	return asks
}
