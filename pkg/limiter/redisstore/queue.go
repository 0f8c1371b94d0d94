package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of what is under way at once.
const (
	// maxBatch is the most hits of one script call, so that Redis, which does nothing else meanwhile, is back
	// within about a millisecond. A single request may have more.
	maxBatch = 256
	// maxFlights is the most script calls under way at once. One would do for Redis; the second keeps it busy while
	// this process reads the answers of the first.
	maxFlights = 2
)

// call is one request on its way to Redis. It outlives a Take that gave up, and so owns all that it refers to.
type call struct {
	hits  []limiter.Hit
	out   []limiter.Decision
	err   error
	timer *time.Timer
	done  chan struct{} // receives once the call is answered, unless it was left
	// left is set by the first of two: the Take that gave up, or the flight that has the answer. The other one
	// puts the call back for reuse.
	left atomic.Bool
}

// queue sends requests in batches: what comes while maxFlights calls are under way goes out with the next one. So
// nothing waits for a timer, and the batches are as large as Redis is busy. There is a goroutine for each call that
// is under way, and none when nothing is.
type queue struct {
	batcher *batcher
	timeout time.Duration
	calls   sync.Pool // of *call

	mu      sync.Mutex
	waiting []*call
	flights int
}

func newQueue(b *batcher, timeout time.Duration) *queue {
	q := &queue{batcher: b, timeout: timeout}
	q.calls.New = func() any {
		c := &call{timer: time.NewTimer(timeout), done: make(chan struct{}, 1)}
		c.timer.Stop()
		return c
	}
	return q
}

// take waits until the hits are decided, ctx is done or the timeout is over, whichever comes first.
func (q *queue) take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := q.newCall(hits)
	q.add(c) //nolint:contextcheck // a batch outlives each of its requests
	select {
	case <-c.done:
	case <-ctx.Done():
		if q.leave(c) {
			return ctx.Err()
		}
	case <-c.timer.C:
		if q.leave(c) {
			return context.DeadlineExceeded
		}
	}
	copy(out, c.out)
	err := c.err
	q.free(c)
	return err
}

func (q *queue) newCall(hits []limiter.Hit) *call {
	c, _ := q.calls.Get().(*call) // New makes nothing else
	c.hits = append(c.hits, hits...)
	c.timer.Reset(q.timeout)
	return c
}

// leave gives the call up. False: it is answered already.
func (q *queue) leave(c *call) bool {
	if c.left.CompareAndSwap(false, true) {
		return true
	}
	<-c.done
	return false
}

// finish tells the call's Take of its answer.
func (q *queue) finish(c *call) {
	if c.left.CompareAndSwap(false, true) {
		c.done <- struct{}{}
		return
	}
	q.free(c)
}

// free keeps the call for reuse.
func (q *queue) free(c *call) {
	c.timer.Stop()
	clear(c.hits)
	c.hits, c.out, c.err = c.hits[:0], c.out[:0], nil
	c.left.Store(false)
	q.calls.Put(c)
}

// add sends the call with the next batch, which starts now if nothing stands in its way.
func (q *queue) add(c *call) {
	q.mu.Lock()
	q.waiting = append(q.waiting, c)
	start := q.flights < maxFlights
	if start {
		q.flights++
	}
	q.mu.Unlock()
	if start {
		go q.fly()
	}
}

// fly sends batch after batch until nothing waits. A batch has a deadline of its own: one that ended with its most
// hurried request would break the connection for those after it.
func (q *queue) fly() {
	var b batch
	for q.next(&b) {
		ctx, cancel := context.WithTimeout(context.Background(), q.timeout)
		q.batcher.send(ctx, &b)
		cancel()
		for _, c := range b.calls {
			q.finish(c)
		}
	}
}

// next takes the calls of a batch from the queue. False: there are none, and the flight is over.
func (q *queue) next(b *batch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.reset()
	taken := 0
	for _, c := range q.waiting {
		if len(b.calls) > 0 && b.hits+len(c.hits) > maxBatch {
			break
		}
		taken++
		if c.left.Load() { // nobody waits for it: it is not charged
			q.free(c)
			continue
		}
		b.add(c)
	}
	rest := copy(q.waiting, q.waiting[taken:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	if len(b.calls) == 0 {
		q.flights--
	}
	return len(b.calls) > 0
}
