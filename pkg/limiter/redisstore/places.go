package redisstore

import (
	"context"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// giveBackPlaces gives back the places of limits on requests in flight that a call took, though its request did not
// wait for the answer: nobody knows of these places, so nobody would give them back. Nobody waits for it.
func (q *queue) giveBackPlaces(unheard *call) {
	var c *call
	admitted := unheard.byItself || limiter.Admitted(unheard.hits, unheard.out)
	for i := range unheard.hits {
		h := unheard.hits[i]
		if h.N <= 0 || !h.Policy.Algorithm().CountsInFlight() || !unheard.out[i].Allowed {
			continue
		}
		if h.Mode != limiter.Shadow && (!admitted || unheard.modes != nil && !unheard.byItself) {
			continue // it was not charged, or takeBack takes it back
		}
		if c == nil {
			c = q.second(context.Background(), unheard)
			c.ended.Store(true)
		}
		h.N, h.Mode = -h.N, limiter.Enforce
		c.hits = append(c.hits, h)
	}
	if c != nil {
		q.start(c)
	}
}
