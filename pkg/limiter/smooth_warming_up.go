package limiter

import (
	"math/big"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// SmoothWarmingUp lets fewer pass after idleness, rising to the rate: Guava's RateLimiter.
const SmoothWarmingUp Algorithm = 9

// NewSmoothWarmingUp returns a limit that rises to limit hits per window while requests come for as long as warmUp.
func NewSmoothWarmingUp(limit int64, window, warmUp time.Duration) Params {
	return Params{Algorithm: SmoothWarmingUp, Limit: limit, Window: window, WarmUp: warmUp}
}

// curve is what SmoothWarmingUp's permits cost. Guava's definition, with s = 1/rate, counts a store of permits that
// an idle limit fills in warm_up: one of them costs s up to a threshold of warm_up/(2s), from there on more, and
// cold_factor * s where the store is full, at threshold + 2*warm_up / (s + cold_factor*s).
//
// Here the store is a time, s for each permit, so that its numbers do not depend on the rate: the threshold is
// warm_up/2, and it is full at gain * warm_up, gain = (cold_factor+5) / (2*(cold_factor+1)). Going down from x to y
// then costs x - y + extra(x) - extra(y), where extra(x) = (cold_factor^2-1) / (4*warm_up) * (x - warm_up/2)^2 above
// the threshold: the integral of Guava's line. Since that is a difference of two values of one function, its rounding
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

// smoothWarmingUp is Guava's SmoothWarmingUp. The meter's level is the time until the next request is free to go, and
// the store fills while that is 0: a State is that time as the meter has it, and in its list what was in store then,
// and how much the store held, by which a changed rule knows the share. The zero State is a full store, which is the
// cold one, and no debt.
//
// What is refunded brings the next request forward by its price in a warm limit, up to now. The store stays as it is.
// A time that is further ahead than the policy can put it is cut as the meter does it.
type smoothWarmingUp struct {
	meter
	curve
}

func newWarmingUp(in *Params) (step.Algorithm, error) {
	in.MaxCost, in.ColdFactor = orDefault(in.MaxCost, defaultMaxCost(in)), orDefault(in.ColdFactor, 300)
	if in.WarmUp == 0 {
		in.WarmUp = 10 * time.Second
	}
	w := &smoothWarmingUp{meter: newMeter(in)}
	w.burst, w.paysLater = in.MaxCost, true
	if !w.scale(in, func() bool { return w.setCurve(in) }) {
		return nil, paramError("warm_up", "%d per %s needs more than 53 bits to count exactly with a warm_up of %s and a "+
			"cold_factor of %g; choose a rate with fewer digits, a shorter warm_up, a cold_factor of 3, or warm_up and "+
			"max_wait in whole seconds",
			in.Limit, in.Window, in.WarmUp, float64(in.ColdFactor)/100)
	}
	return w, nil
}

// setCurve sets how requests warm up, and how many wait, and reports whether that fits.
func (w *smoothWarmingUp) setCurve(in *Params) bool {
	w.curve = curve{idle: w.ticks(in.WarmUp)}
	c, factor := &w.curve, in.ColdFactor
	g := gcd(factor+500, 2*(factor+100))
	grains := 2 * (factor + 100) / g
	c.gain = (factor + 500) / g
	if c.idle > step.Horizon/2/c.gain/w.leak {
		return false
	}
	units := c.idle * w.leak
	c.full, c.warm = units*c.gain, units*grains
	c.permit = c.full // a dearer one empties the store all the same
	if w.cost < c.full/grains {
		c.permit = w.cost * grains
	}
	c.grid = (2*c.full-c.warm)/(maxRoot+1) + 1
	slope := new(big.Rat).SetFrac(
		product(factor*factor-10_000, c.grid, c.grid),
		product(160_000, units, grains, grains))
	c.num, c.den = nearFraction(slope)

	w.maxLevel = min(w.maxLevel, step.Exact-units)
	wait := w.ticks(in.MaxWait)
	if wait > w.maxLevel/w.leak/2 || w.cost > w.maxLevel/2 {
		return false
	}
	w.still, w.capacity = 0, wait*w.leak
	owed, _ := w.spend(w.capacity, w.full, w.burst)
	return w.canOwe(min(w.maxLevel, owed+w.leak)) // by less than a tick, prices are rounded
}

func (w *smoothWarmingUp) Traits() step.Traits {
	t := w.meter.Traits()
	t.Script, t.Capacity = "smooth_warming_up", w.capacity/w.cost+1 // of a warm one
	t.Extra, t.Overshoots = 1, true
	return t
}

func (w *smoothWarmingUp) Args() []int64 {
	c := &w.curve
	return []int64{
		w.limit, w.tick, w.leak, w.cost, w.capacity, w.maxLevel,
		c.idle, c.gain, c.full, c.permit, c.warm, c.grid, c.num, c.den, w.burst,
	}
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
	most := big.NewInt(step.Exact)
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

func (w *smoothWarmingUp) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	t := now / w.tick
	ahead, part, stored, isCut := w.warmth(&s, t)
	level := w.level(ahead, part)

	fits := func() bool { return n < 0 || level <= w.capacity && n <= w.burst }
	ok := fits()
	back := int64(0)
	if (!ok || n < 0) && level > 0 {
		if back = w.behind(&s, t); back > 0 {
			level = w.level(ahead-back, part)
			ok = fits()
		}
	}
	left := int64(0)
	if c == step.Penalty || c == step.Spend || n > w.burst { // where else it is asked for, nothing is left
		left = w.passingWarm(level, stored)
	}
	take := min(w.burst, w.amount(ok, left, n, c))
	found, before := level, stored
	switch {
	case take < 0:
		level -= w.units(-take, level)
	case take > 0:
		level, stored = w.spend(level, stored, take)
	}
	changed := level != found || stored != before || back > 0
	if changed {
		ahead, part = level/w.leak, level%w.leak
	}
	after := func(ticks int64) time.Duration { return micros((t+ticks)*w.tick - now) }
	if !ok {
		o.Delay = Never
		if n <= w.burst {
			o.Delay = after(w.leaksTo(w.capacity, ahead, part))
		}
	}
	if ok && take > 0 && found > 0 {
		o.Delay = after(ceilDiv(found, w.leak))
	}
	o.Remaining = w.passingWarm(level, stored)
	isNew := level == 0 && stored == w.full
	if !isNew {
		o.Reset = after(ahead + ceilDiv(part+ceilDiv(w.full-stored, w.gain), w.leak))
	}
	o.Is = step.VerdictOf(ok, changed, changed && (isCut || back > 0))
	if !changed || isNew {
		return step.State{}, o
	}
	return step.State{A: (t + ahead) * w.tick, B: withSpan(part, ahead*w.tick), List: []int64{stored, w.full}}, o
}

// warmth is at tick t how long it is until the next request is free to go, in ticks and part of one, what is in store,
// in grains, and whether the state is cut.
func (w *smoothWarmingUp) warmth(s *step.State, t int64) (ahead, part, stored int64, isCut bool) {
	if s.A == 0 {
		return 0, 0, w.full, false
	}
	stored = w.share(s.List[0], s.List[1])
	ahead, part, isCut = w.empties(s, t)
	switch {
	case ahead >= 0:
		return ahead, part, stored, isCut
	case -ahead > w.idle:
		return 0, 0, w.full, isCut
	}
	return 0, 0, min(w.full, stored+(-ahead*w.leak-part)*w.gain), isCut
}

// share is what is in store, counted by this policy: after a change of the rule the same share of full, to within
// 2^-26 of it.
func (w *smoothWarmingUp) share(stored, of int64) int64 {
	if of == w.full {
		return min(stored, of)
	}
	grid := of>>26 + 1
	part, whole := min(stored, of)/grid, max(1, of/grid)
	return w.full/whole*part + w.full%whole*part/whole
}

// passingWarm is how many hits of cost 1 pass one after the other. It tries at most 53 numbers, and without a
// MaxWait one.
func (w *smoothWarmingUp) passingWarm(level, stored int64) int64 {
	if level > w.capacity {
		return 0
	}
	lo, hi := int64(0), (w.capacity-level)/w.cost
	for lo < hi {
		mid := hi - (hi-lo)/2
		if after, _ := w.spend(level, stored, mid); after <= w.capacity {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo + 1
}

// spend is the level and the store after n hits. Debts stop growing at the policy's highest level.
func (w *smoothWarmingUp) spend(level, stored, n int64) (int64, int64) {
	rest := int64(0)
	if n <= stored/w.permit {
		rest = stored - n*w.permit
	}
	room := w.maxLevel - level
	units := w.units(n, room) + w.extra(stored) - w.extra(rest)
	return level + min(room, units), rest
}

// extra is what emptying the store costs more than as much fresh time.
func (c *curve) extra(stored int64) int64 {
	above := max(0, 2*stored-c.warm) / c.grid
	square := above * above
	return square/c.den*c.num + square%c.den*c.num/c.den
}
