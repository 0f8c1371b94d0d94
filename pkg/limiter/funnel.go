package limiter

import "time"

// funnel is one step of the leaky bucket as a meter (GCRA), and of three that are the same arithmetic with
// another question: the token bucket, its mirror, whose tokens are what the level leaves of the capacity;
// SmoothBursty, which looks only at the level that it finds; and LeakyQueue, which lets requests wait.
//
// The level is counted in units of which N' leak each tick and one hit is W', where N'/W' is N hits per W
// ticks reduced. The state is when the funnel will be empty, the theoretical arrival time of GCRA:
// A microseconds since the epoch plus B/N' of a tick. With N' = 1 a hit is a whole number of ticks and B is
// always 0, so that the state is one integer. No leak is ever lost to rounding.
//
// A state may be further ahead than the policy's highest level: the clock stepped back, or the rule has changed. It is
// then taken as full, so that nothing is granted twice, and what a step writes goes on from there. Where the step
// leaves the state as it is, that has to leak all the same, and the times are those of the state.
func (p *Policy) funnel(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	t := now / p.tick
	ahead, part, first := p.empties(s, t)
	level := p.level(ahead, part)

	ok, take := p.passes(level, n, c)
	*d = Decision{Allowed: ok}
	found := level
	switch {
	case take < 0:
		level = max(0, level-p.hitUnits(-take, level))
	case take > 0:
		level = p.charged(level, take)
	}
	took = level != found || first && n != 0
	if took {
		ahead, part = level/p.leak, level%p.leak
	}
	after := func(ticks int64) time.Duration { return micros((t+ticks)*p.tick - now) }
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= p.burst {
			d.RetryAfter = after(p.leaksTo(p.highest(need), ahead, part))
		}
	}
	if ok && take > 0 {
		if until := p.departs(found, level); until > p.still {
			d.Wait = after(ceilDiv(until-p.still, p.leak))
		}
	}
	d.Remaining = p.passing(level)
	if level > 0 {
		d.ResetAfter = after(p.leaksTo(0, ahead, part))
	}
	if !took || level == 0 && p.initial == InitialFull {
		return State{}, took
	}
	return State{A: (t + ahead) * p.tick, B: part}, true
}

// empties is in how many ticks from t the funnel will be empty, and the part of a tick after them, and whether this is
// a bucket's beginning: one that starts empty is remembered for a while after it became full, and then starts again.
func (p *Policy) empties(s *State, t int64) (ahead, part int64, first bool) {
	ahead, part = ceilDiv(s.A, p.tick)-t, min(s.B, p.leak-1)
	fullFor := -ahead - min(1, part) // in whole ticks
	if p.initial == InitialEmpty && (s.A == 0 || fullFor >= p.linger.Microseconds()/p.tick) {
		level := p.capacity
		if p.algorithm == SmoothBursty {
			level = p.still // nothing is saved, and nothing is owed
		}
		return level / p.leak, level % p.leak, true
	}
	if ahead < 0 || s.A == 0 {
		return 0, 0, false
	}
	return ahead, part, false
}

// level is the level of a funnel that will be empty in ahead ticks and part of one, at most the policy's highest one.
func (p *Policy) level(ahead, part int64) int64 {
	full := p.maxLevel
	if p.chargeDenied != ChargeFull && p.algorithm != SmoothBursty && p.algorithm != SmoothWarmingUp {
		full = p.capacity
	}
	if ahead > full/p.leak {
		return full
	}
	return min(full, ahead*p.leak+part)
}

// leaksTo is in how many whole ticks a funnel that will be empty in ahead ticks and part of one has leaked to a level
// below its own. It may be further ahead than a product of ticks and leak can say.
func (p *Policy) leaksTo(level, ahead, part int64) int64 {
	ticks := ahead - level/p.leak
	if part > level%p.leak {
		ticks++
	}
	return ticks
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
		ok = left > 0 && n <= p.burst
		return ok, min(p.burst, p.amount(ok, left, n, c)) // a debt, too, is of one request at most
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

// highest is the highest level at which a cost of need passes.
func (p *Policy) highest(need int64) int64 {
	if p.algorithm == SmoothBursty {
		return p.capacity
	}
	return p.capacity - need*p.cost
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
