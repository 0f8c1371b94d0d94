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

// Bounds of the calls in flight.
const (
	// maxBatch is the maximum number of hits of several requests in one script call. Redis needs about 1 ms for them.
	maxBatch = 256
	// maxWorkers is the maximum number of script calls in flight, above 1 so that few requests do not wait for each other.
	maxWorkers = 4
	// busyBatch is the batch size from which the queue counts as busy. Then only one call at a time is in flight. Four
	// calls would carry fewer requests each, and take 29.4 us of CPU per request instead of 25.5.
	busyBatch = 8
	// maxDetached is the number of detached workers (see LateAnswer) from which no new batch is patient. The circuit
	// breaker of internal/guard opens before that.
	maxDetached = 4 * maxWorkers
	// maxWaiting is the number of waiting calls, about 64 ms of work for Redis, beyond which the oldest call is shed.
	maxWaiting = 64 * maxBatch
)

// A timeout counts as a failure of Redis only if Redis had the time to reply, and this process had the time to read the
// reply. See expiring.judge and docs/adr/0084.
const (
	// lateBy is the maximum delay of the alarm in a punctual process. Go's timers are up to 1 ms late.
	lateBy = 2 * time.Millisecond
	// mostLate is the maximum time that a call waits while this process is late, in multiples of the store's timeout.
	mostLate = 2
)

// A request may send its batch from its own goroutine, which then cannot return before the reply. A request does this
// only if the client ends a call at its deadline, the store's timeout is at most lendTimeout, and the latest batch was
// one request and took at most lendLatency. With 64 requests outstanding, a worker takes a tenth less CPU.
const (
	lendTimeout = 20 * time.Millisecond
	lendLatency = time.Millisecond
)

// LateAnswer is the time that a Store waits for a reply that may count requests as in flight, even if these requests
// have already given up. The Store then refunds what the reply charged, which otherwise would count until its lease
// ends. The client's ReadTimeout must be at least LateAnswer.
//
// Such a batch is patient. When all of its requests have given up, its worker is detached: it no longer counts towards
// maxWorkers, so that the next requests do not wait for it. See docs/adr/0085.
const LateAnswer = time.Second

// noticeCancel is the maximum time after which a cancelled request stops waiting. limiter.Store allows 20 ms.
const noticeCancel = 10 * time.Millisecond

// call is a request to Redis, or its hits in one scope. It owns its data, because it may outlive the request's Take.
type call struct {
	hits []limiter.Hit
	out  []limiter.Decision
	err  error
	phase
	ctx      context.Context //nolint:containedctx // the request's context: see queue.expire
	within   time.Duration   // maximum time that the request waits for Redis
	deadline time.Time       // end of that time
	late     time.Time       // end of the request's wait if this process is late
	// done receives nil when the call is decided, or the reason for which its request must stop waiting. A request that
	// receives nil owns the call again, and must free it. After a reason only the worker uses the call.
	done chan error
	// ended is set by the goroutine that sends to done: the worker that has the reply, or expire.
	ended atomic.Bool
}

// phase holds the additional data of a call that is one step of a request with several participants; see split.go.
type phase struct {
	scope            // scope of the call's keys, if the request's keys are on several servers
	modes    []int64 // mode of each hit, in place of Hit.Mode
	byItself bool    // each hit is charged independently (Hit.ByItself)
	until    []int64 // per hit: when the charge that it takes back would have expired, in microseconds; else 0
	of       []int   // index of each hit in the request
	mustSend bool    // the call is sent even if its request has given up
	at       int64   // time of the decision, in microseconds since the Unix epoch, by the store's clock
}

// mode returns the mode of hit i for the script: see lua/call.lua.
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

// group returns the group of hit i for the script: see lua/call.lua.
func (c *call) group(i int) int64 {
	h := &c.hits[i]
	if h.TakenAt != 0 && h.Policy.Algorithm().CountsInFlight() {
		return h.TakenAt + h.Policy.Window().Microseconds()
	} else if h.TakenAt != 0 {
		return h.TakenAt
	}
	if c.until != nil {
		return c.until[i]
	}
	return int64(h.Group)
}

// queue sends calls in batches. Calls that arrive while the maximum number of batches is in flight go together in the
// next batch. So no call waits for a timer, and batches grow as Redis gets busy. Each batch in flight has a goroutine,
// its worker. An idle queue has no goroutine.
type queue struct {
	batcher *batcher
	store   *Store // for errors
	timeout time.Duration
	late    time.Duration // LateAnswer
	shard   string        // address of the master, in a cluster
	calls   sync.Pool     // of *call
	batches sync.Pool     // of *batch

	mu       sync.Mutex
	silent   time.Time // time since which Redis has not replied (see queue.judges); zero if Redis replies
	waiting  []*call
	workers  int         // number of workers that are not detached
	busy     []*batch    // batches in flight, also of detached workers
	alarm    *time.Timer // runs expire
	alarmSet bool
	alarmAt  time.Time
	last     int         // number of calls in the latest batch
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

// callOf returns the call of a request that has waited since the given time.
func (q *queue) callOf(of *storekit.Call, since time.Time) *call {
	c := q.newCall(of.Ctx, since, since.Add(q.timeout))
	c.hits = append(c.hits, of.Hits...)
	c.byItself = sendsByItself(of.Hits)
	return c
}

// await waits for a call, copies the decisions to out, and frees the call.
func (q *queue) await(c *call, out []limiter.Decision) error {
	if err := <-c.done; err != nil {
		return err
	}
	copy(out, c.out)
	err := c.err
	q.free(c)
	return err
}

// sendsByItself reports whether the modes that the script reads must say that each hit is charged independently. A
// single hit that is enforced needs no such mode.
func sendsByItself(hits []limiter.Hit) bool {
	return limit.ByItself(hits) && (len(hits) > 1 || hits[0].Mode != limiter.Enforce)
}

// takeAll decides several requests, each as take does. The caller's goroutine may send them, but only with a short
// timeout (see lends), because the requests then cannot stop waiting before the reply.
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

// start sends a call from another goroutine. The caller must wait for the call, and then free it.
func (q *queue) start(c *call) *call {
	if q.add(c) {
		q.begin(false)
	}
	return c
}

// newCall returns a call without hits, of a request that has waited since one time and may wait until the other.
func (q *queue) newCall(ctx context.Context, since, until time.Time) *call {
	c, _ := q.calls.Get().(*call) // the pool holds only calls
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
	if !c.mustSend && c.err == nil { // the request gave up before it was charged
		q.refund(c)
	}
}

func (q *queue) free(c *call) {
	clear(c.hits)
	c.hits, c.out, c.err, c.phase, c.ctx = c.hits[:0], c.out[:0], nil, phase{}, nil
	c.ended.Store(false)
	q.calls.Put(c)
}

// expire gives up the calls whose requests are cancelled, or whose time is over. It runs often enough while calls are
// outstanding, so that a request waits for one channel and needs no timer. See docs/adr/0011. expire lets other
// goroutines run first, so that workers can read the replies that have arrived, and so that the alarm's measured delay
// includes the time that goroutines wait for a CPU.
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

// expiry is a call that expire gives up, and the reason.
type expiry struct {
	call *call
	why  error
}

// expired returns the calls to give up. With begin, the caller must begin a worker in place of a detached one.
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

// judges reports whether the batch's worker decides whether Redis replied in time. The worker's wait must then end at
// the calls' timeout. For any other worker, Redis counts as silent from the time of sending.
func (q *queue) judges(b *batch) bool {
	return q.store.canLend && !q.store.o.UntilDeadline && !b.isPatient
}

// expiring is one run of queue.expire.
type expiring struct {
	now    time.Time
	next   time.Time // time of the next run
	isLate bool      // the alarm ran later than lateBy allows
	ends   []expiry
}

// expire gives up calls whose wait is over, and sheds the first tooMany calls. It reports whether a request still waits
// for one of the calls. since is queue.silent.
func (x *expiring) expire(calls []*call, since time.Time, tooMany int) (isAwaited bool) {
	for i, c := range calls {
		if c.ended.Load() {
			continue
		}
		why := c.ctxErr(x.now)
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

// ctxErr returns the error of the request's context, after its deadline even if the context's timer has not run yet.
func (c *call) ctxErr(now time.Time) error {
	if deadline, ok := c.ctx.Deadline(); ok && !now.Before(deadline) {
		return context.DeadlineExceeded
	}
	return c.ctx.Err()
}

// judge returns the reason for which the call's request must stop waiting, nil if it may wait on. Redis has failed if
// it was silent for the call's time while this process was punctual. since is queue.silent.
func (x *expiring) judge(c *call, since time.Time) error {
	next := c.deadline
	if !x.now.Before(c.deadline) {
		switch {
		case !x.isLate && !since.IsZero() && x.now.Sub(since) >= c.within-lateBy:
			return context.DeadlineExceeded
		case !x.now.Before(c.late):
			return limiter.ErrLate
		}
		next = x.now.Add(lateBy)
	}
	if next.Before(x.next) {
		x.next = next
	}
	return nil
}

// setAlarm makes expire run at the given time or earlier.
func (q *queue) setAlarm(at time.Time) {
	if q.alarmSet && !at.Before(q.alarmAt) {
		return
	}
	q.alarmSet, q.alarmAt = true, at
	q.alarm.Reset(time.Until(at))
}

// add appends calls to the queue. With begin, the caller must begin a worker for them.
func (q *queue) add(calls ...*call) (begin bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, calls...)
	// The first call's deadline suffices, because expire checks all calls at least every noticeCancel.
	if first := calls[0].deadline; !q.alarmSet || first.Before(q.alarmAt) {
		at := time.Now().Add(noticeCancel)
		if first.Before(at) {
			at = first
		}
		q.setAlarm(at)
	}
	return q.addWorker()
}

// addWorker reports whether the caller may begin another worker, and counts that worker. The caller must hold q.mu.
func (q *queue) addWorker() (begin bool) {
	begin = q.workers == 0 || (q.workers < maxWorkers && q.last < busyBatch)
	if begin {
		q.workers++
	}
	return begin
}

// lends reports whether each batch ends so soon that requests may wait for it even after they are cancelled.
func (q *queue) lends() bool { return q.store.canLend && q.timeout <= lendTimeout }

// begin starts a worker. With lend, and if the queue lends, it sends the first batch from the caller's goroutine, which
// takes 14 us less than waiting for another goroutine.
func (q *queue) begin(lend bool) {
	lend = lend && q.lends()
	b, _ := q.batches.Get().(*batch) // the pool holds only batches
	if lend && q.next(b) && !b.isPatient {
		q.send(b)
	}
	if lend && len(b.calls) == 0 && q.endIfIdle() {
		q.batches.Put(b)
	} else {
		go q.keepWorking(b)
	}
}

// keepWorking runs work, and runs it again with a new batch after a panic. The calls of the old batch then expire.
func (q *queue) keepWorking(b *batch) {
	panics.Restart(nil, "calls to Redis", func() {
		this := b
		if b = nil; this == nil {
			this, _ = q.batches.Get().(*batch) // the pool holds only batches
		}
		q.work(this)
	})
}

// work sends batches until no call waits. Before each batch it lets other goroutines run, so that requests that have
// arrived, but are not yet in the queue, join the batch. See docs/adr/0011.
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

// send decides the batch and finishes its calls. It does not end at the earliest deadline of a request, because that
// would break the connection for the other requests. It ends when all requests have stopped waiting, so that a server
// that hangs does not occupy the worker longer. If the batch is patient, its worker goes on, and isDetached is true.
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
	if quick != q.quick.Load() { // a needless write would slow down other cores, which read it
		q.quick.Store(quick)
	}
	isDetached = q.arrive(b, time.Since(deadline) > max(lateBy, q.timeout/8))
	for _, c := range b.calls {
		q.finish(c)
	}
	b.reset()
	return isDetached
}

// arrive removes the batch from q.busy, so that expire does not touch its calls, which other requests may reuse. It
// also sets q.silent. If this process is late and has no connection in time, that says nothing about Redis.
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

// latestDeadline returns the latest deadline of the calls, or most if one of them must be sent in any case.
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

// endIfIdle ends the caller's worker if no call waits, and reports whether it did.
func (q *queue) endIfIdle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 {
		return false
	}
	q.workers--
	return true
}

// next moves waiting calls into the batch. It returns false if there is no call to send.
func (q *queue) next(b *batch) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := 0
	for _, c := range q.waiting {
		if len(b.calls) > 0 && b.hits+len(c.hits) > maxBatch {
			break
		}
		taken++
		if c.ended.Load() && !c.mustSend { // its request has given up
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

// detached returns the number of detached workers. The caller must hold q.mu.
func (q *queue) detached() (n int) {
	for _, b := range q.busy {
		if b.isDetached {
			n++
		}
	}
	return n
}
