package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// sumEvery is how often a Keeper adds its part to a sum over all Keepers, aloneEvery the same while it sees no others,
	// and sumOver the time over which it averages what the others add.
	sumEvery, aloneEvery, sumOver = 2 * tick, time.Second, time.Second
	// sumUnit is how many hits a second stand for 1. A part is rounded to whole hits.
	sumUnit = 1000
	// fewOthers is how many buckets of other Keepers count as none: that is left in an average.
	fewOthers = 0.01
	// sparePart is one part in so many of what nobody wants that is not divided among several Keepers: it is for Envoys
	// that come.
	sparePart = 10
)

// sumParams are the limit that sums are counted by. It is never reached.
var sumParams = limiter.Params{
	Algorithm: limiter.FixedWindow, Limit: limiter.MaxLimit, Window: time.Minute, ChargeDenied: limiter.ChargeNone,
}

// sum is a number of which each Keeper of the store has a part. All add hits to one counter, as many a second as their
// parts are large. By how much it grows beyond its own hits, each Keeper knows the sum of the others.
type sum struct {
	added, at time.Duration // when hits were added, and when the store last answered that
	counted   int64         // hits of all, in that answer
	others    float64
}

// add returns what to charge for a part of that size.
func (s *sum) add(part float64, h limiter.Hit, now time.Duration) *ask {
	long := min(now-s.added, 2*aloneEvery)
	s.added = now
	return &ask{hits: []limiter.Hit{h}, n: clampHits(part*sumUnit*long.Seconds()) + 1, sum: s}
}

// learn takes the answer. The counter begins again at the end of its window.
func (s *sum) learn(a *ask, now time.Duration) {
	if a.failure != nil {
		return
	}
	counted := a.hits[0].Policy.Limit() - a.first[0].Remaining
	more, long := counted-s.counted-a.n, now-s.at
	switch {
	case s.at == 0 || more < 0:
	case more > 0:
		s.others += (float64(more)/sumUnit/long.Seconds() - s.others) * -math.Expm1(-long.Seconds()/sumOver.Seconds())
	case s.others > 0 && long < interval: // the Envoys of a Keeper that is gone go on with what they have
		s.counted = counted
		return
	default:
		s.others = 0
	}
	s.at, s.counted = now, counted
}

// askSums returns what to add to the sums of all counters, where it is time.
func (k *Keeper) askSums(now time.Duration) (asks []*ask) {
	for _, ct := range k.counters {
		every := sumEvery
		if ct.buckets.others < fewOthers {
			every = aloneEvery
		}
		if now-ct.demand.added < every-tick/2 {
			continue
		}
		wanted, buckets := ct.claim()
		h := limiter.Hit{Key: "quota_demand|" + ct.key, Policy: k.sums, Route: ct.route}
		asks = append(asks, ct.demand.add(wanted/rateOf(ct.policy), h, now))
		h.Key = "quota_buckets|" + ct.key
		asks = append(asks, ct.buckets.add(buckets, h, now))
	}
	return asks
}

// came takes a client that comes from another Keeper from the parts of the others.
func (ct *counter) came(c *client) {
	ct.demand.others = max(0, ct.demand.others-min(c.want, ct.most())/rateOf(ct.policy))
	ct.buckets.others = max(0, ct.buckets.others-1)
}

// fair returns the part of most hits a second that this Keeper's clients may have beside those of other Keepers. If all
// want more, it is by what they want; what nobody wants is divided as divide does.
func (ct *counter) fair(most float64) float64 {
	if ct.buckets.others < fewOthers {
		return most
	}
	wanted, buckets := ct.claim()
	all := wanted + ct.demand.others*rateOf(ct.policy)
	if all >= most {
		return most * wanted / all
	}
	part := (buckets/(buckets+ct.buckets.others) + wanted/max(all, 1e-9)) / 2
	return wanted + (most-all)*(1-1./sparePart)*part
}
