package guard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// errPanicked is the error of a call that panicked.
var errPanicked = errors.New("the call panicked; the log has the stack")

// maxRenewals keeps a call of renew below what redisstore puts into one script call: a renewal is two hits.
const maxRenewals = 100

// renewal releases what is left of a lease and takes permits again.
type renewal struct {
	lease            *lease
	hit              limiter.Hit // lease.hit and lease.span when it began
	span             time.Duration
	release, acquire int64
	reserved         int64 // of release: what counts as lease.reserved until it is released
}

// exchange is one call to the store: what is released comes first, so that nobody is denied for permits that lie here;
// then the hits of a request; then what is acquired in advance. That is in shadow mode, which means that each is
// charged if it fits, and that it does not matter to the request whether it does.
type exchange struct {
	leases   *Leases
	renewals []renewal
	hits     []limiter.Hit
	out      []limiter.Decision
	first    int // of the request's hits
	last     int // behind them
	err      error
	done     chan struct{}
}

func newExchange(l *Leases) *exchange { return &exchange{leases: l, done: make(chan struct{})} }

// exchanges are those that are being filled, one for each shard; nil where there is nothing to do yet.
type exchanges map[Shard]*exchange

// send does all exchanges. Nobody waits for them.
func (xs exchanges) send() {
	for _, x := range xs {
		x.send()
	}
}

// send does an exchange without a request's hits, if there is one. Nobody waits for it.
func (x *exchange) send() {
	if x == nil {
		return
	}
	x.assemble(nil, nil)
	panics.Go("call of leases", func() { x.run(x.leases.ctx) })
}

// exchangesOf returns where to begin exchanges for a request whose hits are decided by several shards; nil if one
// decides all. Then the request's own call does the exchange, too. A call to several shards fails if one of them does,
// and would lose the permits of the others.
func (l *Leases) exchangesOf(hits []limiter.Hit) exchanges {
	if l.o.Shard == nil {
		return nil
	}
	first := l.o.Shard(&hits[0])
	for i := range hits[1:] {
		if l.o.Shard(&hits[1+i]) != first {
			return make(exchanges)
		}
	}
	return nil
}

// shardOf returns the shard of a lease.
func (l *Leases) shardOf(e *lease) Shard {
	if l.o.Shard == nil {
		return Shard{}
	}
	return l.o.Shard(&e.hit)
}

// begin takes the lease into the exchange: its permits are no longer spent. It returns x, or a new exchange if that is
// nil. Nothing happens if there is nothing to release or to take. The shard is locked, and no call is under way.
func (l *Leases) begin(x *exchange, e *lease, now time.Duration) *exchange {
	back := e.permits
	e.permits = 0
	if back > 0 && !returnable(e.ends, now) {
		e.shard.stats.Permits -= back
		e.shard.stats.Lost += uint64(back)
		back = 0
	}
	extra := int64(0)
	if !e.shard.closed {
		extra = e.want(now)
	}
	if back == 0 && extra == 0 {
		return x
	}
	if x == nil {
		x = newExchange(l)
		l.calls.Add(1)
	}
	e.grant++
	e.call, e.promised = x, extra
	x.renewals = append(x.renewals, renewal{lease: e, hit: e.hit, span: e.span, release: back, acquire: extra})
	return x
}

// assemble makes the call's hits of the renewals and the request's hits that are not covered.
func (x *exchange) assemble(hits []limiter.Hit, covers []cover) {
	x.hits = make([]limiter.Hit, 0, 2*len(x.renewals)+len(hits))
	for i := range x.renewals {
		if s := &x.renewals[i]; s.release > 0 {
			h := s.hit
			h.N = -s.release
			x.hits = append(x.hits, h)
		}
	}
	x.first = len(x.hits)
	for i := range hits {
		if !isCovered(covers, i) {
			x.hits = append(x.hits, hits[i])
		}
	}
	x.last = len(x.hits)
	for i := range x.renewals {
		if s := &x.renewals[i]; s.acquire > 0 {
			h := s.hit
			h.N, h.Mode = s.acquire, limiter.Shadow
			x.hits = append(x.hits, h)
		}
	}
	x.out = make([]limiter.Decision, len(x.hits))
}

// retryEach begins an exchange for each key of one that was refused, perhaps for the sake of one key. Who waits for the
// refused one asks the store instead.
func (x *exchange) retryEach() {
	for i := range x.renewals {
		s := &x.renewals[i]
		alone := newExchange(x.leases)
		alone.renewals = append(alone.renewals, *s)
		sh := s.lease.shard
		sh.mu.Lock()
		if s.lease.call == x {
			s.lease.call, s.lease.promised = alone, s.acquire
		}
		sh.mu.Unlock()
		x.leases.calls.Add(1)
		alone.send()
	}
}

func (l *Leases) answered(err error) bool {
	return l.o.Answered != nil && !errors.Is(err, ErrNotAsked) && l.o.Answered(err)
}

// own are the request's hits and what was decided of them.
func (x *exchange) own() ([]limiter.Hit, []limiter.Decision) {
	return x.hits[x.first:x.last], x.out[x.first:x.last]
}

// run does the call.
func (x *exchange) run(ctx context.Context) {
	l := x.leases
	if len(x.renewals) > 0 {
		defer l.calls.Done()
	}
	defer close(x.done)
	if x.first == x.last {
		ctx = Background(ctx)
	}
	sent := l.now()
	x.err = errPanicked // unless Take returns
	panics.Catch("call of leases", func() { x.err = l.store.Take(ctx, x.hits, x.out) })
	if x.err != nil && len(x.renewals) > 1 && x.first == x.last && l.answered(x.err) {
		x.retryEach()
		return
	}
	at := x.last
	for i := range x.renewals {
		s := &x.renewals[i]
		var taken *limiter.Decision
		if s.acquire > 0 {
			taken = &x.out[at]
			x.correct(s.hit.Key, taken)
			at++
		}
		x.settle(s, taken, sent)
	}
}

// correct says of what is acquired in advance whether it was charged. Where the request of the exchange was denied, a
// store reports whether a shadow hit fits beside the request's own hits, and charges it if it does without them (see
// limiter.Decide): then less remains after it than before.
func (x *exchange) correct(key string, taken *limiter.Decision) {
	hits, out := x.own()
	for i := range hits {
		if hits[i].Key == key {
			taken.Allowed = taken.Remaining < out[i].Remaining
		}
	}
}

// settle ends a renewal. Whether a call that failed was charged is not known: its permits count as lost, and are not
// released a second time. A call that was not sent changed nothing.
func (x *exchange) settle(s *renewal, taken *limiter.Decision, sent time.Duration) {
	e, sh := s.lease, s.lease.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	joined := int64(0)
	if e.call == x {
		joined = s.acquire - e.promised
		e.call, e.promised = nil, 0
	}
	e.reserved -= s.reserved
	if errors.Is(x.err, ErrNotAsked) && s.reserved == 0 && !sh.closed && x.leases.now() < e.expires {
		e.permits += s.release // nothing was sent: they are on lease as before
		return
	}
	sh.stats.Permits -= s.release
	if x.err != nil {
		sh.stats.Lost += uint64(s.release) //nolint:gosec // not below 0
		return
	}
	sh.stats.Returned += uint64(s.release) //nolint:gosec // not below 0
	if taken == nil {
		return
	}
	if e.lastAt <= sent {
		e.learn(taken, sent)
	}
	if !taken.Allowed {
		return
	}
	e.permits, e.ends = s.acquire, 0
	e.expires = sent + s.span
	if s.hit.Policy.CountsInWindows() {
		e.ends = sent + taken.ResetAfter
		e.expires = min(e.expires, e.ends) // nothing of one window is spent in the next
	}
	sh.stats.Permits += s.acquire
	sh.stats.Taken += uint64(s.acquire) //nolint:gosec // above 0
	// How many to take was guessed from what was left before. If it was more than a part of what was left now, others
	// would be denied for what lies here, and again after the next renewal: so that is released at once.
	surplus := s.acquire - max((taken.Remaining+s.acquire)/leavePart, joined)
	if surplus > 0 && !sh.closed && returnable(e.ends, x.leases.now()) {
		e.permits -= surplus
		e.reserved += surplus
		x.leases.release(e, surplus)
	}
}

// release releases permits that count as reserved. The shard is locked, and not closed.
func (l *Leases) release(e *lease, n int64) {
	x := newExchange(l)
	x.renewals = append(x.renewals, renewal{lease: e, hit: e.hit, span: e.span, release: n, reserved: n})
	l.calls.Add(1)
	x.send()
}

// restore ends a cover whose request was denied: others may spend the permits, if they are still good, else they are
// released.
func (l *Leases) restore(c *cover, now time.Duration) {
	e, sh := c.lease, c.lease.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case e.grant == c.grant && now < e.expires:
		e.reserved -= c.n
		e.permits += c.n
	case returnable(c.ends, now) && !sh.closed:
		l.release(e, c.n)
	default:
		e.reserved -= c.n
		sh.stats.Permits -= c.n
		sh.stats.Lost += uint64(c.n) //nolint:gosec // above 0
	}
}

// releaseAll releases all permits, to all shards at once: one that does not answer takes no other's time. The shards
// of keys are closed.
func (l *Leases) releaseAll(ctx context.Context) error {
	all := make(map[Shard][]*exchange)
	now := l.now()
	for i := range l.shards {
		sh := &l.shards[i]
		for key := range sh.leases { // no longer changed
			sh.mu.Lock()
			e := sh.leases[key]
			at := l.shardOf(e)
			if xs := all[at]; len(xs) > 0 && len(xs[len(xs)-1].renewals) < maxRenewals {
				l.begin(xs[len(xs)-1], e, now)
			} else if x := l.begin(nil, e, now); x != nil {
				all[at] = append(xs, x)
			}
			sh.mu.Unlock()
		}
	}
	var mu sync.Mutex
	var errs []error
	var wait sync.WaitGroup
	for _, xs := range all {
		wait.Go(func() {
			for _, x := range xs {
				x.assemble(nil, nil)
				panics.Catch("release of leases", func() { x.run(ctx) })
				mu.Lock()
				errs = append(errs, x.err)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
