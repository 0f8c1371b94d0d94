// Package storekit is for authors of a [limiter.Store]: it decides requests, and the store only loads and saves states.
//
// In a store that can lock its counters, or that has transactions, Take does this for each request:
//
//	counters := make([]storekit.Counter, len(hits))
//	if err := storekit.Link(hits, out, counters); err != nil {
//		return err // the caller's mistake
//	}
//	// Lock. For each i with counters[i].First() == i, set counters[i].State to the state of hits[i].Key.
//	storekit.Decide(storekit.Clocks{Steady: now, Wall: now}, hits, counters, out)
//	// For each counter that is Changed, write Next, to be kept for KeepFor. Unlock.
//
// [Link] checks the hits, and finds the hits that share a key, and therefore a counter. A [State] is two integers and,
// for some algorithms, a list of integers; the store must return it unchanged.
//
// Each algorithm is one pure function, [Step], of integers only, with the time as an argument. Numbers stay below 2^53,
// so that a step can be written again in a language that counts in doubles, as package redisstore does in Lua.
//
// Package limitertest tests a store.
package storekit

import (
	"context"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// State is the state of one counter: the integers A and B, and a List of integers for algorithms that remember more.
// The zero State is a counter that was never hit. Steps do not change a List in place if a holder of an older State
// could see the change.
type State = step.State

// Counter holds the state of a counter while a request is decided.
type Counter struct {
	// State is the state in the store, or the zero State if the store does not have the key.
	State State
	// Next is the state after the request. It is meaningful if Changed is set.
	Next State
	// Changed reports that Next must be written. If KeepFor is 0, the limit is fully available again, and the key may be
	// deleted instead.
	Changed bool
	// KeepFor is how long Next must be kept. After that time, deleting the key changes no decision.
	KeepFor time.Duration
	// Cut reports that State was further ahead than the policy allows, because the rule was edited or the clock was set
	// back. Next then continues from the furthest state that the policy allows.
	Cut bool

	first int   // First plus 1; 0 if Link was not called
	asked int64 // total cost of the key's hits so far, without refunds
}

// First returns the index, set by Link, of the first hit with the same key. All hits of a key share that hit's Counter.
func (c *Counter) First() int { return c.first - 1 }

// Clocks are the two times of a store whose wall clock may be set while it runs, in microseconds since the Unix epoch.
// A store with one clock sets both to the same time.
type Clocks struct {
	Steady int64 // never steps; for all limits that do not use Wall
	Wall   int64 // the wall clock; for fixed windows that do not begin with the first hit
}

func (c *Clocks) of(p *limiter.Policy) int64 {
	if p.Core().OnWall {
		return c.Wall
	}
	return c.Steady
}

// Decide decides the hits of one request, and reports whether the request is admitted. The counter with the index
// counters[i].First(), which Link sets, must hold the state of hits[i].Key.
//
// If the request is admitted, each hit that fits is charged. A Quota hit that does not fit is charged what is left of
// its quota, or its whole cost with ChargeFull. If the request is denied, only the hits that denied it are charged, by
// their policy's ChargeDenied. In both cases, a Shadow hit is charged independently, and a negative hit is refunded,
// because what it returns has ended whatever becomes of this request.
//
// With ByItself, each hit is charged as if it were the only hit of its request, and a Quota hit that does not fit is
// charged as in an admitted request.
//
// Decide takes time in proportion to the number of hits. redisstore's slowly.lua mirrors it.
func Decide(now Clocks, hits []limiter.Hit, counters []Counter, out []limiter.Decision) bool {
	admitted := decide(&now, hits, counters, out)
	limit.Stamp(hits, out, now.of, admitted || limit.ByItself(hits))
	return admitted
}

func decide(now *Clocks, hits []limiter.Hit, counters []Counter, out []limiter.Decision) (admitted bool) {
	if len(hits) == 1 && hits[0].Mode == limiter.Enforce {
		counters[0].step(&hits[0], now, step.OrPenalty, &out[0])
		return out[0].Allowed
	}
	if limit.ByItself(hits) {
		chargeEach(now, hits, counters, out)
		return limiter.Admitted(hits, out)
	}
	for i := range hits {
		counters[counters[i].First()].step(&hits[i], now, limit.TryCharge(&hits[i]), &out[i])
	}
	if limiter.Admitted(hits, out) {
		for i := range hits {
			if limit.Spends(&hits[i], out[i].Allowed) {
				counters[counters[i].First()].spend(&hits[i], now, &out[i])
			}
		}
		return true
	}
	chargeDenied(now, hits, counters, out)
	return false
}

// chargeEach decides and charges each hit independently.
func chargeEach(now *Clocks, hits []limiter.Hit, counters []Counter, out []limiter.Decision) {
	for i := range hits {
		c := &counters[counters[i].First()]
		if hits[i].Mode != limiter.Quota {
			c.step(&hits[i], now, step.OrPenalty, &out[i])
			continue
		}
		c.step(&hits[i], now, step.IfFits, &out[i])
		if limit.Spends(&hits[i], out[i].Allowed) {
			c.spend(&hits[i], now, &out[i])
		}
	}
}

// chargeDenied is Decide's second pass over a denied request. It starts again from the stored states, and charges only
// what a denied request is charged; limit.CompleteDenied completes the decisions.
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

// spend charges a hit for which limit.Spends is true.
func (c *Counter) spend(h *limiter.Hit, now *Clocks, out *limiter.Decision) {
	var d limiter.Decision
	c.step(h, now, step.Spend, &d)
	limit.CompleteSpent(out, &d)
}

// step runs the policy's step on the counter's newest state.
func (c *Counter) step(h *limiter.Hit, now *Clocks, charge step.Charge, d *limiter.Decision) {
	from := &c.State
	if c.Changed {
		from = &c.Next
	}
	core := h.Policy.Core()
	a, at := core.Algorithm, now.of(h.Policy)
	if h.TakenAt != 0 {
		if !core.Is(step.InFlight) && at >= h.TakenAt { // the charge no longer counts
			charge = step.Nothing
		} else if t, ok := a.(step.TakesBack); ok { // false for a limit of 0
			a = t.TakesBack(h.TakenAt, h.OrOldest, at)
		}
	}
	next, o := a.Step(*from, at, h.N, charge)
	*d = decision(&o)
	if o.Is&step.Changes == 0 {
		return
	}
	c.Next, c.Changed, c.KeepFor = next, true, d.ResetAfter+core.Linger
	c.Cut = c.Cut || o.Is&step.Cuts != 0
	if next.IsNew() { // even an empty window has a ResetAfter
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

// Step decides a hit of cost n on state s at time now, in microseconds since the Unix epoch. The cost is charged if it
// fits; otherwise the policy's ChargeDenied applies. next matters for d.ResetAfter, after which the limit is fully
// available again; a bucket that starts empty must be kept for longer (see Counter.KeepFor).
//
// next shares no memory with s that a later step could change, so one state may be stepped several times.
func Step(p *limiter.Policy, s State, now, n int64) (next State, d limiter.Decision) {
	s.List = slices.Clip(s.List)
	next, o := p.Core().Step(s, now, n, step.OrPenalty)
	if o.Is&step.Changes == 0 {
		next = s
	}
	return next, decision(&o)
}

// Call is one request in a batch, for a store that takes several requests at once.
type Call struct {
	// Ctx is the context of the request: see limiter.Store. While the call waits, the store polls Ctx.Err, and does not
	// wait for Ctx.Done.
	Ctx context.Context //nolint:containedctx // each call of a batch has its own
	// Since is when the request began to wait and its timeout starts. Zero means the time when the store takes the call.
	Since time.Time
	// Hits and Out are the arguments of limiter.Store's Take, and Err is its result.
	Hits []limiter.Hit
	Out  []limiter.Decision
	Err  error
}
