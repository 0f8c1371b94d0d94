package rlqs

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Decided is what Envoys decided about requests of a bucket, by one of the bucket's limits.
type Decided struct {
	Limit *descriptors.Limit
	Key   string // of the limit's counter
	// Outcome is Allowed; Denied, by the limit that gives the Envoy least; Uncharged, of the other limits of a request
	// that was denied. AllowedOnFailure and the like say that the store did not answer, so that nothing was charged. A
	// limit in shadow mode has Allowed and ShadowDenied: by the counter, after the report.
	Outcome  decide.Outcome
	Requests uint64
	// IsFirst says that the limit is the bucket's first: by these, each request counts once.
	IsFirst bool
}

// counted is a limit of a client, by which requests are counted.
type counted struct {
	hit   limiter.Hit
	limit *descriptors.Limit // nil: requests are not counted
}

func countedOf(t *Target, i int, h limiter.Hit) counted {
	of := counted{hit: h}
	if i < len(t.Limits) {
		of.limit = t.Limits[i]
	}
	return of
}

// note keeps what was reported, to be counted after the next step.
func (c *client) note(u *Usage) {
	const most = limiter.MaxHits / 2 // an Envoy may report anything
	k, allowed, denied := c.stream.keeper, min(u.Allowed, most), min(u.Denied, most)
	if allowed+denied == 0 {
		return
	}
	for i := range c.shadow {
		k.shadows = append(k.shadows, &ask{
			hits: []limiter.Hit{c.shadow[i].hit}, n: int64(allowed + denied),
			shadow: &c.shadow[i], isFirst: i == 0 && len(c.enforced) == 0,
		})
	}
	k.decided = c.appendDecided(k.decided, allowed, denied)
}

// count hands on what was reported, and charges it to limits in shadow mode. The keeper's lock is not held.
func (k *Keeper) count(ctx context.Context) {
	k.mu.Lock()
	all, shadows := k.decided, k.shadows
	k.decided, k.shadows = nil, nil
	k.mu.Unlock()
	k.take(ctx, shadows)
	for _, a := range shadows {
		add := func(o decide.Outcome, n int64) {
			if n > 0 && a.shadow.limit != nil {
				all = append(all, Decided{a.shadow.limit, a.shadow.hit.Key, o, uint64(n), a.isFirst})
			}
		}
		if a.failure != nil {
			add(decide.AllowedOnFailure, a.n)
			continue
		}
		add(decide.Allowed, a.got)
		add(decide.ShadowDenied, a.n-a.got)
	}
	if len(all) > 0 && k.o.Decided != nil {
		k.o.Decided(all)
	}
}

// appendDecided appends what was reported of the client, by the limits that are enforced.
func (c *client) appendDecided(all []Decided, allowedN, deniedN uint64) []Decided {
	by := c.deniedBy()
	for i, of := range c.enforced {
		if of.limit == nil {
			continue
		}
		allowed, denied := decide.Allowed, decide.Uncharged
		if i == by {
			denied = decide.Denied
		}
		if c.book != nil && c.book.isFailing {
			isLocal := of.limit.Local != nil
			allowed = decide.AllowedOnFailure
			if isLocal {
				allowed = decide.AllowedLocally
			}
			if i == by && isLocal {
				denied = decide.DeniedLocally
			} else if i == by {
				denied = decide.DeniedOnFailure
			}
		}
		for _, d := range []Decided{
			{of.limit, of.hit.Key, allowed, allowedN, i == 0}, {of.limit, of.hit.Key, denied, deniedN, i == 0},
		} {
			if d.Requests > 0 {
				all = append(all, d)
			}
		}
	}
	return all
}

// deniedBy returns the index of the enforced limit that makes the Envoy deny requests.
func (c *client) deniedBy() int {
	for i := range c.enforced {
		if h := &c.enforced[i].hit; h.Policy.Limit() == 0 || c.limitedBy != nil && c.limitedBy.key == h.Key {
			return i
		}
	}
	return 0
}
