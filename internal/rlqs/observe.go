package rlqs

import (
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

// counted is a limit of a client by which requests are counted.
type counted struct {
	limit  *descriptors.Limit // nil: nobody counts them
	key    string
	isZero bool // it allows nothing
}

func countedOf(t *Target, i int) counted {
	h := &t.Hits[i]
	of := counted{key: h.Key, isZero: h.Policy.Limit() == 0}
	if i < len(t.Limits) {
		of.limit = t.Limits[i]
	}
	return of
}

// note keeps what was reported until it is counted, when it is known which limits the bucket has.
func (c *client) note(u *Usage) {
	k := c.stream.keeper
	if k.o.Decided == nil || u.Allowed|u.Denied == 0 {
		return
	}
	if c.allowed|c.denied == 0 {
		k.reported = append(k.reported, c)
	}
	const most = limiter.MaxHits // an Envoy may report anything
	c.allowed, c.denied = min(c.allowed+min(u.Allowed, most), most), min(c.denied+min(u.Denied, most), most)
	c.wasFree = c.isFree
}

// takeReported returns what was reported of buckets whose limits are known, and what the counters decided of limits in
// shadow mode. The keeper's lock is held.
func (k *Keeper) takeReported(shadows []*ask) (all []Decided) {
	later := k.reported[:0]
	for _, c := range k.reported {
		if c.isStale && !c.isGone {
			later = append(later, c)
			continue
		}
		all = c.appendDecided(all)
	}
	clear(k.reported[len(later):])
	k.reported = later
	for _, a := range shadows {
		if k.o.Decided == nil || a.shadow.limit == nil {
			continue
		}
		add := func(o decide.Outcome, n int64) {
			if n > 0 {
				all = append(all, Decided{a.shadow.limit, a.shadow.key, o, uint64(n), a.isFirst})
			}
		}
		if a.failure != nil {
			add(decide.AllowedOnFailure, a.n)
			continue
		}
		add(decide.Allowed, a.got)
		add(decide.ShadowDenied, a.n-a.got)
	}
	return all
}

// appendDecided appends what was reported of the client, by the limits that are enforced.
func (c *client) appendDecided(all []Decided) []Decided {
	by := c.deniedBy()
	for i, of := range c.enforced {
		if of.limit == nil {
			continue
		}
		allowed, denied := decide.Allowed, decide.Uncharged
		if i == by {
			denied = decide.Denied
		}
		if c.wasFree {
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
			{of.limit, of.key, allowed, c.allowed, i == 0}, {of.limit, of.key, denied, c.denied, i == 0},
		} {
			if d.Requests > 0 {
				all = append(all, d)
			}
		}
	}
	c.allowed, c.denied = 0, 0
	return all
}

// deniedBy is the index of the enforced limit that has the Envoy deny requests.
func (c *client) deniedBy() int {
	for i := range c.enforced {
		if c.enforced[i].isZero || c.limitedBy != nil && c.limitedBy.key == c.enforced[i].key {
			return i
		}
	}
	return 0
}

// observe hands on what was decided. The keeper's lock is not held.
func (k *Keeper) observe(all []Decided) {
	if len(all) > 0 {
		k.o.Decided(all)
	}
}

// observeRest hands on what was reported since the last step.
func (k *Keeper) observeRest() {
	k.mu.Lock()
	rest := k.takeReported(nil)
	k.mu.Unlock()
	k.observe(rest)
}
