package guard

import (
	"context"
	"errors"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// maxSwaps keeps a call of the keeper below what redisstore puts into one script call: a swap is two hits.
const maxSwaps = 100

// swap gives back what is left of a lease and takes permits anew.
type swap struct {
	lease       *lease
	policy      *limiter.Policy
	back, extra int64
	reserved    int64 // of back: what counts as lease.reserved until it is given back
}

// exchange is one call to the store: what is given back comes first, so that nobody is denied for permits that lie here;
// then the hits of a request; then what is taken ahead. That is in shadow mode, which means that each is charged if it
// fits, and that it does not matter to the request whether it does.
type exchange struct {
	leases *Leases
	swaps  []swap
	hits   []limiter.Hit
	out    []limiter.Decision
	first  int // of the request's hits
	last   int // behind them
	err    error
	done   chan struct{}
}

func newExchange(l *Leases) *exchange { return &exchange{leases: l, done: make(chan struct{})} }

// begin takes the lease into the exchange, which it makes if there is none: its permits are no longer spent. Nothing
// happens if there is nothing to give back or to take. The shard is locked, and no call is under way.
func (l *Leases) begin(x **exchange, e *lease, p *limiter.Policy, now time.Duration) {
	back := e.permits
	e.permits = 0
	if back > 0 && !returnable(e.ends, now) {
		e.shard.stats.Permits -= back
		e.shard.stats.Lost += uint64(back)
		back = 0
	}
	e.policy = p
	extra := int64(0)
	if !e.shard.closed {
		extra = e.want(now)
	}
	if back == 0 && extra == 0 {
		return
	}
	if *x == nil {
		*x = newExchange(l)
		l.calls.Add(1)
	}
	e.grant++
	e.call, e.promised = *x, extra
	(*x).swaps = append((*x).swaps, swap{lease: e, policy: p, back: back, extra: extra})
}

// assemble makes the call's hits of the swaps and the request's hits that are not covered.
func (x *exchange) assemble(hits []limiter.Hit, covers []cover) {
	x.hits = make([]limiter.Hit, 0, 2*len(x.swaps)+len(hits))
	for i := range x.swaps {
		if s := &x.swaps[i]; s.back > 0 {
			x.hits = append(x.hits, limiter.Hit{Key: s.lease.key, Policy: s.policy, N: -s.back})
		}
	}
	x.first = len(x.hits)
	for i := range hits {
		if !isCovered(covers, i) {
			x.hits = append(x.hits, hits[i])
		}
	}
	x.last = len(x.hits)
	for i := range x.swaps {
		if s := &x.swaps[i]; s.extra > 0 {
			x.hits = append(x.hits, limiter.Hit{Key: s.lease.key, Policy: s.policy, N: s.extra, Mode: limiter.Shadow})
		}
	}
	x.out = make([]limiter.Decision, len(x.hits))
}

// own are the request's hits and what was decided of them.
func (x *exchange) own() ([]limiter.Hit, []limiter.Decision) {
	return x.hits[x.first:x.last], x.out[x.first:x.last]
}

// run does the call.
func (x *exchange) run(ctx context.Context) {
	l := x.leases
	if len(x.swaps) > 0 {
		defer l.calls.Done()
	}
	if x.first == x.last {
		ctx = background(ctx)
	}
	sent := l.now()
	x.err = l.store.Take(ctx, x.hits, x.out)
	at := x.last
	for i := range x.swaps {
		s := &x.swaps[i]
		var taken *limiter.Decision
		if s.extra > 0 {
			taken = &x.out[at]
			x.correct(s.lease.key, taken)
			at++
		}
		x.settle(s, taken, sent)
	}
	close(x.done)
}

// correct says of what is taken ahead whether it was charged. Where the request of the exchange was denied, a store
// reports whether a shadow hit fits beside the request's own hits, and charges it if it does without them (see
// limiter.Decide): then less remains after it than before.
func (x *exchange) correct(key string, taken *limiter.Decision) {
	hits, out := x.own()
	for i := range hits {
		if hits[i].Key == key {
			taken.Allowed = taken.Remaining < out[i].Remaining
		}
	}
}

// settle ends a swap. Whether a call that failed was charged is not known: its permits count as lost, and are not
// given back twice.
func (x *exchange) settle(s *swap, taken *limiter.Decision, sent time.Duration) {
	e, sh := s.lease, s.lease.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	joined := int64(0)
	if e.call == x {
		joined = s.extra - e.promised
		e.call, e.promised = nil, 0
	}
	e.reserved -= s.reserved
	sh.stats.Permits -= s.back
	if x.err != nil {
		sh.stats.Lost += uint64(s.back) //nolint:gosec // not below 0
		return
	}
	sh.stats.Returned += uint64(s.back) //nolint:gosec // not below 0
	if taken == nil {
		return
	}
	e.learn(taken, sent)
	if !taken.Allowed {
		return
	}
	e.permits, e.ends = s.extra, 0
	e.expires = sent + s.policy.LeaseFor()
	if s.policy.Algorithm() == limiter.FixedWindow {
		e.ends = e.windowEnds
		e.expires = min(e.expires, e.ends) // nothing of one window is spent in the next
	}
	sh.stats.Permits += s.extra
	sh.stats.Taken += uint64(s.extra) //nolint:gosec // above 0
	// How many to take was guessed from what was left before. If it was more than a part of what was left now, others
	// would be denied for what lies here, and again after the next swap: so they get that back at once.
	surplus := s.extra - max((taken.Remaining+s.extra)/leavePart, joined)
	if surplus > 0 && !sh.closed && returnable(e.ends, x.leases.now()) {
		e.permits -= surplus
		e.reserved += surplus
		x.leases.giveBack(e, surplus)
	}
}

// giveBack gives permits back that count as reserved. The shard is locked, and not closed.
func (l *Leases) giveBack(e *lease, n int64) {
	x := newExchange(l)
	x.swaps = append(x.swaps, swap{lease: e, policy: e.policy, back: n, reserved: n})
	x.assemble(nil, nil)
	l.calls.Add(1)
	go x.run(l.ctx)
}

// restore ends a cover whose request was denied: others may spend the permits, if they are still good, else they are
// given back.
func (l *Leases) restore(c *cover, now time.Duration) {
	e, sh := c.lease, c.lease.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case e.grant == c.grant && now < e.expires:
		e.reserved -= c.n
		e.permits += c.n
	case returnable(c.ends, now) && !sh.closed:
		l.giveBack(e, c.n)
	default:
		e.reserved -= c.n
		sh.stats.Permits -= c.n
		sh.stats.Lost += uint64(c.n) //nolint:gosec // above 0
	}
}

// giveAllBack gives back all permits. The shards are closed.
func (l *Leases) giveAllBack(ctx context.Context) error {
	var x *exchange
	var errs []error
	send := func() {
		if x == nil {
			return
		}
		x.assemble(nil, nil)
		x.run(ctx)
		errs = append(errs, x.err)
		x = nil
	}
	now := l.now()
	for i := range l.shards {
		sh := &l.shards[i]
		for key := range sh.leases { // no longer changed
			sh.mu.Lock()
			e := sh.leases[key]
			l.begin(&x, e, e.policy, now)
			sh.mu.Unlock()
			if x != nil && len(x.swaps) == maxSwaps {
				send()
			}
		}
	}
	send()
	return errors.Join(errs...)
}
