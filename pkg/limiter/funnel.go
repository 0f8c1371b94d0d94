package limiter

// funnel is one step of the leaky bucket as a meter (GCRA), and of the token bucket, its mirror: tokens are
// what the level leaves of the capacity.
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
	level := p.level(s, t)
	left := max(0, p.capacity-level) / p.cost

	ok, take := p.fits(left, n, c)
	*d = Decision{Allowed: ok}
	before := level
	switch {
	case take < 0:
		level = max(0, level-p.hitUnits(-take, level))
	case take > 0:
		level += p.hitUnits(take, p.maxLevel-level)
	}
	if !ok {
		d.RetryAfter = Never
		if need := max(n, 1); need <= p.burst {
			wait := ceilDiv(level-(p.capacity-need*p.cost), p.leak)
			d.RetryAfter = micros((t+wait)*p.tick - now)
		}
	}
	d.Remaining = max(0, p.capacity-level) / p.cost
	if level > 0 {
		d.ResetAfter = micros((t+ceilDiv(level, p.leak))*p.tick - now)
	}
	if level == before {
		return State{}, false
	}
	if level == 0 {
		return State{}, true
	}
	return State{A: (t + level/p.leak) * p.tick, B: level % p.leak}, true
}

// level is the funnel's level at tick t, in units.
func (p *Policy) level(s *State, t int64) int64 {
	ahead := ceilDiv(s.A, p.tick) - t
	if ahead < 0 || s.A == 0 {
		return 0
	}
	full := p.capacity
	if p.chargeDenied == ChargeFull {
		full = p.maxLevel
	}
	if ahead > full/p.leak {
		return full
	}
	return min(full, ahead*p.leak+min(s.B, p.leak-1))
}

// hitUnits is n hits in units, but at most room: a debt stops growing at the policy's highest level.
func (p *Policy) hitUnits(n, room int64) int64 {
	if n > room/p.cost {
		return room
	}
	return n * p.cost
}
