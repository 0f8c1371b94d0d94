package rlqs

import (
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Decided counts requests of a bucket that an Envoy decided, for one of the bucket's limits.
type Decided struct {
	Limit *descriptors.Limit
	Key   string // key of the limit's counter
	// Outcome is Allowed or, for denied requests, Denied for the limit with the smallest share and Uncharged for the other
	// limits. In shadow mode, the counter decides after the report whether it is Allowed or ShadowDenied. If the store
	// does not respond, the Keeper reports no Decided.
	Outcome  decide.Outcome
	Requests uint64
	// IsFirst reports whether the limit is the bucket's first. Only for first limits, each request counts once.
	IsFirst bool
}

// note counts the reported requests for each limit. Limits in shadow mode are charged in the next step.
func (c *client) note(u *Usage) {
	const most = limiter.MaxHits / 2 // because an Envoy may report any number
	k, allowed, denied := c.stream.keeper, min(u.Allowed, most), min(u.Denied, most)
	for i := range c.target.Hits {
		h := &c.target.Hits[i]
		of := Decided{Limit: c.target.Limits[i], Key: h.Key, IsFirst: i == 0}
		if h.Mode == limiter.Shadow {
			if allowed+denied > 0 {
				k.shadows = append(k.shadows, &ask{hits: []limiter.Hit{prepaid(*h)}, n: int64(allowed + denied), shadow: &of})
			}
			continue
		}
		outcomes := [2]decide.Outcome{decide.Allowed, decide.Denied}
		if h.Policy.Limit() > 0 && (c.book == nil || c.limitedBy.key != h.Key) {
			outcomes[1] = decide.Uncharged
		}
		k.decide(of, outcomes, allowed, denied)
	}
}

// noteShadow counts a report that was charged to a limit in shadow mode. It ignores all other asks.
func (k *Keeper) noteShadow(a *ask) {
	if a.shadow != nil && a.failure == nil {
		outcomes := [2]decide.Outcome{decide.Allowed, decide.ShadowDenied}
		k.decide(*a.shadow, outcomes, uint64(a.got), uint64(a.n-a.got)) //nolint:gosec // not below 0
	}
}

// decide reports the numbers of requests with two outcomes.
func (k *Keeper) decide(d Decided, outcomes [2]decide.Outcome, requests ...uint64) {
	for i, n := range requests {
		if d.Outcome, d.Requests = outcomes[i], n; n > 0 {
			k.o.Decided(d)
		}
	}
}
