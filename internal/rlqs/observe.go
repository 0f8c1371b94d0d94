package rlqs

import (
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Decided is what Envoys decided about requests of a bucket, by one of the bucket's limits.
type Decided struct {
	Limit *descriptors.Limit
	Key   string // of the limit's counter
	// Outcome is Allowed; Denied, by the limit that gives the Envoy least; Uncharged, of the other limits of a request
	// that was denied. A limit in shadow mode has Allowed and ShadowDenied: by the counter, after the report, if the store
	// answers.
	Outcome  decide.Outcome
	Requests uint64
	// IsFirst says that the limit is the bucket's first: by these, each request counts once.
	IsFirst bool
}

// note counts what was reported, under each limit. Limits in shadow mode are charged with the next step.
func (c *client) note(u *Usage) {
	const most = limiter.MaxHits / 2 // an Envoy may report anything
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

// noteShadow counts a report that was charged to a limit in shadow mode, if the ask is of one.
func (k *Keeper) noteShadow(a *ask) {
	if a.shadow != nil && a.failure == nil {
		outcomes := [2]decide.Outcome{decide.Allowed, decide.ShadowDenied}
		k.decide(*a.shadow, outcomes, uint64(a.got), uint64(a.n-a.got)) //nolint:gosec // not below 0
	}
}

// decide hands two outcomes on, with how many requests had them.
func (k *Keeper) decide(d Decided, outcomes [2]decide.Outcome, requests ...uint64) {
	for i, n := range requests {
		if d.Outcome, d.Requests = outcomes[i], n; n > 0 {
			k.o.Decided(d)
		}
	}
}
