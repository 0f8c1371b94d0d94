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
	hits, out := unheard.hits, unheard.out
	if unheard.modes != nil && !unheard.byItself { // of the others takeBack takes back the charge
		hits, out = nil, nil
		for i := range unheard.hits {
			if unheard.hits[i].Mode == limiter.Shadow {
				hits, out = append(hits, unheard.hits[i]), append(out, unheard.out[i])
			}
		}
	}
	if owed := limiter.Owes(nil, hits, out); len(owed) > 0 {
		c := q.second(context.Background(), unheard)
		c.ended.Store(true)
		c.hits = append(c.hits, owed...)
		q.start(c)
	}
}
