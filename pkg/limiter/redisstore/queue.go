package redisstore

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of the calls under way.
const (
	// maxBatch is the most hits of one script call, which keeps Redis busy for about a millisecond. A single request may
	// have more.
	maxBatch = 256
	// maxFlights is the most script calls under way at the same time. While few requests come, none waits for the answer
	// to another.
	maxFlights = 4
	// busyBatch is the batch size from which the queue counts as busy. Then one call at a time is under way: four take
	// 29.4 us of CPU a request instead of 25.5, since each carries fewer requests.
	busyBatch = 8
)

// A request may send its batch from its own goroutine, which it then cannot leave before the batch is answered. It does
// so only while answers are quick: the client ends a call at its deadline, the store's timeout is at most lendTimeout,
// and the latest call took at most lendLatency.
const (
	lendTimeout = 20 * time.Millisecond
	lendLatency = time.Millisecond
)

// call is a request, or its hits in one scope, on the way to Redis. It owns its data: it may outlive its Take.
type call struct {
	hits []limiter.Hit
	out  []limiter.Decision
	err  error
	phase
	timer *time.Timer
	// deadline is when nobody waits for it any more, of a store with UntilDeadline.
	deadline time.Time
	done     chan struct{} // receives when the call is answered, unless Take has left it
	// left is set by whichever comes first, the Take that gives up or the flight that has the answer. The other one
	// frees the call.
	left atomic.Bool
}

// phase is what else a call has that is a step of a request with several participants; see split.go.
type phase struct {
	slot     uint16  // of its keys, in a cluster
	modes    []int64 // of the hits, in place of their own
	byItself bool    // each hit is charged by itself
	until    []int64 // of each hit whose charge is taken back, when the charge is gone by itself; else 0
	of       []int   // the index of each hit in its request
	mustSend bool    // it is sent even if nobody waits for it any more
	at       int64   // when it was decided, in microseconds since the Unix epoch, by the store's clock
}

// forget drops the answer, so that the call can be sent another time.
func (c *call) forget() {
	c.out, c.err, c.at = c.out[:0], nil, 0
}

// mode is hit i's as the script reads it.
func (c *call) mode(i int) int64 {
	switch h := &c.hits[i]; {
	case c.modes != nil:
		return c.modes[i]
	case c.byItself:
		return modeCharge + int64(chargeByItself(h))
	default:
		return int64(h.Mode)
	}
}

// group is hit i's as the script reads it.
func (c *call) group(i int) int64 {
	if c.until != nil {
		return c.until[i]
	}
	return int64(c.hits[i].Group)
}

// queue sends calls in batches. Calls that come while as many batches are under way as may be go out together in the
// next one. So nothing waits for a timer, and batches grow as Redis gets busy. Each batch under way has a goroutine, a
// flight; an idle queue has none.
type queue struct {
	batcher *batcher
	store   *Store // for errors
	timeout time.Duration
	shard   string    // the master's address, in a cluster
	calls   sync.Pool // of *call
	batches sync.Pool // of *batch

	mu      sync.Mutex
	waiting []*call
	flights int
	last    int         // calls in the latest batch
	quick   atomic.Bool // the latest batch took at most lendLatency
}

func newQueue(s *Store, shard string) *queue {
	q := &queue{batcher: s.batcher(), store: s, timeout: s.timeout, shard: shard}
	q.calls.New = func() any {
		c := &call{timer: time.NewTimer(q.timeout), done: make(chan struct{}, 1)}
		c.timer.Stop()
		return c
	}
	q.batches.New = func() any { return new(batch) }
	return q
}

// take decides the hits. It returns early with an error when ctx is done or the timeout is over.
func (q *queue) take(ctx context.Context, slot uint16, hits []limiter.Hit, out []limiter.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := q.newCall(hits, q.store.within(ctx))
	c.slot = slot
	c.byItself = limiter.ByItself(hits) && (len(hits) > 1 || hits[0].Mode != limiter.Enforce)
	if q.add(c) {
		deadline, ok := ctx.Deadline()
		hurry := ok && time.Until(deadline) < q.timeout
		q.begin(!hurry && q.canLend()) //nolint:contextcheck // a batch outlives each of its requests
	}
	if err := q.wait(ctx, c); err != nil {
		return err
	}
	copy(out, c.out)
	err := c.err
	q.free(c)
	return err
}

// start sends a call from another goroutine. The caller waits for it, then frees it.
func (q *queue) start(c *call) *call {
	if q.add(c) {
		q.begin(false)
	}
	return c
}

// wait returns when the call is answered. It returns an error if it gave the call up.
func (q *queue) wait(ctx context.Context, c *call) error {
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
	return nil
}

// newCall returns a call that nobody waits for any more after timeout.
func (q *queue) newCall(hits []limiter.Hit, timeout time.Duration) *call {
	c, _ := q.calls.Get().(*call) // New makes nothing else
	c.hits = append(c.hits, hits...)
	c.timer.Reset(timeout)
	if q.store.follows {
		c.deadline = time.Now().Add(timeout)
	}
	return c
}

// leave gives the call up. It returns false if the call is answered already.
func (q *queue) leave(c *call) bool {
	if c.left.CompareAndSwap(false, true) {
		return true
	}
	<-c.done
	return false
}

// finish wakes the Take that waits for the call, or frees the call if that gave up.
func (q *queue) finish(c *call) {
	if c.left.CompareAndSwap(false, true) {
		c.done <- struct{}{}
		return
	}
	if c.modes != nil && !c.mustSend && c.err == nil {
		q.takeBack(c) // its request does not know that it was charged
	}
	q.free(c)
}

// free puts the call back for reuse.
func (q *queue) free(c *call) {
	c.timer.Stop()
	clear(c.hits)
	c.hits, c.out, c.err, c.phase = c.hits[:0], c.out[:0], nil, phase{}
	c.left.Store(false)
	q.calls.Put(c)
}

// add puts the call into the next batch. It returns true if the caller has to begin a flight for it.
func (q *queue) add(c *call) (begin bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
	begin = q.flights == 0 || (q.flights < maxFlights && q.last < busyBatch)
	if begin {
		q.flights++
	}
	return begin
}

// canLend reports whether a batch ends soon enough for a request to wait for it even after the request is cancelled.
func (q *queue) canLend() bool { return q.store.canLend && q.timeout <= lendTimeout && q.quick.Load() }

// begin starts a flight. With lend it sends the first batch from the caller's goroutine, which takes 14 us less than
// waiting for another one.
func (q *queue) begin(lend bool) {
	b, _ := q.batches.Get().(*batch) // New makes nothing else
	if !lend {
		go q.fly(b)
		return
	}
	if q.next(b) {
		q.send(b)
	}
	if q.land() {
		q.batches.Put(b)
	} else {
		go q.fly(b)
	}
}

// fly sends batch after batch until nothing waits. Before it takes a batch it lets the goroutines run that can: requests
// that have arrived, but not yet reached the queue, join the batch.
func (q *queue) fly(b *batch) {
	for landed := false; !landed; landed = q.land() {
		runtime.Gosched()
		if q.next(b) {
			q.send(b)
		}
	}
	q.batches.Put(b)
}

// send decides the batch and finishes its calls. It has a deadline of its own: the earliest deadline of a request would
// break the connection for the others. It ends when nobody waits for it any more, so that a server that hangs occupies
// no flight for longer.
func (q *queue) send(b *batch) {
	start := time.Now()
	deadline := start.Add(q.timeout)
	if q.store.follows {
		deadline = b.latestDeadline()
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if err := survive(func() { q.batcher.send(ctx, b) }); err != nil {
		b.fail(err)
	}
	if quick := time.Since(start) <= lendLatency; quick != q.quick.Load() { // other cores read it: no needless write
		q.quick.Store(quick)
	}
	for _, c := range b.calls {
		q.finish(c)
	}
	b.reset()
}

// latestDeadline is that of the call that is waited for longest.
func (b *batch) latestDeadline() (latest time.Time) {
	for _, c := range b.calls {
		if c.deadline.After(latest) {
			latest = c.deadline
		}
	}
	return latest
}

// land ends a flight if no call waits.
func (q *queue) land() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		return false
	}
	q.flights--
	return true
}

// next moves waiting calls into the batch. It returns false if there are none.
func (q *queue) next(b *batch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := 0
	for _, c := range q.waiting {
		if len(b.calls) > 0 && b.hits+len(c.hits) > maxBatch {
			break
		}
		taken++
		if c.left.Load() && !c.mustSend { // nobody waits for it: it is not charged
			q.free(c)
			continue
		}
		b.add(c)
	}
	rest := copy(q.waiting, q.waiting[taken:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	q.last = len(b.calls)
	return len(b.calls) > 0
}
