package limiter

import "time"

// funnel is one step of the leaky bucket as a meter (GCRA), and of three that are the same arithmetic with
// another question: the token bucket, its mirror, whose tokens are what the level leaves of the capacity;
// SmoothBursty, which looks only at the level that it finds; and LeakyQueue, which lets requests wait.
//
// The level is counted in units of which N' leak each tick and one hit is W', where N'/W' is N hits per W
// ticks reduced. The state is when the funnel will be empty, the theoretical arrival time of GCRA:
// A microseconds since the epoch plus part/N' of a tick. With N' = 1 a hit is a whole number of ticks and the part is
// always 0. No leak is ever lost to rounding. B is the part, and how far A was ahead when it was written (see withSpan).
//
// A clock that stepped back makes the level look higher than it is. A cost that does not fit for that reason is decided
// at the time at which the state was written: nothing leaked since then, and what had room then has room now. The
// times are those of the clock: until it is back where it was, nothing leaks.
//
// A state may still be further ahead than the policy's highest level, since the rule has changed. It is then taken as
// full, so that nothing is granted twice, and what a step writes goes on from there. Where the step leaves the state as
// it is, that has to leak all the same, and the times are those of the state.
func (p *Policy) funnel(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	t := now / p.tick
	ahead, part, first := p.empties(s, t)
	level := p.level(ahead, part)

	ok, take := p.passes(level, n, c)
	if !ok && !first && ahead > 0 {
		if written := s.written() / p.tick; written > t { // the clock stepped back
			t = written
			ahead, part, first = p.empties(s, t)
			level = p.level(ahead, part)
			ok, take = p.passes(level, n, c)
		}
	}
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
			d.Wait = after(ceilDiv(until-p.still, p.leak)) - p.stoodStill(t, now)
		}
	}
	d.Remaining = p.passing(level)
	if level > 0 {
		d.ResetAfter = after(p.leaksTo(0, ahead, part))
	}
	if !took || level == 0 && p.initial == InitialFull {
		return State{}, took
	}
	return State{A: (t + ahead) * p.tick, B: withSpan(part, ahead*p.tick)}, true
}

// stoodStill is how far tick t is ahead of now, whose clock stepped back: nobody waits for the clock to come back.
func (p *Policy) stoodStill(t, now int64) time.Duration { return micros(max(0, t*p.tick-now)) }

// empties is in how many ticks from t the funnel will be empty, and the part of a tick after them, and whether this is
// a bucket's beginning: one that starts empty is remembered for a while after it became full, and then starts again.
func (p *Policy) empties(s *State, t int64) (ahead, part int64, first bool) {
	ahead, part = ceilDiv(s.A, p.tick)-t, min(s.part(), p.leak-1)
	if ahead > p.reach {
		s, ahead = &never, -t
	}
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
	full := p.highestLevel()
	if ahead > full/p.leak {
		return full
	}
	return min(full, ahead*p.leak+part)
}

// highestLevel is the highest level that a hit can lead to.
func (p *Policy) highestLevel() int64 {
	if p.chargeDenied != ChargeFull && p.algorithm != SmoothBursty && p.algorithm != SmoothWarmingUp {
		return p.capacity
	}
	return p.maxLevel
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
