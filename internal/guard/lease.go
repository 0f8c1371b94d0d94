// Package guard has the stages before a store on the network. They answer calls in this process where they can.
package guard

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// windowMargin is the minimum time between the release of a fixed window's permits and the end of the window. For a
// distant store it is twice the duration of the latest renewal, up to a quarter of a lease, so that permits are
// released to the window that was charged. A slower call, such as to a Redis that was stopped, may release them to the
// next window. Leases' bound holds even then, because these permits were on lease when the next window began.
const windowMargin = 20 * time.Millisecond

// lease is a hot key and its permits. Leases.mu guards it. Its times count from Leases.start.
type lease struct {
	hit  limiter.Hit // key, policy and route with which permits are acquired
	span time.Duration
	rate rate

	permits int64         // charged and not yet spent
	expires time.Duration // permits must be spent before this time
	ends    time.Duration // lower bound for the end of the fixed window that was charged
	surplus int64         // acquired in excess, and being released

	last       limiter.Decision // last decision of the store
	lastAt     time.Duration
	windowEnds time.Duration // lower bound for the end of the fixed window in `last`

	isRenewing bool          // a call that releases or acquires permits is in flight
	next       time.Duration // time of the next renewal
	took       time.Duration // duration of the latest renewal
}

// follow sets the policy and route of the lease to those of the hit, which may come from newer rules.
func (e *lease) follow(h *limiter.Hit) {
	e.hit.Policy, e.hit.Route, e.span = h.Policy, h.Route, leaseTime(h)
}

func (e *lease) covers(h *limiter.Hit, now time.Duration) bool {
	return e.permits >= h.N && now < e.expires && e.hit.Policy == h.Policy
}

// spend decides the hit by the lease if there are enough permits.
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

// learn stores the store's decision in a call that was sent at `sent`.
func (e *lease) learn(d *limiter.Decision, sent time.Duration) {
	e.last, e.lastAt = *d, sent
	if e.hit.Policy.Core().Is(step.InWindows) && d.ResetAfter > 0 {
		e.windowEnds = sent + d.ResetAfter // the store decided at this time or later
	}
}

// want returns the number of permits to acquire in advance: the expected hits of one lease plus a margin for chance,
// but no more than the share of the process. Near the limit it is smaller, down to 0, so that all processes get the
// rest hit by hit. It is 0 if the key is not hot, if an average request would not be covered, or near the window's end.
func (e *lease) want(now time.Duration) int64 {
	requests, hits := e.rate.per(now, e.span)
	if left := e.windowEnds - now; requests < warm || left > 0 && left < e.margin()+e.span/4 {
		return 0
	}
	need := hits + 3*int64(math.Sqrt(float64(hits))) + 1
	n := min(need, share(e.hit.Policy)-e.surplus, e.last.Remaining/leavePart)
	if n < hits/requests {
		return 0
	}
	return max(0, n)
}

// moment returns when to renew permits that expire at `expires`: 5/8 to 7/8 of a lease after they were charged, so that
// a busy machine is not too late. All keys share these times, so that Redis gets the calls for many keys in one batch.
func moment(expires, span time.Duration) time.Duration {
	grid := span / 4
	return (expires - grid/2).Truncate(grid)
}

func (e *lease) due() time.Duration {
	due := moment(e.expires, e.span)
	if e.ends > 0 {
		due = min(due, e.lastRelease())
	}
	return due
}

// lastRelease returns the time at which the permits of a fixed window must be released at the latest.
func (e *lease) lastRelease() time.Duration { return (e.ends - e.margin()).Truncate(time.Millisecond) }

// margin returns the minimum time between the release of permits and the end of their fixed window.
func (e *lease) margin() time.Duration { return max(windowMargin, min(2*e.took, e.span/4)) }

// returnable reports whether permits may be released now. Without windows, e.ends is 0.
func (e *lease) returnable(now time.Duration) bool { return e.ends == 0 || now+e.margin() <= e.ends }

// rate counts a key's requests and hits in the current and the previous span of time.
type rate struct {
	span           time.Duration // number of the current span
	requests, hits [2]int64      // in the current and the previous span
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

// per estimates the number of requests (at least 1) and hits in the last span.
func (r *rate) per(now, span time.Duration) (requests, hits int64) {
	r.turn(now / span)
	before := 1 - float64(now%span)/float64(span)
	of := func(n [2]int64) int64 { return n[0] + int64(float64(n[1])*before) }
	return max(1, of(r.requests)), of(r.hits)
}

// leaseTime returns how long permits of the hit's limit may be on lease; 0 if the store must decide each request.
func leaseTime(h *limiter.Hit) time.Duration {
	if r, ok := h.Route.(interface{ LeaseTime() time.Duration }); ok {
		return r.LeaseTime()
	}
	return 0
}
