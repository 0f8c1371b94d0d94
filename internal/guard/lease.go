// Package guard has the stages in front of a store that is asked over a network: they answer here what need not be
// asked there.
package guard

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// windowMargin is how long before its window ends a permit of a fixed window is released at the latest: longer than
// a call takes, so that what is released was charged in the window that it is released to. A call that takes
// longer (a Redis that stood still) may put back into the next window what the last one was charged. Those permits
// were on lease when that window began, so that Leases' bound holds all the same.
const windowMargin = 20 * time.Millisecond

// lease is a hot key and its permits. Leases.mu guards it.
type lease struct {
	hit  limiter.Hit // key, policy and route that the permits were acquired under
	span time.Duration
	rate rate

	permits int64         // charged, and not yet spent
	expires time.Duration // until when they may be
	ends    time.Duration // the earliest end of the fixed window that they were charged in
	surplus int64         // no longer spent, and not yet released

	last       limiter.Decision // the store's last answer
	lastAt     time.Duration
	windowEnds time.Duration // as the store last answered, of a fixed window

	isRenewing bool // a call is under way that releases or acquires permits
}

// follow has the lease acquire permits as the hit's limit says: of another set of rules, it may be another one.
func (e *lease) follow(h *limiter.Hit) {
	e.hit.Policy, e.hit.Route, e.span = h.Policy, h.Route, leaseTime(h)
}

// covers reports whether there are permits enough for the hit.
func (e *lease) covers(h *limiter.Hit, now time.Duration) bool {
	return e.permits >= h.N && now < e.expires && e.hit.Policy == h.Policy
}

// spend decides the hit by the lease, if there are permits enough.
func (e *lease) spend(h *limiter.Hit, now time.Duration, d *limiter.Decision) bool {
	if !e.covers(h, now) {
		return false
	}
	e.permits -= h.N
	e.rate.add(now, e.span, 1, h.N)
	*d = limiter.Decision{
		Allowed: true, Remaining: e.last.Remaining + e.permits, ResetAfter: max(0, e.last.ResetAfter-(now-e.lastAt)),
	}
	return true
}

// learn keeps the store's answer to a call that was sent at a time.
func (e *lease) learn(d *limiter.Decision, sent time.Duration) {
	e.last, e.lastAt = *d, sent
	if e.hit.Policy.Core().Is(step.InWindows) && d.ResetAfter > 0 {
		e.windowEnds = sent + d.ResetAfter // it was decided then or later
	}
}

// want is how many permits to acquire in advance: what requests will need in a lease, with room for chance, but no more
// than the process's share. Near the limit it is less, down to none, so that all processes get the rest one by one. It
// is none where a request would not find enough, or where the window is about to end.
func (e *lease) want(now time.Duration) int64 {
	requests, hits := e.rate.per(now, e.span)
	if left := e.windowEnds - now; requests < warm || left > 0 && left < windowMargin+e.span/4 {
		return 0
	}
	need := hits + 3*int64(math.Sqrt(float64(hits))) + 1
	n := min(need, share(e.hit.Policy)-e.surplus, e.last.Remaining/leavePart)
	if n < hits/requests {
		return 0
	}
	return max(0, n)
}

// moment is when to look again at permits that expire then: between 5/8 and 7/8 of a lease after they were charged, so
// that a busy machine is not too late, and at moments that all keys share, so that Redis gets the calls of many keys in
// one batch.
func moment(expires, span time.Duration) time.Duration {
	grid := span / 4
	return (expires - grid/2).Truncate(grid)
}

// due is when to release and acquire again.
func (e *lease) due() time.Duration {
	due := moment(e.expires, e.span)
	if e.ends > 0 {
		due = min(due, (e.ends - windowMargin).Truncate(time.Millisecond))
	}
	return due
}

// returnable says whether permits of a fixed window that ends then may still be released.
func returnable(ends, now time.Duration) bool { return ends == 0 || now+windowMargin <= ends }

// rate counts a key's requests and hits in this span of time and the one before.
type rate struct {
	span           time.Duration // number of the current one
	requests, hits [2]int64      // of the current one, and of the one before
}

func (r *rate) add(now, span time.Duration, requests, hits int64) {
	r.turn(now / span)
	r.requests[0] += requests
	r.hits[0] += hits
}

func (r *rate) turn(to time.Duration) {
	switch to - r.span {
	case 0:
	case 1:
		r.requests, r.hits = [2]int64{0, r.requests[0]}, [2]int64{0, r.hits[0]}
	default:
		r.requests, r.hits = [2]int64{}, [2]int64{}
	}
	r.span = to
}

// per is about how many came in the last span, at least 1 request.
func (r *rate) per(now, span time.Duration) (requests, hits int64) {
	r.turn(now / span)
	before := 1 - float64(now%span)/float64(span)
	of := func(n [2]int64) int64 { return n[0] + int64(float64(n[1])*before) }
	return max(1, of(r.requests)), of(r.hits)
}

// leaseTime is for how long permits of the hit's limit may be on lease, 0 where the store decides each request.
func leaseTime(h *limiter.Hit) time.Duration {
	if r, ok := h.Route.(interface{ LeaseTime() time.Duration }); ok {
		return r.LeaseTime()
	}
	return 0
}
