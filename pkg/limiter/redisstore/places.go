package redisstore

import (
	"context"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// LateAnswer is within which time the answer to a request for a place in a limit on requests in flight is read, also
// when its request has been given up: the place is then given back. Else it would stay taken until its lease ends. The
// client's ReadTimeout has to be as long.
//
// The flight that waits for such an answer is left behind: it does not count as one of maxFlights any more, so that the
// next requests do not wait for it. docs/adr/0080 says why so.
const LateAnswer = time.Second

// left is how many flights are left behind. The queue is locked.
func (q *queue) left() (n int) {
	for _, b := range q.flying {
		if b.isLeft {
			n++
		}
	}
	return n
}

// giveBackPlaces gives back the places of limits on requests in flight that a call took, though its request did not
// wait for the answer: nobody knows of these places, so nobody would give them back. Nobody waits for it.
func (q *queue) giveBackPlaces(unheard *call) {
	var c *call
	admitted := unheard.byItself || limiter.Admitted(unheard.hits, unheard.out)
	for i := range unheard.hits {
		h := unheard.hits[i]
		if !h.TakesPlaces() || !unheard.out[i].Allowed {
			continue
		}
		if h.Mode != limiter.Shadow && (!admitted || unheard.modes != nil && !unheard.byItself) {
			continue // it was not charged, or takeBack takes it back
		}
		if c == nil {
			c = q.second(context.Background(), unheard)
			c.ended.Store(true)
		}
		h.N, h.Mode, h.TakenAt = -h.N, limiter.Enforce, unheard.out[i].TakenAt
		c.hits = append(c.hits, h)
	}
	if c != nil {
		q.start(c)
	}
}
