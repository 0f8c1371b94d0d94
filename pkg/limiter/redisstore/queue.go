package redisstore

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Bounds of the calls under way.
const (
	// maxBatch is the most hits of one script call, which keeps Redis busy for about a millisecond. A single request may
	// have more.
	maxBatch = 256
	// maxWorkers is the most script calls under way at the same time. While few requests come, none waits for the answer
	// to another.
	maxWorkers = 4
	// busyBatch is the batch size from which the queue counts as busy. Then one call at a time is under way: four take
	// 29.4 us of CPU a request instead of 25.5, since each carries fewer requests.
	busyBatch = 8
	// maxDetached is the most workers that may be detached (see LateAnswer) when a further one begins that may be. While
	// so many begin, one after the other, the circuit breaker of internal/guard opens.
	maxDetached = 4 * maxWorkers
	// maxWaiting is the most calls that wait to be sent. Redis needs about 64 ms for so many. Beyond it, the oldest call
	// is shed.
	maxWaiting = 64 * maxBatch
)

// A call whose time is over counts against Redis only if Redis had the time to answer and this process the time to read
// the answer. See queue.judge and docs/adr/0084.
const (
	// lateBy is how late the alarm may be while this process counts as punctual. Go's timers are up to 1 ms late.
	lateBy = 2 * time.Millisecond
	// mostLate is the longest that a call waits, in multiples of its timeout, while this process is late.
	mostLate = 2
)

// A request may send its batch from its own goroutine, which it then cannot leave before the batch is answered. It does
// so only while answers are quick and requests come one at a time: the client ends a call at its deadline, the store's
// timeout is at most lendTimeout, and the latest batch was one request and took at most lendLatency. Under load a
// worker of its own carries more requests: with 64 outstanding, that takes a tenth less CPU.
const (
	lendTimeout = 20 * time.Millisecond
	lendLatency = time.Millisecond
)

// LateAnswer is the time within which an answer is read that may count a request as in flight, also when the request
// has been given up: what counts is then refunded. Otherwise it would count until its lease ends. The client's
// ReadTimeout has to be as long.
//
// The worker that waits for such an answer is detached: it does not count as one of maxWorkers any more, so that the
// next requests do not wait for it. docs/adr/0085 says why so.
const LateAnswer = time.Second

// noticeCancel is how long a request that is cancelled may wait on. limiter.Store allows 20 ms.
const noticeCancel = 10 * time.Millisecond

// call is a request, or its hits in one scope, on the way to Redis. It owns its data: it may outlive its Take.
type call struct {
	hits []limiter.Hit
	out  []limiter.Decision
	err  error
	phase
	ctx      context.Context //nolint:containedctx // of its request: see queue.expire
	within   time.Duration   // how long its request waits for Redis
	deadline time.Time       // when that is over
	late     time.Time       // when its request waits no more, though this process was late
	// done receives nil when the call is answered, or why its request must not wait any longer. A request that receives
	// nil owns the call again, and frees it. Else the call belongs to its worker, and nobody uses it again.
	done chan error
	// ended is set by whoever sends to done: the worker that has the answer, or expire.
	ended atomic.Bool
}

// phase is what else a call has that is a step of a request with several participants; see split.go.
type phase struct {
	scope            // of its keys, where they are on several servers
	modes    []int64 // of the hits, in place of their own
	byItself bool    // each hit is charged by itself
	until    []int64 // of each hit whose charge is taken back, when the charge is gone by itself; else 0
	of       []int   // the index of each hit in its request
	mustSend bool    // it is sent even if nobody waits for it any more
	at       int64   // when it was decided, in microseconds since the Unix epoch, by the store's clock
}

// mode is hit i's as the script reads it.
func (c *call) mode(i int) int64 {
	switch h := &c.hits[i]; {
	case c.modes != nil:
		return c.modes[i]
	case c.byItself, h.TakenAt != 0:
		return modeCharge + int64(chargeByItself(h))
	default:
		return int64(h.Mode)
	}
}

// group is hit i's as the script reads it.
func (c *call) group(i int) int64 {
	h := &c.hits[i]
	if h.TakenAt != 0 {
		return h.TakenAt + h.Policy.Window().Microseconds()
	}
	if c.until != nil {
		return c.until[i]
	}
	return int64(h.Group)
}

// queue sends calls in batches. Calls that come while as many batches are under way as may be go out together in the
// next one. So nothing waits for a timer, and batches grow as Redis gets busy. Each batch under way has a goroutine, a
// worker; an idle queue has none.
type queue struct {
	batcher *batcher
	store   *Store // for errors
	timeout time.Duration
	late    time.Duration // LateAnswer
	shard   string        // the master's address, in a cluster
	calls   sync.Pool     // of *call
	batches sync.Pool     // of *batch

	mu       sync.Mutex
	silent   time.Time // since when Redis has not answered: see queue.judges; zero: it has
	waiting  []*call
	workers  int
	busy     []*batch    // those under way, of which expire reads the calls, and those that are detached
	alarm    *time.Timer // runs expire
	alarmSet bool
	alarmAt  time.Time
	last     int         // calls in the latest batch
	quick    atomic.Bool // the latest batch was one request and took at most lendLatency
}

func newQueue(s *Store, shard string) *queue {
	q := &queue{batcher: s.batcher(), store: s, timeout: s.o.Timeout, late: LateAnswer, shard: shard}
	q.calls.New = func() any { return &call{done: make(chan error, 1)} }
	q.batches.New = func() any { return new(batch) }
	q.alarm = time.AfterFunc(noticeCancel, func() { panics.Catch("timeouts of Redis", q.expire) })
	q.alarm.Stop()
	return q
}

// take decides a request. It returns early with an error when its context is done or the timeout is over.
func (q *queue) take(of *storekit.Call, since time.Time, at scope) error {
	if err := of.Ctx.Err(); err != nil {
		return err
	}
	c := q.callOf(of, since)
	c.scope = at
	if q.add(c) {
		q.begin(c.within == q.timeout && q.quick.Load())
	}
	return q.await(c, of.Out)
}

// callOf returns the call of a request that waits since a time.
func (q *queue) callOf(of *storekit.Call, since time.Time) *call {
	c := q.newCall(of.Ctx, since, since.Add(q.timeout))
	c.hits = append(c.hits, of.Hits...)
	c.byItself = sendsByItself(of.Hits)
	return c
}

// await waits for a call, copies its decisions, and frees it.
func (q *queue) await(c *call, out []limiter.Decision) error {
	if err := <-c.done; err != nil {
		return err
	}
	copy(out, c.out)
	err := c.err
	q.free(c)
	return err
}

// sendsByItself reports whether the script has to be told that each hit is charged by itself. A single hit that is
// enforced is so in any case.
func sendsByItself(hits []limiter.Hit) bool {
	return limit.ByItself(hits) && (len(hits) > 1 || hits[0].Mode != limiter.Enforce)
}

// takeAll decides calls together, as take does each. Their goroutine sends them, if that ends soon: with a long timeout
// they would wait for it after their own time is over, which runs from when each of them came.
func (q *queue) takeAll(calls []*storekit.Call) {
	own, some := make([]*call, len(calls)), make([]*call, 0, len(calls))
	for i, c := range calls {
		if c.Err = c.Ctx.Err(); c.Err == nil {
			own[i] = q.callOf(c, began(c))
			some = append(some, own[i])
		}
	}
	if len(some) > 0 && q.add(some...) {
		q.begin(true)
	}
	for i, c := range calls {
		if own[i] != nil {
			c.Err = q.await(own[i], c.Out)
		}
	}
}

// start sends a call from another goroutine. The caller waits for it, then frees it.
func (q *queue) start(c *call) *call {
	if q.add(c) {
		q.begin(false)
	}
	return c
}

// newCall returns a call, without hits, of a request that waits since a time, and until another one at the longest.
func (q *queue) newCall(ctx context.Context, since, until time.Time) *call {
	c, _ := q.calls.Get().(*call) // New makes nothing else
	within, late := min(q.timeout, until.Sub(since)), mostLate*q.timeout
	if deadline, ok := ctx.Deadline(); ok {
		left := deadline.Sub(since)
		most := left * 9 / 10
		if q.store.o.UntilDeadline {
			left = most
		}
		within = min(within, left)
		late = max(within, min(late, most))
	}
	c.ctx, c.within, c.deadline, c.late = ctx, within, since.Add(within), since.Add(late)
	return c
}

// finish wakes the request that waits for the call.
func (q *queue) finish(c *call) {
	if c.ended.CompareAndSwap(false, true) {
		c.done <- nil
		return
	}
	if !c.mustSend && c.err == nil { // its request does not know that it was charged
		q.refund(c)
	}
}

// free puts the call back for reuse.
func (q *queue) free(c *call) {
	clear(c.hits)
	c.hits, c.out, c.err, c.phase, c.ctx = c.hits[:0], c.out[:0], nil, phase{}, nil
	c.ended.Store(false)
	q.calls.Put(c)
}

// expire gives up the calls whose requests are cancelled, or whose time is over. It runs while calls are outstanding,
// often enough for both, so that a request needs no timer, and waits for one channel. See docs/adr/0011. It lets other
// goroutines run first: workers read what Redis has answered, and their queue is part of how late this process is.
func (q *queue) expire() {
	runtime.Gosched()
	ends, begin := q.expired()
	if begin {
		q.begin(false)
	}
	for _, e := range ends {
		e.call.done <- e.why
	}
}

// expiry is a call that is given up.
type expiry struct {
	call *call
	why  error
}

// expired returns the calls that are given up, and true if the caller has to begin a worker in place of one that is
// detached.
func (q *queue) expired() (ends []expiry, begin bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.alarmSet = false
	if q.workers == 0 && len(q.waiting) == 0 { // no call is outstanding
		return nil, false
	}
	now := time.Now()
	x := expiring{now: now, next: now.Add(noticeCancel), isLate: now.Sub(q.alarmAt) > lateBy}
	isDetached := false
	x.expire(q.waiting, q.silent, len(q.waiting)-maxWaiting)
	for _, b := range q.busy {
		if b.isDetached {
			continue
		}
		if isAwaited := x.expire(b.calls, q.silent, 0); b.isPatient && !isAwaited {
			b.isDetached, isDetached = true, true
			q.workers--
		}
	}
	q.setAlarm(x.next)
	return x.ends, isDetached && len(q.waiting) > 0 && q.addWorker()
}

// judges reports whether the batch's worker says itself that Redis has not answered in time: it reads the answer, so it
// knows. A worker that waits longer than its calls cannot: Redis counts as silent from when the batch was sent.
func (q *queue) judges(b *batch) bool {
	return q.store.canLend && !q.store.o.UntilDeadline && !b.isPatient
}

// expiring is one run of expire.
type expiring struct {
	now    time.Time
	next   time.Time // when it has to run again
	isLate bool      // this process runs later than it should
	ends   []expiry
}

// expire gives up calls, the first ones since they are too many, and reports whether others are awaited. Redis has not
// answered since then; zero: it has.
func (x *expiring) expire(calls []*call, since time.Time, tooMany int) (isAwaited bool) {
	for i, c := range calls {
		if c.ended.Load() {
			continue
		}
		why := c.gone(x.now)
		if why == nil && i < tooMany {
			why = limiter.ErrShed
		} else if why == nil {
			why = x.judge(c, since)
		}
		if why == nil {
			isAwaited = true
		} else if c.ended.CompareAndSwap(false, true) {
			x.ends = append(x.ends, expiry{c, why})
		}
	}
	return isAwaited
}

// gone returns why the call's request waits for nothing any more, nil if it waits. At the request's own deadline its
// context may not have ended yet: both have a timer.
func (c *call) gone(now time.Time) error {
	if deadline, ok := c.ctx.Deadline(); ok && !now.Before(deadline) {
		return context.DeadlineExceeded
	}
	return c.ctx.Err()
}

// judge returns why the call's request waits no more, nil if it waits. Redis has failed if it had the call's time to
// answer, and this process is punctual.
func (x *expiring) judge(c *call, since time.Time) error {
	look := c.deadline
	if !x.now.Before(c.deadline) {
		switch {
		case !x.isLate && !since.IsZero() && x.now.Sub(since) >= c.within-lateBy:
			return context.DeadlineExceeded
		case !x.now.Before(c.late):
			return limiter.ErrLate
		}
		look = x.now.Add(lateBy)
	}
	if look.Before(x.next) {
		x.next = look
	}
	return nil
}

// setAlarm has expire run at a time, or earlier.
func (q *queue) setAlarm(at time.Time) {
	if q.alarmSet && !at.Before(q.alarmAt) {
		return
	}
	q.alarmSet, q.alarmAt = true, at
	q.alarm.Reset(time.Until(at))
}

// add puts calls into the next batch. It returns true if the caller has to begin a worker for them.
func (q *queue) add(calls ...*call) (begin bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, calls...)
	// Calls of one store have nearly the same deadline. An alarm was set at most noticeCancel ahead.
	if first := calls[0].deadline; !q.alarmSet || first.Before(q.alarmAt) {
		at := time.Now().Add(noticeCancel)
		if first.Before(at) {
			at = first
		}
		q.setAlarm(at)
	}
	return q.addWorker()
}

// addWorker counts one more worker, and returns true, if there may be one. The queue is locked.
func (q *queue) addWorker() (begin bool) {
	begin = q.workers == 0 || (q.workers < maxWorkers && q.last < busyBatch)
	if begin {
		q.workers++
	}
	return begin
}

// lends reports whether each batch ends soon enough for requests to wait for it even after they are cancelled.
func (q *queue) lends() bool { return q.store.canLend && q.timeout <= lendTimeout }

// begin starts a worker. With lend it sends the first batch from the caller's goroutine, if it may, which takes 14 us
// less than waiting for another one.
func (q *queue) begin(lend bool) {
	lend = lend && q.lends()
	b, _ := q.batches.Get().(*batch) // New makes nothing else
	if lend && q.next(b) && !b.isPatient {
		q.send(b)
	}
	if lend && len(b.calls) == 0 && q.endIfIdle() {
		q.batches.Put(b)
	} else {
		go q.keepWorking(b)
	}
}

// keepWorking works to the end. A worker that panics leaves its batch to expire, and goes on with another.
func (q *queue) keepWorking(b *batch) {
	panics.Restart(nil, "calls to Redis", func() {
		this := b
		if b = nil; this == nil {
			this, _ = q.batches.Get().(*batch) // New makes nothing else
		}
		q.work(this)
	})
}

// work sends batch after batch until nothing waits. Before it takes a batch it lets other goroutines run: requests that
// have arrived, but not yet reached the queue, join the batch. See docs/adr/0011.
func (q *queue) work(b *batch) {
	for done := false; !done; {
		runtime.Gosched()
		isDetached := false
		if len(b.calls) > 0 || q.next(b) {
			isDetached = q.send(b)
		}
		done = isDetached || q.endIfIdle()
	}
	q.batches.Put(b)
}

// send decides the batch and finishes its calls. It has a deadline of its own: the earliest deadline of a request would
// break the connection for the others. It ends when nobody waits for it any more, so that a server that hangs occupies
// no worker for longer; a patient one is detached instead, which send reports.
func (q *queue) send(b *batch) (isDetached bool) {
	start := b.sentAt
	deadline := start.Add(q.timeout)
	switch {
	case b.isPatient:
		deadline = start.Add(max(q.timeout, q.late))
	case q.store.o.UntilDeadline:
		deadline = b.latestDeadline(deadline)
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := survive(func() error {
		q.batcher.send(ctx, b)
		return nil
	})
	if err != nil {
		b.fail(err)
	}
	quick := len(b.calls) == 1 && time.Since(start) <= lendLatency
	if quick != q.quick.Load() { // other cores read it: no needless write
		q.quick.Store(quick)
	}
	isDetached = q.arrive(b, time.Since(deadline) > max(lateBy, q.timeout/8))
	for _, c := range b.calls {
		q.finish(c)
	}
	b.reset()
	return isDetached
}

// arrive takes the batch from expire: a call may be another request's once it is finished. It notes whether Redis is
// silent. That there was no connection in time says nothing about Redis if this process is late.
func (q *queue) arrive(b *batch, isLate bool) (isDetached bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range b.calls {
		switch {
		case c.err == nil || Answered(c.err):
			q.silent = time.Time{}
		case isLate && q.silent.IsZero() && errors.Is(c.err, context.DeadlineExceeded):
			c.err = limiter.ErrLate
		case q.silent.IsZero():
			q.silent = b.sentAt
		}
	}
	i := slices.Index(q.busy, b)
	q.busy = slices.Delete(q.busy, i, i+1)
	return b.isDetached
}

// latestDeadline is when the last of the calls gives up waiting, and most if one must be sent in any case.
func (b *batch) latestDeadline(most time.Time) (latest time.Time) {
	for _, c := range b.calls {
		if c.mustSend {
			return most
		}
		if c.deadline.After(latest) {
			latest = c.deadline
		}
	}
	return latest
}

// endIfIdle ends a worker if no call waits.
func (q *queue) endIfIdle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		return false
	}
	q.workers--
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
		if c.ended.Load() && !c.mustSend { // nobody waits for it: it is not charged
			continue
		}
		b.add(c)
	}
	rest := copy(q.waiting, q.waiting[taken:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	q.last = len(b.calls)
	if q.last == 0 {
		return false
	}
	b.isPatient = b.countsInFlight && q.detached() < maxDetached
	if b.sentAt = time.Now(); q.silent.IsZero() && !q.judges(b) {
		q.silent = b.sentAt
	}
	q.busy = append(q.busy, b)
	return true
}

// detached returns how many workers are detached. The queue is locked.
func (q *queue) detached() (n int) {
	for _, b := range q.busy {
		if b.isDetached {
			n++
		}
	}
	return n
}
