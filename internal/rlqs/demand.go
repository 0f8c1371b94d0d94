package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// addEvery is how often a Keeper adds its claim, aloneEvery the same while it sees no others, and averagedOver the
	// time over which it averages what the others add.
	addEvery, aloneEvery, averagedOver = 2 * tick, time.Second, time.Second
	// wholeClaim is how many hits a second stand for a claim to the whole limit. A claim is rounded to whole hits.
	wholeClaim = 1000
	// leastClaim is claimed in any case, so that a Keeper whose Envoys want little has some to spare. Less than half of it
	// is left in an average, and comes from no Keeper.
	leastClaim = 0.01
)

// demandParams are the limit that claims are counted by. It is never reached.
var demandParams = limiter.Params{
	Algorithm: limiter.FixedWindow, Limit: step.MaxLimit, Window: time.Minute, ChargeDenied: limiter.ChargeNone,
}

// demand is what the Keepers of a store claim of a counter, in parts of its rate. All add hits to one counter in the
// store, as many a second as their claims are large. By how much it grows beyond its own hits, each Keeper knows the
// claims of the others.
type demand struct {
	added, at time.Duration // when hits were added, and when the store last answered that
	counted   int64         // hits of all, in that answer
	others    float64
}

// hasOthers reports whether other Keepers claim something.
func (d *demand) hasOthers() bool { return d.others > leastClaim/2 }

// learn takes the answer of the store. Its counter begins again at the end of its window.
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
	case d.others > 0 && long < interval: // the Envoys of a Keeper that is gone go on with what they have
		d.counted = counted
		return
	default:
		d.others = 0
	}
	d.at, d.counted = now, counted
}

// askDemand returns what to add to the claims of all counters, where it is time.
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

// came takes a client that comes from another Keeper from the claims of the others.
func (ct *counter) came(c *client) {
	ct.demand.others = max(0, ct.demand.others-min(c.want, ct.most())/rateOf(ct.policy))
}

// fair returns the part of most hits a second that this Keeper's clients may have beside those of other Keepers.
func (ct *counter) fair(most float64) float64 {
	if !ct.demand.hasOthers() {
		return most
	}
	claim := ct.claim()
	return most * claim / (claim + ct.demand.others)
}
