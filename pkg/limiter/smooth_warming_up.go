package limiter

import (
	"math/big"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// SmoothWarmingUp admits fewer hits after idle time, and then rises to the rate: Guava's RateLimiter.
const SmoothWarmingUp Algorithm = 9

// NewSmoothWarmingUp returns a limit that rises to limit hits per window within warmUp under steady requests.
func NewSmoothWarmingUp(limit int64, window, warmUp time.Duration) Params {
	return Params{Algorithm: SmoothWarmingUp, Limit: limit, Window: window, WarmUp: warmUp}
}

// curve holds the prices of SmoothWarmingUp's permits. In Guava's definition, with s = 1/rate, an idle limit stores
// permits, and its store is full after warm_up. A stored permit costs s up to a threshold of warm_up/(2s) permits.
// Above that the price rises linearly, to cold_factor*s in a full store of threshold + 2*warm_up/(s + cold_factor*s)
// permits.
//
// Here the store is a time, s for each permit, so that its numbers do not depend on the rate. The threshold is
// warm_up/2, and a full store is gain * warm_up, with gain = (cold_factor+5) / (2*(cold_factor+1)). Going down from x
// to y then costs x - y + extra(x) - extra(y), where extra(x) = (cold_factor^2-1) / (4*warm_up) * (x - warm_up/2)^2
// above the threshold is the integral of Guava's line. Because the cost is a difference of two values of one function,
// rounding errors do not add up, and n requests of one hit cost exactly as much as one request of n hits.
//
// Times are counted in the meter's units, 1/leak of a tick. The store is counted in grains, a fraction of a unit such
// that gain is a whole number of grains per unit.
type curve struct {
	idle   int64 // ticks in which an empty store becomes full
	gain   int64 // grains that are stored per unit without requests
	full   int64 // grains in a full store
	permit int64 // grains per hit
	warm   int64 // twice the threshold, grains
	// extra is num/den of the square of twice the store above the threshold, in steps of grid grains.
	grid, num, den int64
}

// maxRoot is the largest integer whose square is exact in a double.
const maxRoot = 94_906_265

// smoothWarmingUp is Guava's SmoothWarmingUp. The meter's level is the time until the next request may go on, and the
// store fills while the level is 0. A State holds that time as in a meter. Its list holds the store at that time and
// the size of a full store, so that an edited rule can keep the share. The zero State is a full, cold store without
// debt.
//
// A refund brings the next request forward by the price of the hits in a warm limit, at most to now, and leaves the
// store unchanged. A state that is further ahead than the policy allows is cut as in a meter.
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

// setCurve sets the curve and how long requests may wait, and reports whether all numbers fit.
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
	c.permit = c.full // a larger permit would empty the store as well
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
	return w.canOwe(min(w.maxLevel, owed+w.leak)) // prices are rounded by less than a tick
}

func (w *smoothWarmingUp) Traits() step.Traits {
	t := w.meter.Traits()
	t.Script, t.Capacity = "smooth_warming_up", w.capacity/w.cost+1 // capacity of a warm limit
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

// nearFraction returns r, or the last convergent n/d of its continued fraction whose n*d is exact in a double, with a
// relative error below 1/10,000,000.
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
	if c == step.Penalty || c == step.Spend || n > w.burst { // otherwise left is 0 or unused
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

// warmth returns for tick t the time until the next request may go on, in ticks and a part of a tick, the store in
// grains, and whether the state is cut.
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

// share returns the store in this policy's grains. After an edit, the store is as full as before, within 2^-26.
func (w *smoothWarmingUp) share(stored, of int64) int64 {
	if of == w.full {
		return min(stored, of)
	}
	grid := of>>26 + 1
	part, whole := min(stored, of)/grid, max(1, of/grid)
	return w.full/whole*part + w.full%whole*part/whole
}

// passingWarm returns how many hits of cost 1 pass, one after another. It bisects in at most 53 steps.
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

// spend returns the level and the store after a charge of n hits. The level stops growing at maxLevel.
func (w *smoothWarmingUp) spend(level, stored, n int64) (int64, int64) {
	rest := int64(0)
	if n <= stored/w.permit {
		rest = stored - n*w.permit
	}
	room := w.maxLevel - level
	units := w.units(n, room) + w.extra(stored) - w.extra(rest)
	return level + min(room, units), rest
}

// extra returns the price of emptying the store, in addition to the warm price of its permits, in units.
func (c *curve) extra(stored int64) int64 {
	above := max(0, 2*stored-c.warm) / c.grid
	square := above * above
	return square/c.den*c.num + square%c.den*c.num/c.den
}
