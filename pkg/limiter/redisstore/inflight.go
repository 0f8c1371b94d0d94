package redisstore

import (
	"context"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// LateAnswer is the time within which an answer is read that may count a request as in flight, also when the request
// has been given up: what counts is then refunded. Otherwise it would count until its lease ends. The client's
// ReadTimeout has to be as long.
//
// The worker that waits for such an answer is detached: it does not count as one of maxWorkers any more, so that the
// next requests do not wait for it. docs/adr/0085 says why so.
const LateAnswer = time.Second

// detached returns how many workers are detached. The queue is locked.
func (q *queue) detached() (n int) {
	for _, b := range q.busy {
		if b.isDetached {
			n++
		}
	}
	return n
}

// endInFlight refunds what a call counts as in flight, though its request did not wait for the answer: the end of
// such a request is never reported. It does not wait for the store.
func (q *queue) endInFlight(unheard *call) {
	hits, out := unheard.hits, unheard.out
	if unheard.modes != nil && !unheard.byItself { // of the others takeBack takes back the charge
		hits, out = nil, nil
		for i := range unheard.hits {
			if unheard.hits[i].Mode == limiter.Shadow {
				hits, out = append(hits, unheard.hits[i]), append(out, unheard.out[i])
			}
		}
	}
	if owed := limit.Owes(nil, hits, out); len(owed) > 0 {
		c := q.second(context.Background(), unheard)
		c.ended.Store(true)
		c.hits = append(c.hits, owed...)
		q.start(c)
	}
}
