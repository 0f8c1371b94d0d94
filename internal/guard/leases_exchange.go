package guard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/step"
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
	surplus          int64 // of release: what counts as lease.surplus until it is released
}

// exchange is one call to the store that no request waits for: what is released comes first, then what is acquired in
// advance. That is in shadow mode, which means that each is charged if it fits.
type exchange struct {
	leases   *Leases
	renewals []renewal
	hits     []limiter.Hit
	out      []limiter.Decision
	acquired int // the first hit that acquires
	err      error
}

// exchanges are those that are being filled, one for each shard; nil where there is nothing to do yet.
type exchanges map[Shard]*exchange

// send does all exchanges.
func (xs exchanges) send() {
	for _, x := range xs {
		x.send()
	}
}

// send does an exchange, if there is one.
func (x *exchange) send() {
	if x == nil {
		return
	}
	x.assemble()
	panics.Go("call of leases", func() { x.run(x.leases.ctx) })
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
		x = &exchange{leases: l}
		l.calls.Add(1)
	}
	e.grant++
	e.call = x
	x.renewals = append(x.renewals, renewal{lease: e, hit: e.hit, span: e.span, release: back, acquire: extra})
	return x
}

// assemble makes the call's hits of the renewals.
func (x *exchange) assemble() {
	x.hits = make([]limiter.Hit, 0, 2*len(x.renewals))
	for i := range x.renewals {
		if s := &x.renewals[i]; s.release > 0 {
			h := s.hit
			h.N = -s.release
			x.hits = append(x.hits, h)
		}
	}
	x.acquired = len(x.hits)
	for i := range x.renewals {
		if s := &x.renewals[i]; s.acquire > 0 {
			h := s.hit
			h.N, h.Mode = s.acquire, limiter.Shadow
			x.hits = append(x.hits, h)
		}
	}
	x.out = make([]limiter.Decision, len(x.hits))
}

// retryEach begins an exchange for each key of one that was refused, perhaps for the sake of one key.
func (x *exchange) retryEach() {
	for i := range x.renewals {
		s := &x.renewals[i]
		alone := &exchange{leases: x.leases}
		alone.renewals = append(alone.renewals, *s)
		sh := s.lease.shard
		sh.mu.Lock()
		if s.lease.call == x {
			s.lease.call = alone
		}
		sh.mu.Unlock()
		x.leases.calls.Add(1)
		alone.send()
	}
}

func (l *Leases) answered(err error) bool {
	return l.o.Answered != nil && !errors.Is(err, ErrNotAsked) && l.o.Answered(err)
}

// run does the call.
func (x *exchange) run(ctx context.Context) {
	l := x.leases
	defer l.calls.Done()
	sent := l.now()
	x.err = errPanicked // unless Take returns
	panics.Catch("call of leases", func() { x.err = l.store.Take(Background(ctx), x.hits, x.out) })
	if x.err != nil && len(x.renewals) > 1 && l.answered(x.err) {
		x.retryEach()
		return
	}
	at := x.acquired
	for i := range x.renewals {
		s := &x.renewals[i]
		var taken *limiter.Decision
		if s.acquire > 0 {
			taken = &x.out[at]
			at++
		}
		x.settle(s, taken, sent)
	}
}

// settle ends a renewal. Whether a call that failed was charged is not known: its permits count as lost, and are not
// released a second time. A call that was not sent changed nothing.
func (x *exchange) settle(s *renewal, taken *limiter.Decision, sent time.Duration) {
	e, sh := s.lease, s.lease.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e.call == x {
		e.call = nil
	}
	e.surplus -= s.surplus
	if errors.Is(x.err, ErrNotAsked) && s.surplus == 0 && !sh.closed && x.leases.now() < e.expires {
		e.permits += s.release // nothing was sent: they are on lease as before
		return
	}
	sh.stats.Permits -= s.release
	if x.err != nil {
		sh.stats.Lost += uint64(s.release) //nolint:gosec // not below 0
		return
	}
	sh.stats.Released += uint64(s.release) //nolint:gosec // not below 0
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
	if s.hit.Policy.Core().Is(step.InWindows) {
		e.ends = sent + taken.ResetAfter
		e.expires = min(e.expires, e.ends) // nothing of one window is spent in the next
	}
	sh.stats.Permits += s.acquire
	sh.stats.Acquired += uint64(s.acquire) //nolint:gosec // above 0
	// How many to take was guessed from what was left before. If it was more than a part of what was left now, others
	// would be denied for what lies here, and again after the next renewal: so that is released at once.
	surplus := s.acquire - (taken.Remaining+s.acquire)/leavePart
	if surplus > 0 && !sh.closed && returnable(e.ends, x.leases.now()) {
		e.permits -= surplus
		e.surplus += surplus
		back := &exchange{leases: x.leases}
		back.renewals = append(back.renewals, renewal{lease: e, hit: s.hit, span: s.span, release: surplus, surplus: surplus})
		x.leases.calls.Add(1)
		back.send()
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
				x.assemble()
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
