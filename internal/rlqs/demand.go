package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// addEvery is the interval at which a Keeper adds its claim, aloneEvery the interval while it sees no other Keeper.
	// averagedOver is the time over which the others' claims are averaged.
	addEvery, aloneEvery, averagedOver = 2 * tick, time.Second, time.Second
	// wholeClaim is the number of hits per second that claims the whole limit. Claims are rounded to whole hits.
	wholeClaim = 1000
	// leastClaim is the minimum claim, so that a Keeper whose Envoys have little demand has a reserve. An average below
	// half of leastClaim is a remainder of old claims, and comes from no Keeper.
	leastClaim = 0.01
)

// demandParams are the parameters of the limit that counts claims. The limit is never reached.
var demandParams = limiter.Params{
	Algorithm: limiter.FixedWindow, Limit: step.MaxLimit, Window: time.Minute, ChargeDenied: limiter.ChargeNone,
}

// demand measures the other Keepers' claims to a counter, relative to its rate. Each Keeper adds hits in proportion to
// its claim to a common counter in the store. Its growth beyond the Keeper's own hits is the claims of the others.
type demand struct {
	added, at time.Duration // when hits were last added, and when others was last measured
	counted   int64         // hits of all Keepers in the last response
	others    float64
}

// hasOthers reports whether other Keepers have claims.
func (d *demand) hasOthers() bool { return d.others > leastClaim/2 }

// learn records the store's response. The counter restarts at the end of its window.
func (d *demand) learn(a *ask, now time.Duration) {
	if a.failure != nil {
		return
	}
	counted := a.hits[0].Policy.Limit() - a.first[0].Remaining
	more, long := counted-d.counted-a.n, now-d.at
	switch {
	case d.at == 0 || more < 0:
	case more > 0:
		claims := float64(more) / wholeClaim / long.Seconds()
		d.others += (claims - d.others) * -math.Expm1(-long.Seconds()/averagedOver.Seconds())
	case d.others > 0 && long < interval: // the Envoys of a stopped Keeper keep their assignments
		d.counted = counted
		return
	default:
		d.others = 0
	}
	d.at, d.counted = now, counted
}

// askDemand returns the due additions to the claims of all counters.
func (k *Keeper) askDemand(now time.Duration) (asks []*ask) {
	for _, ct := range k.counters {
		d, every := &ct.demand, addEvery
		if !d.hasOthers() {
			every = aloneEvery
		}
		if now-d.added < every-tick/2 {
			continue
		}
		n := wholeHits(ct.claim()*wholeClaim*min(now-d.added, 2*aloneEvery).Seconds()) + 1
		h := limiter.Hit{Key: "quota_demand|" + ct.key, Policy: k.demandPolicy, Route: ct.route}
		asks = append(asks, &ask{hits: []limiter.Hit{h}, n: n, demand: d})
		d.added = now
	}
	return asks
}

// came subtracts the claim of a client that had another Keeper until now from the other Keepers' claims.
func (ct *counter) came(c *client) {
	ct.demand.others = max(0, ct.demand.others-min(c.want, ct.most())/rateOf(ct.policy))
}

// fair returns this Keeper's fair part of most hits per second.
func (ct *counter) fair(most float64) float64 {
	if !ct.demand.hasOthers() {
		return most
	}
	claim := ct.claim()
	return most * claim / (claim + ct.demand.others)
}
