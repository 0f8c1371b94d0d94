package limiter

import (
	"math/big"
	"time"
)

// DefaultWarmUp and DefaultColdFactor are of rules that say nothing else.
const (
	DefaultWarmUp     = 10 * time.Second
	DefaultColdFactor = 300
)

// curve is what SmoothWarmingUp's permits cost. Guava's definition, with s = 1/rate, counts a store of permits that
// an idle limit fills in warm_up: one of them costs s up to a threshold of warm_up/(2s), from there on more, and
// cold_factor * s where the store is full, at threshold + 2*warm_up / (s + cold_factor*s).
//
// Here the store is a time, s for each permit, so that its numbers do not depend on the rate: the threshold is
// warm_up/2, and it is full at gain * warm_up, gain = (cold_factor+5) / (2*(cold_factor+1)). Going down from x to y then
// costs x - y + extra(x) - extra(y), where extra(x) = (cold_factor^2-1) / (4*warm_up) * (x - warm_up/2)^2 above the
// threshold: the integral of Guava's line. Since that is a difference of two values of one function, its rounding
// never adds up, and n requests of one hit cost exactly what one of n does.
//
// Times are counted in the units of the funnel, 1/leak of a tick, and the store in grains, so many of which are a
// unit that gain is a whole number of grains a unit.
type curve struct {
	idle   int64 // ticks until an empty store is full
	gain   int64 // grains that a unit without requests brings
	full   int64 // grains
	permit int64 // grains a hit
	warm   int64 // twice the threshold, grains
	// extra is num/den of the square of twice what is above the threshold, counted in steps of grid grains.
	grid, num, den int64
}

// maxRoot is the largest number whose square is exact in a double.
const maxRoot = 94_906_265

// setCurve says how requests warm up, and how many wait, if that fits.
func (p *Policy) setCurve(in *Params) bool {
	p.curve = curve{idle: p.warmUp.Microseconds() / p.tick}
	c, factor := &p.curve, p.coldFactor
	g := gcd(factor+500, 2*(factor+100))
	grains := 2 * (factor + 100) / g
	c.gain = (factor + 500) / g
	if c.idle > horizon/2/c.gain/p.leak {
		return false
	}
	units := c.idle * p.leak
	c.full, c.warm = units*c.gain, units*grains
	c.permit = c.full // a dearer one empties the store all the same
	if p.cost < c.full/grains {
		c.permit = p.cost * grains
	}
	c.grid = (2*c.full-c.warm)/(maxRoot+1) + 1
	slope := new(big.Rat).SetFrac(
		product(factor*factor-10_000, c.grid, c.grid),
		product(160_000, units, grains, grains))
	c.num, c.den = nearFraction(slope)

	p.maxLevel = min(p.maxLevel, maxExact-units)
	wait := in.MaxWait.Microseconds() / p.tick
	if wait > p.maxLevel/p.leak/2 || p.cost > p.maxLevel/2 {
		return false
	}
	p.still, p.capacity = 0, wait*p.leak
	return p.owes(p.maxLevel - p.capacity)
}

func product(of ...int64) *big.Int {
	all := big.NewInt(1)
	for _, v := range of {
		all.Mul(all, big.NewInt(v))
	}
	return all
}

// nearFraction is r, or of the continued fraction's convergents the last n/d whose n*d is exact in a double: less than
// 1/10,000,000 of itself away from it.
func nearFraction(r *big.Rat) (n, d int64) {
	most := big.NewInt(maxExact)
	a, b := new(big.Int).Set(r.Num()), new(big.Int).Set(r.Denom())
	n0, d0, n1, d1 := big.NewInt(0), big.NewInt(1), big.NewInt(1), big.NewInt(0)
	for b.Sign() > 0 {
		q, rest := new(big.Int).QuoRem(a, b, new(big.Int))
		n2, d2 := new(big.Int).Mul(q, n1), new(big.Int).Mul(q, d1)
		n2.Add(n2, n0)
		d2.Add(d2, d0)
		if new(big.Int).Mul(n2, d2).Cmp(most) > 0 {
			break
		}
		n0, d0, n1, d1 = n1, d1, n2, d2
		a, b = b, rest
	}
	return n1.Int64(), d1.Int64()
}

// warmingUp is one step of Guava's SmoothWarmingUp. The level is the time until the next request is free to go, and
// the store fills while it is 0: the state is that time as the funnel has it (A microseconds since the epoch plus
// part/leak of a tick, B as the funnel has it), what was in store then, and how much the store holds, by which a changed rule knows the share.
// The zero State is a full store, which is the cold one, and no debt.
//
// What is given back brings the next request forward by its price in a warm limit, up to now. The store stays as it
// is. A clock that stepped back fills nothing, and what is denied by it is decided as the funnel does it. A time that is further ahead than the highest level is taken as that, by
// what is charged; as long as nothing is, requests wait for that time.
func (p *Policy) warmingUp(s *State, now, n int64, c charge, d *Decision) (next State, took bool) {
	t := now / p.tick
	ahead, part, stored := p.warmth(s, t)
	level := p.level(ahead, part)

	fits := func() bool { return n < 0 || level <= p.capacity && n <= p.burst }
	ok := fits()
	if !ok && ahead > 0 {
		if written := s.written() / p.tick; written > t { // the clock stepped back
			t = written
			ahead, part, stored = p.warmth(s, t)
			level = p.level(ahead, part)
			ok = fits()
		}
	}
	left := int64(0)
	if c == penalty || c == spend || n > p.burst { // where else it is asked for, nothing is left
		left = p.passingWarm(level, stored)
	}
	take := min(p.burst, p.amount(ok, left, n, c))
	*d = Decision{Allowed: ok}
	found, before := level, stored
	switch {
	case take < 0:
		level -= p.hitUnits(-take, level)
	case take > 0:
		level, stored = p.spend(level, stored, take)
	}
	took = level != found || stored != before
	if took {
		ahead, part = level/p.leak, level%p.leak
	}
	after := func(ticks int64) time.Duration { return micros((t+ticks)*p.tick - now) }
	if !ok {
		d.RetryAfter = Never
		if n <= p.burst {
			d.RetryAfter = after(p.leaksTo(p.capacity, ahead, part))
		}
	}
	if ok && take > 0 && found > 0 {
		d.Wait = after(ceilDiv(found, p.leak)) - p.stoodStill(t, now)
	}
	d.Remaining = p.passingWarm(level, stored)
	isNew := level == 0 && stored == p.full
	if !isNew {
		d.ResetAfter = after(ahead + ceilDiv(part+ceilDiv(p.full-stored, p.gain), p.leak))
	}
	if !took || isNew {
		return State{}, took
	}
	return State{A: (t + ahead) * p.tick, B: withSpan(part, ahead*p.tick), List: []int64{stored, p.full}}, true
}

// warmth is at tick t how long it is until the next request is free to go, in ticks and part of one, and what is in
// store, in grains.
func (p *Policy) warmth(s *State, t int64) (ahead, part, stored int64) {
	if s.A == 0 {
		return 0, 0, p.full
	}
	stored = p.share(s.List[0], s.List[1])
	ahead, part = ceilDiv(s.A, p.tick)-t, min(s.part(), p.leak-1)
	switch {
	case ahead > p.reach:
		return 0, 0, p.full
	case ahead >= 0:
		return ahead, part, stored
	case -ahead > p.idle:
		return 0, 0, p.full
	}
	return 0, 0, min(p.full, stored+(-ahead*p.leak-part)*p.gain)
}

// share is what is in store, counted by this policy: after a change of the rule the same share of full, to within
// 2^-26 of it.
func (p *Policy) share(stored, of int64) int64 {
	if of == p.full {
		return min(stored, of)
	}
	grid := of>>26 + 1
	part, whole := min(stored, of)/grid, max(1, of/grid)
	return p.full/whole*part + p.full%whole*part/whole
}

// passingWarm is how many hits of cost 1 pass one after the other. It tries at most 53 numbers, and without a
// MaxWait one.
func (p *Policy) passingWarm(level, stored int64) int64 {
	if level > p.capacity {
		return 0
	}
	lo, hi := int64(0), (p.capacity-level)/p.cost
	for lo < hi {
		mid := hi - (hi-lo)/2
		if after, _ := p.spend(level, stored, mid); after <= p.capacity {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo + 1
}

// spend is the level and the store after n hits. Debts stop growing at the policy's highest level.
func (p *Policy) spend(level, stored, n int64) (int64, int64) {
	rest := int64(0)
	if n <= stored/p.permit {
		rest = stored - n*p.permit
	}
	room := p.maxLevel - level
	units := p.hitUnits(n, room) + p.extra(stored) - p.extra(rest)
	return level + min(room, units), rest
}

// extra is what emptying the store costs more than as much fresh time.
func (c *curve) extra(stored int64) int64 {
	above := max(0, 2*stored-c.warm) / c.grid
	square := above * above
	return square/c.den*c.num + square%c.den*c.num/c.den
}
