package rlqs

import (
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// minBurst is the shortest time whose hits a limit must admit at once, so that a Keeper can charge them ahead: it
// charges once a tick, for more than a tick.
const minBurst = 4 * shortTick

// Unfit says why a Keeper cannot assign parts of the limit that the hit asks; it is empty if it can. A limit of 0 fits:
// it denies all.
func Unfit(h *limiter.Hit) string {
	p := h.Policy
	in := p.Params()
	if r, ok := h.Route.(interface{ UsesRedisCell() bool }); ok && r.UsesRedisCell() {
		return "engine: redis_cell cannot be charged ahead; use the default engine"
	}
	switch {
	case p.Limit() == 0:
		return ""
	case !p.Algorithm().CanPrepay():
		return fmt.Sprintf("algorithm: %s cannot be charged ahead, since its answers depend on the moment at which each "+
			"request comes; use token_bucket, or the rate limit service", p.Algorithm())
	case in.Initial != limiter.InitialFull:
		return "initial: a bucket that starts empty cannot be charged ahead; use initial: full"
	case in.Refill != limiter.RefillGreedy:
		return "refill: a bucket that is refilled in intervals cannot be charged ahead; use refill: greedy"
	case in.ChargeDenied != limiter.ChargeNone && p.Algorithm() != limiter.FixedWindow:
		return "charge_denied: requests that an Envoy denies by itself are not charged; use charge_denied: none"
	case float64(p.Capacity()) < rateOf(p)*minBurst.Seconds():
		return fmt.Sprintf("burst: %d at once is less than what %d per %s admits in %s, which an Envoy is charged ahead; "+
			"allow a larger burst, or use the rate limit service", p.Capacity(), p.Limit(), p.Window(), minBurst)
	}
	return ""
}

// rateOf is how many hits the limit admits in a second, in the long run.
func rateOf(p *limiter.Policy) float64 { return float64(p.Limit()) / p.Window().Seconds() }

// prepaid returns the hit with a policy that charges a denied hit nothing, so that hits can be asked for that may not
// fit. A fixed window counts requests that it denies, by default: nobody sees that, since the window is full.
func prepaid(h limiter.Hit) (limiter.Hit, error) {
	h.Mode, h.Group, h.ByItself, h.Look = limiter.Enforce, 0, false, false
	if h.Policy.ChargeDenied() == limiter.ChargeNone {
		return h, nil
	}
	in := h.Policy.Params()
	in.ChargeDenied = limiter.ChargeNone
	p, err := limiter.NewPolicy(in)
	h.Policy = p
	return h, err
}
