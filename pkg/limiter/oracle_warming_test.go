package limiter_test

import (
	"math/big"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// warmOracle is Guava's SmoothWarmingUp as it is defined, in permits, and two things that this one adds: what permits
// cost beyond the rate is rounded down to the policy's unit of time, as a function of what is in store, which is
// counted for that in steps of its grid.
type warmOracle struct {
	interval, cold     *big.Rat // microseconds that the cheapest and the dearest permit costs
	threshold, most    *big.Rat // permits
	cooldown           *big.Rat // microseconds that storing a permit takes
	unit               *big.Rat // microseconds
	grid               *big.Rat // permits
	longest, tick      int64
	largest            int64    // cost
	stored, free, zero *big.Rat // permits; when the next request is free to go
}

func newWarmOracle(in limiter.Params, p *limiter.Policy) *warmOracle {
	warmUp, factor := p.Params().WarmUp.Microseconds(), in.ColdFactor
	if factor == 0 {
		factor = 300
	}
	args := p.Core().Args()
	o := &warmOracle{
		interval: big.NewRat(in.Window.Microseconds(), in.Limit), longest: in.MaxWait.Microseconds(), tick: args[1],
		unit: big.NewRat(args[1], args[2]), free: new(big.Rat), zero: new(big.Rat),
	}
	o.cold = new(big.Rat).Mul(o.interval, big.NewRat(factor, 100))
	o.threshold = new(big.Rat).Quo(big.NewRat(warmUp, 2), o.interval)
	o.most = new(big.Rat).Quo(rat(2*warmUp), new(big.Rat).Add(o.interval, o.cold))
	o.most.Add(o.most, o.threshold)
	o.cooldown = new(big.Rat).Quo(rat(warmUp), o.most)
	o.stored = o.most
	o.largest = in.MaxCost
	if o.largest == 0 {
		o.largest = in.Limit * max(1, int64(time.Hour/in.Window))
	}
	grains := new(big.Rat).Quo(rat(args[8]), o.most) // a permit
	o.grid = new(big.Rat).Quo(rat(args[11]), times(grains, 2))
	return o
}

func (o *warmOracle) at(now int64) *warmOracle {
	next, t := *o, rat(now-now%o.tick)
	if idle := new(big.Rat).Sub(t, o.free); idle.Sign() > 0 {
		next.free = t
		if next.stored = idle.Add(idle.Quo(idle, o.cooldown), o.stored); idle.Cmp(o.most) > 0 {
			next.stored = o.most
		}
	}
	return &next
}

func down(r *big.Rat) *big.Rat {
	return new(big.Rat).SetInt(new(big.Int).Quo(r.Num(), r.Denom()))
}

// dearer returns the price of emptying the store beyond the rate.
func (o *warmOracle) dearer(stored *big.Rat) *big.Rat {
	above := later(new(big.Rat).Sub(stored, o.threshold), o.zero)
	above.Mul(o.grid, down(above.Quo(above, o.grid)))
	return o.triangle(above, o.unit)
}

// triangle is the area between the line of the prices and the lowest price, rounded down to the unit.
func (o *warmOracle) triangle(above, unit *big.Rat) *big.Rat {
	slope := new(big.Rat).Sub(o.cold, o.interval)
	slope.Quo(slope, new(big.Rat).Sub(o.most, o.threshold))
	area := new(big.Rat).Mul(above, above)
	area.Mul(area, slope.Mul(slope, big.NewRat(1, 2)))
	return area.Mul(unit, down(area.Quo(area, unit)))
}

func (o *warmOracle) goes(now, _ int64) *big.Rat { return o.at(now).free }

func (o *warmOracle) fits(now, n int64) bool {
	return n <= o.largest && o.at(now).free.Cmp(rat(now-now%o.tick+o.longest)) <= 0
}

func (o *warmOracle) charge(now, n int64) { o.owe(now, min(n, o.largest)) }

func (o *warmOracle) owe(now, n int64) {
	if *o = *o.at(now); n == 0 {
		return
	}
	rest := later(new(big.Rat).Sub(o.stored, rat(n)), o.zero)
	cost := times(o.interval, n)
	cost.Add(cost, o.dearer(o.stored))
	o.free = new(big.Rat).Add(o.free, cost.Sub(cost, o.dearer(rest)))
	o.stored = rest
	most := times(o.interval, o.largest) // is owed by the largest cost in a cold limit, to within a tick
	most.Add(most, o.dearer(o.most))
	most.Sub(most, o.dearer(later(new(big.Rat).Sub(o.most, rat(o.largest)), o.zero)))
	o.free = earlier(o.free, most.Add(most, rat(now-now%o.tick+o.longest+o.tick)))
}

// refund brings the next request forward by what the hits would cost a warm limit.
func (o *warmOracle) refund(now, n int64) {
	*o = *o.at(now)
	o.free = later(new(big.Rat).Sub(o.free, times(o.interval, n)), rat(now-now%o.tick))
}

func (o *warmOracle) oneByOne(now, k int64) bool {
	before := *o
	before.owe(now, k-1)
	return before.fits(now, 1)
}

func (o *warmOracle) isNew(now int64) bool {
	now2 := o.at(now)
	return now2.stored.Cmp(o.most) == 0 && now2.free.Cmp(rat(now-now%o.tick)) <= 0
}
