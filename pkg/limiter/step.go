package limiter

import (
	"math"
	"slices"
	"time"
)

// maxExact is the largest integer below which every integer is exact in a double: Lua's numbers in Redis.
const maxExact = 1<<53 - 1

// horizon bounds how far ahead of now a step may move a counter, in microseconds (142 years): together with
// the time since 1970 it stays below maxExact.
const horizon = 1 << 52

// State is one counter's state: two integers for most algorithms, a list for those that remember more. What
// the numbers mean is said where the algorithm is. The zero State is a counter that was never hit.
//
// A List is never changed in place where a reader of an older State could see it.
type State struct {
	A, B int64
	List []int64
}

// isNew says whether the state is that of a counter that was never hit.
func (s *State) isNew() bool { return s.A == 0 && s.B == 0 && len(s.List) == 0 }

// charge says what a step may take.
type charge uint8

const (
	takeIfFits    charge = iota // the cost if it fits, else nothing
	takeOrPenalty               // the cost if it fits, else what ChargeDenied says
	penalty                     // what ChargeDenied says, whether or not the cost fits
	look                        // nothing
	spend                       // what is left, up to the cost, or all of the cost where ChargeDenied is ChargeFull
)

// Step decides a hit of cost n at time now, in microseconds since the Unix epoch, on state s: the cost is
// charged if it fits, and otherwise ChargeDenied says what is. The new state matters for d.ResetAfter, after
// which the counter is as new; a bucket that starts empty is remembered for a while longer.
//
// What it returns shares no memory with s that a later step could change: one state may be stepped several times.
func (p *Policy) Step(s State, now, n int64) (next State, d Decision) {
	s.List = slices.Clip(s.List)
	next, took := p.step(&s, now, n, takeOrPenalty, &d)
	if !took {
		return s, d
	}
	return next, d
}

// step is Step with a say in what may be charged. took reports whether next differs from s.
func (p *Policy) step(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	if p.limit == 0 && p.algorithm != FixedWindow {
		*d = Decision{Allowed: n < 0, RetryAfter: Never}
		if n < 0 {
			d.RetryAfter = 0
		}
		return State{}, false
	}
	switch p.algorithm {
	case FixedWindow:
		return p.fixedWindow(s, now, n, c, d)
	case TokenBucket:
		if p.refill == RefillInterval {
			return p.intervalBucket(s, now, n, c, d)
		}
		return p.funnel(s, now, n, c, d)
	case Funnel, SmoothBursty, LeakyQueue:
		return p.funnel(s, now, n, c, d)
	case SmoothWarmingUp:
		return p.warmingUp(s, now, n, c, d)
	case SlidingWindow:
		return p.slidingWindow(s, now, n, c, d)
	case SlidingLog, Concurrency:
		return p.slidingLog(s, now, n, c, d)
	}
	return State{}, false // unreachable: NewPolicy admits no other
}

// fits says whether a cost of n passes where left hits of cost 1 would, and how many hits to charge for it.
func (p *Policy) fits(left, n int64, c charge) (ok bool, take int64) {
	switch {
	case n < 0:
		ok = true
	case n == 0:
		ok = left >= 1
	default:
		ok = n <= left
	}
	return ok, p.amount(ok, left, n, c)
}

// amount is how many hits to charge for a cost of n, of which ok says whether it fits and left how many of cost
// 1 would.
func (p *Policy) amount(ok bool, left, n int64, c charge) (take int64) {
	switch {
	case c == look:
	case n < 0, ok && c != penalty && c != spend:
		take = n
	case c == takeIfFits:
	case p.chargeDenied == ChargeFull:
		take = n
	case p.chargeDenied == ChargeRemaining, c == spend:
		take = min(n, left)
	}
	return take
}

// micros is a span of microseconds as a Duration.
func micros(us int64) time.Duration {
	if us > math.MaxInt64/int64(time.Microsecond) {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}

// ceilDiv divides a >= 0 by b > 0, rounding up.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if q*b != a {
		q++
	}
	return q
}
