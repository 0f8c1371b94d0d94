package limiter

// funnel is one step of the leaky bucket as a meter (GCRA), and of three that are the same arithmetic with
// another question: the token bucket, its mirror, whose tokens are what the level leaves of the capacity;
// SmoothBursty, which looks only at the level that it finds; and LeakyQueue, which lets requests wait.
//
// The level is counted in units of which N' leak each tick and one hit is W', where N'/W' is N hits per W
// ticks reduced. The state is when the funnel will be empty, the theoretical arrival time of GCRA:
// A microseconds since the epoch plus B/N' of a tick. With N' = 1 a hit is a whole number of ticks and B is
// always 0, so that the state is one integer. No leak is ever lost to rounding.
//
// A clock that stepped back makes the level look higher than anything that can have been charged; it is then
// taken as full, so that nothing is granted twice and nobody waits longer than for a full funnel.
func (p *Policy) funnel(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	t := now / p.tick
	level, first := p.level(s, t)

	ok, take := p.passes(level, n, c)
	*d = Decision{Allowed: ok}
	found := level
	switch {
	case take < 0:
		level = max(0, level-p.hitUnits(-take, level))
	case take > 0:
		level = p.charged(level, take)
	}
	after := func(units int64) int64 { return (t+ceilDiv(units, p.leak))*p.tick - now }
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= p.burst {
			d.RetryAfter = micros(after(p.above(level, need)))
		}
	}
	if ok && take > 0 {
		if until := p.departs(found, level); until > p.still {
			d.Wait = micros(after(until - p.still))
		}
	}
	d.Remaining = p.passing(level)
	if level > 0 {
		d.ResetAfter = micros(after(level))
	}
	if level == found && (!first || n == 0) {
		return State{}, false
	}
	if level == 0 && p.initial == InitialFull {
		return State{}, true
	}
	return State{A: (t + level/p.leak) * p.tick, B: level % p.leak}, true
}

// level is the funnel's level at tick t, in units, and whether that is a bucket's beginning: one that starts
// empty is remembered for a while after it became full, and then starts again.
func (p *Policy) level(s *State, t int64) (level int64, first bool) {
	ahead, part := ceilDiv(s.A, p.tick)-t, min(s.B, p.leak-1)
	fullFor := -ahead - min(1, part) // in whole ticks
	if p.initial == InitialEmpty && (s.A == 0 || fullFor >= p.linger.Microseconds()/p.tick) {
		return p.capacity, true
	}
	if ahead < 0 || s.A == 0 {
		return 0, false
	}
	full := p.capacity
	if p.chargeDenied == ChargeFull || p.algorithm == SmoothBursty {
		full = p.maxLevel
	}
	if ahead > full/p.leak {
		return full, false
	}
	return min(full, ahead*p.leak+part), false
}

// passing is how many hits of cost 1 pass one after the other at a level.
func (p *Policy) passing(level int64) int64 {
	switch p.algorithm {
	case SmoothBursty: // each passes that finds the level low enough
		level -= p.cost
	case LeakyQueue: // the first departs now if it can
		level = max(level, p.still-p.cost)
	default:
	}
	return max(0, p.capacity-level) / p.cost
}

// passes says whether a cost of n passes at a level, and how many hits to charge for it.
func (p *Policy) passes(level, n int64, c charge) (ok bool, take int64) {
	left := p.passing(level)
	switch {
	case n > 0 && p.algorithm == SmoothBursty:
		ok = left > 0
	case n > 0 && p.algorithm == LeakyQueue:
		ok = n <= p.burst && p.charged(level, n) <= p.capacity
	default:
		return p.fits(left, n, c)
	}
	return ok, p.amount(ok, left, n, c)
}

// charged is the level after n hits. A queue's is never below still: what departs now empties it in the time
// that the longest request would take.
func (p *Policy) charged(level, n int64) int64 {
	level += p.hitUnits(n, p.maxLevel-level)
	if p.algorithm == LeakyQueue {
		level = max(level, p.still)
	}
	return level
}

// above is by how much the level is too high for a cost of need.
func (p *Policy) above(level, need int64) int64 {
	if p.algorithm == SmoothBursty {
		return level - p.capacity
	}
	return level - (p.capacity - need*p.cost)
}

// departs is the level whose part above still has to leak before the request goes on: a queue's request goes
// when it has leaked through itself, SmoothBursty's when those before it have.
func (p *Policy) departs(found, level int64) int64 {
	if p.algorithm == LeakyQueue {
		return level
	}
	return found
}

// hitUnits is n hits in units, but at most room: a debt stops growing at the policy's highest level.
func (p *Policy) hitUnits(n, room int64) int64 {
	if n > room/p.cost {
		return room
	}
	return n * p.cost
}
