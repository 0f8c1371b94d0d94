package redisstore

import "time"

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
