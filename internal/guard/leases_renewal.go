package guard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

var errPanicked = errors.New("the call panicked; the log has the stack")

// renewal is one background call to the store. It releases the permits left of a lease, and then acquires new permits
// in shadow mode, so that they are charged only if they fit.
type renewal struct {
	lease            *lease
	hit              limiter.Hit // lease.hit and lease.span at the start of the renewal
	span             time.Duration
	release, acquire int64
	surplus          int64 // part of release that counts as lease.surplus until it is released
}

// schedule has e renewed at a time, and not when it was scheduled before, in a batch with all leases of the same time.
// The caller must hold l.mu.
func (l *Leases) schedule(e *lease, at time.Duration) {
	e.next = at
	if l.due[at] == nil {
		time.AfterFunc(at-l.now(), func() { panics.Catch("renewal of leases", func() { l.renew(at) }) })
	}
	l.due[at] = append(l.due[at], e)
}

// renew renews the leases that are due. It forgets keys that are no longer hot.
func (l *Leases) renew(at time.Duration) {
	l.mu.Lock()
	due := l.due[at]
	delete(l.due, at)
	l.mu.Unlock()
	var rs []*renewal
	for _, e := range due {
		if r := l.renewal(e, at); r != nil {
			rs = append(rs, r)
		}
	}
	for together := range slices.Chunk(rs, maxRenewals) {
		_ = l.run(l.ctx, together...)
	}
}

// renewal begins the lease's renewal if it is due, and schedules the next one.
func (l *Leases) renewal(e *lease, at time.Duration) (r *renewal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || e.next != at {
		return nil
	}
	e.next = 0
	now := l.now()
	next := e.due()
	switch {
	case e.isRenewing:
		next = now + e.span/4
	case e.permits > 0 && next > now:
	default:
		r = l.begin(e, now)
		requests, _ := e.rate.per(now, e.span)
		if r == nil && e.surplus == 0 && requests < warm {
			delete(l.leases, e.hit.Key)
			return nil
		}
		next = moment(now+e.span, e.span)
	}
	l.schedule(e, next)
	return r
}

// begin begins a renewal, which the caller must pass to run. The lease's permits are no longer spent. It returns nil if
// there is nothing to release or to acquire. The caller must hold l.mu, and no renewal of the lease may be in flight.
func (l *Leases) begin(e *lease, now time.Duration) *renewal {
	back := e.permits
	e.permits = 0
	if back > 0 && !e.returnable(now) {
		l.stats.Permits -= back
		l.stats.Lost += uint64(back)
		back = 0
	}
	extra := int64(0)
	if !l.closed {
		extra = e.want(now)
	}
	if back == 0 && extra == 0 {
		return nil
	}
	l.calls.Add(1)
	e.isRenewing = true
	return &renewal{lease: e, hit: e.hit, span: e.span, release: back, acquire: extra}
}

func (r *renewal) call(ctx context.Context) *take.Call {
	hits, h := make([]limiter.Hit, 0, 2), r.hit
	if r.release > 0 {
		h.N = -r.release
		hits = append(hits, h)
	}
	if r.acquire > 0 {
		h.N, h.Mode = r.acquire, limiter.Shadow
		hits = append(hits, h)
	}
	return &take.Call{Call: storekit.Call{
		Ctx: ctx, Hits: hits, Out: make([]limiter.Decision, len(hits)), Err: errPanicked, // overwritten by the response
	}}
}

// run sends renewals, and then releases the permits that they acquired in excess. It returns the first error.
func (l *Leases) run(ctx context.Context, rs ...*renewal) (err error) {
	defer l.calls.Add(-len(rs))
	ctx = Background(ctx)
	for len(rs) > 0 {
		calls, sent := make([]*take.Call, len(rs)), l.now()
		for i, r := range rs {
			calls[i] = r.call(ctx)
		}
		panics.Catch("call of leases", func() { l.store.TakeAll(calls) })
		var more []*renewal
		for i, c := range calls {
			if r := l.settle(rs[i], &c.Out[len(c.Out)-1], sent, c.Err); r != nil {
				more = append(more, r)
			}
			err = cmp.Or(err, c.Err)
		}
		rs = more
	}
	return err
}

// settle ends a renewal, and returns a further renewal that releases an excess, or nil. If a sent call failed, the
// store may have executed it, so its permits count as lost and are not released again.
func (l *Leases) settle(r *renewal, taken *limiter.Decision, sent time.Duration, err error) (next *renewal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := r.lease
	if r.surplus == 0 {
		e.isRenewing = false
	}
	e.surplus -= r.surplus
	if errors.Is(err, ErrBreakerOpen) && r.surplus == 0 && !l.closed && l.now() < e.expires {
		e.permits += r.release // the call was not sent, so the permits are still on lease
		return nil
	}
	l.stats.Permits -= r.release
	if err != nil {
		l.stats.Lost += uint64(r.release) //nolint:gosec // not below 0
		return nil
	}
	e.took = l.now() - sent
	l.stats.Released += uint64(r.release) //nolint:gosec // not below 0
	if r.acquire == 0 {
		return nil
	}
	if e.lastAt <= sent {
		e.learn(taken, sent)
	}
	if !taken.Allowed {
		return nil
	}
	e.permits, e.ends = r.acquire, 0
	e.expires = sent + r.span
	if r.hit.Policy.Core().Is(step.InWindows) {
		e.ends = sent + taken.ResetAfter
		e.expires = min(e.expires, e.ends) // a window's permits must not be spent in the next window
		if at := e.lastRelease(); l.now() < at && at < e.next {
			l.schedule(e, at)
		}
	}
	l.stats.Permits += r.acquire
	l.stats.Acquired += uint64(r.acquire) //nolint:gosec // above 0
	// The number to acquire was estimated from an older Remaining. If it exceeds the allowed part of the present
	// Remaining, other processes would be denied because of idle permits, so the excess is released at once.
	surplus := r.acquire - (taken.Remaining+r.acquire)/leavePart
	if surplus <= 0 || l.closed || !e.returnable(l.now()) {
		return nil
	}
	e.permits -= surplus
	e.surplus += surplus
	return &renewal{lease: e, hit: r.hit, span: r.span, release: surplus, surplus: surplus}
}

// Close releases all permits and ends the background work. From then on the store decides all requests.
func (l *Leases) Close() error { return l.end() }

func (l *Leases) close() error {
	ctx, cancel := context.WithTimeout(l.ctx, releaseTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, l.cancel)()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.calls.Wait()
	var errs []error
	for rs := range slices.Chunk(l.rest(), maxRenewals) { // in sequence
		errs = append(errs, l.run(ctx, rs...))
	}
	l.cancel()
	return errors.Join(errs...)
}

// rest begins to release all permits on lease.
func (l *Leases) rest() (rs []*renewal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.leases {
		if r := l.begin(e, l.now()); r != nil {
			rs = append(rs, r)
		}
	}
	return rs
}

type backgroundKey struct{}

// Background marks the context of a call for which no request waits.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether ctx is marked by Background: the call renews or releases a lease.
func IsBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }
