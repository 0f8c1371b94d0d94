// Package storekit is for the author of a [limiter.Store]: it decides requests, and leaves to the store where states
// are kept.
//
// For each request, Take of a store that can lock its counters, or that has transactions, does this:
//
//	counters := make([]storekit.Counter, len(hits))
//	if err := storekit.Link(hits, out, counters); err != nil {
//		return err // the caller's mistake
//	}
//	// Lock, and set the State of counters[i] to that of the key hits[i].Key, if counters[i].First() == i.
//	storekit.Decide(storekit.Clocks{Steady: now, Wall: now}, hits, counters, out)
//	// Write Next of each counter that is Changed, to be kept for KeepFor. Unlock.
//
// [Link] checks the hits, and finds which of them share a key, and so a counter. A [State] is two integers, and for
// some algorithms a list of integers; it must come back as it was.
//
// Every algorithm is one pure step, [Step]: integers in, integers out, with the time as an argument. It knows no clock
// and no database. Numbers stay below 2^53, so that a step can be written again in a language that counts in doubles,
// as package redisstore does in Lua.
//
// Package limitertest has the contract of a store as a test.
package storekit

import (
	"context"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// State is one counter's state: the integers A and B, and a List of integers for algorithms that remember more. The
// zero State is a counter that was never hit. A List is never changed in place where a reader of an older State could
// see it.
type State = step.State

// Counter is a counter's state while a request is decided over it.
type Counter struct {
	// State is what the store held: the zero State for a key that it does not know.
	State State
	// Next is the state after the request. It is meaningful when Changed is set.
	Next State
	// Changed says that Next must be written. With KeepFor 0 the limit is fully available again: the key may be
	// dropped.
	Changed bool
	// KeepFor is how long Next matters; after that the key may be forgotten without changing any decision.
	KeepFor time.Duration
	// Cut says that State was further ahead than the policy can put it: the rule was edited, or the clock was set back.
	// Next goes on from the furthest that the policy can have left.
	Cut bool

	first int   // one more than First: 0 where Link was not called
	asked int64 // what the hits of the key that were looked at so far cost together
}

// First is the index of the counter that this one's hit shares with others of the same key, its own if it is the first
// of them. Link has set it.
func (c *Counter) First() int { return c.first - 1 }

// Clocks are the two times of a store whose wall clock may be set while it runs, both in microseconds since the Unix
// epoch. They are equal where the store has one clock.
type Clocks struct {
	Steady int64 // never steps: what every other limit counts by
	Wall   int64 // what the clocks on the wall show: where windows begin that do not begin with the first hit
}

func (c *Clocks) of(p *limiter.Policy) int64 {
	if p.Core().OnWall {
		return c.Wall
	}
	return c.Steady
}

// Decide answers one request's hits and reports whether the request is admitted as a whole. The counter that hits[i]
// shares with others of its key, which Link finds, carries the state of that key.
//
// Admitted: every hit that fits is charged, and so is a Quota hit that does not: the request passes, and uses up what
// was left of that quota. Denied: nothing is charged, except what the policy's ChargeDenied takes for the hits that
// denied. In both cases a Shadow hit is charged by itself, and a negative hit gives back, since what it returns has
// ended whatever becomes of this request.
//
// With ByItself none of that holds: each hit is charged as if it were the request's only one, and a Quota hit that does
// not fit is charged as in an admitted request.
//
// It takes time in proportion to the hits. redisstore's slowly.lua is this function again.
func Decide(now Clocks, hits []limiter.Hit, counters []Counter, out []limiter.Decision) bool {
	if len(hits) == 1 && hits[0].Mode == limiter.Enforce {
		counters[0].step(&hits[0], &now, step.OrPenalty, &out[0])
		return out[0].Allowed
	}
	if limit.ByItself(hits) {
		chargeEach(&now, hits, counters, out)
		return limiter.Admitted(hits, out)
	}
	for i := range hits {
		counters[counters[i].First()].step(&hits[i], &now, limit.TryCharge(&hits[i]), &out[i])
	}
	if limiter.Admitted(hits, out) {
		for i := range hits {
			if limit.Spends(&hits[i], out[i].Allowed) {
				counters[counters[i].First()].spend(&hits[i], &now, &out[i])
			}
		}
		return true
	}
	chargeDenied(&now, hits, counters, out)
	return false
}

// chargeEach decides and charges each hit by itself.
func chargeEach(now *Clocks, hits []limiter.Hit, counters []Counter, out []limiter.Decision) {
	for i := range hits {
		c := &counters[counters[i].First()]
		if hits[i].Mode != limiter.Quota {
			c.step(&hits[i], now, step.OrPenalty, &out[i])
			continue
		}
		c.step(&hits[i], now, step.IfFits, &out[i])
		if !out[i].Allowed {
			c.spend(&hits[i], now, &out[i])
		}
	}
}

// chargeDenied is Decide's second pass over a request that is denied as a whole: it starts again from the
// stored states and charges only what a denied request is charged; see limit.CompleteDenied for what is answered.
func chargeDenied(now *Clocks, hits []limiter.Hit, counters []Counter, out []limiter.Decision) {
	quotaDenies := limiter.QuotaDenies(hits, out)
	for i := range hits {
		counters[i].Changed, counters[i].asked = false, 0
	}
	for i := range hits {
		var d limiter.Decision
		h, c := &hits[i], &counters[counters[i].First()]
		c.step(h, now, limit.DeniedCharge(h, out[i].Allowed, quotaDenies), &d)
		c.asked += max(0, h.N)
		limit.CompleteDenied(h, c.asked, &out[i], &d)
	}
}

// spend charges a hit that limit.Spends.
func (c *Counter) spend(h *limiter.Hit, now *Clocks, out *limiter.Decision) {
	var d limiter.Decision
	c.step(h, now, step.Spend, &d)
	limit.CompleteSpent(out, &d)
}

// step runs the policy's step over the counter's newest state.
func (c *Counter) step(h *limiter.Hit, now *Clocks, charge step.Charge, d *limiter.Decision) {
	from := &c.State
	if c.Changed {
		from = &c.Next
	}
	core := h.Policy.Core()
	a := core.Algorithm
	if h.TakenAt != 0 {
		if t, ok := a.(step.TakesBack); ok { // a limit of 0 does not
			a = t.TakesBack(h.TakenAt, h.OrOldest, now.Steady)
		}
	}
	next, o := a.Step(*from, now.of(h.Policy), h.N, charge)
	*d = decision(&o)
	if o.Is&step.Changes == 0 {
		return
	}
	c.Next, c.Changed, c.KeepFor = next, true, d.ResetAfter+core.Linger
	c.Cut = c.Cut || o.Is&step.Cuts != 0
	if next.IsNew() { // a window that nothing was counted in has an end, too
		c.KeepFor = 0
	}
}

func decision(o *step.Outcome) limiter.Decision {
	d := limiter.Decision{Allowed: o.Is&step.Fits != 0, Remaining: o.Remaining, ResetAfter: o.Reset}
	switch {
	case !d.Allowed:
		d.RetryAfter = o.Delay
	case o.Is&step.Holds != 0:
		d.TakenAt = int64(o.Delay)
	default:
		d.Wait = o.Delay
	}
	return d
}

// Step decides a hit of cost n at time now, in microseconds since the Unix epoch, on state s: the cost is
// charged if it fits, and otherwise ChargeDenied says what is. The new state matters for d.ResetAfter, after
// which the limit is fully available again; a bucket that starts empty is remembered for a while longer.
//
// What it returns shares no memory with s that a later step could change: one state may be stepped several times.
func Step(p *limiter.Policy, s State, now, n int64) (next State, d limiter.Decision) {
	s.List = slices.Clip(s.List)
	next, o := p.Core().Step(s, now, n, step.OrPenalty)
	if o.Is&step.Changes == 0 {
		next = s
	}
	return next, decision(&o)
}

// Call is one request in a batch for a store that takes several at once.
type Call struct {
	// Ctx is the request's: see limiter.Store. Its Err is asked again and again while the call waits; nobody waits for
	// its Done.
	Ctx context.Context //nolint:containedctx // each call of a batch has its own
	// Since is when the request began to wait: the store's timeout runs from then. Zero: from when it is taken.
	Since time.Time
	// Hits and Out are those of limiter.Store's Take, and Err what it returns.
	Hits []limiter.Hit
	Out  []limiter.Decision
	Err  error
}
