package rlqs

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// resolveAll finds the limits of all clients again, after rules changed or a counter was reset.
func (k *Keeper) resolveAll(now time.Duration) {
	k.changed = false
	k.eachClient(func(c *client) {
		c.could, c.inWindow = min(c.could, c.burst), 0 // a counter that was reset knows nothing of it
		c.reply = true
		switch t := k.o.Resolver.Resolve(c.stream.domain, c.id); {
		case c.isBroken():
		case t.Refused != "":
			k.refuse(c.stream.domain, t.Refused)
			k.abandon(c, now)
		default:
			k.retarget(c, &t, now)
		}
	})
	for _, b := range k.books {
		b.ahead, b.debt, b.unpaid, b.back, b.retryAt = min(b.ahead, 0), 0, 0, 0, 0
	}
}

// retarget makes the client count what its target says.
func (k *Keeper) retarget(c *client, t *Target, now time.Duration) {
	c.shadow, c.enforced, c.rule = nil, nil, t.Rule
	var enforced []limiter.Hit
	deniesAll := false
	for i, h := range t.Hits {
		if t.Shadow || h.Mode == limiter.Shadow {
			if h.Policy.Algorithm() == limiter.FixedWindow {
				h = prepaid(h) // a report is charged as far as it fits
			}
			h.Mode, h.Group, h.ByItself = limiter.Shadow, 0, false
			c.shadow = append(c.shadow, countedOf(t, i, h))
			continue
		}
		deniesAll = deniesAll || h.Policy.Limit() == 0
		h = prepaid(h)
		enforced, c.enforced = append(enforced, h), append(c.enforced, countedOf(t, i, h))
	}
	switch {
	case len(enforced) == 0:
		k.leave(c)
		c.fixed = AllowAll
	case deniesAll:
		k.leave(c)
		c.fixed = DenyAll
	default:
		k.join(c, enforced, t, now)
	}
}

// bookKey returns a key that is equal for hits on the same counters.
func bookKey(hits []limiter.Hit) string {
	key := hits[0].Key
	for i := range hits[1:] {
		key = fmt.Sprintf("%q %q", key, hits[i+1].Key)
	}
	return key
}

// join makes the client be charged to the counters of hits.
func (k *Keeper) join(c *client, hits []limiter.Hit, t *Target, now time.Duration) {
	key := bookKey(hits)
	b := k.books[key]
	if b == nil {
		b = &book{}
		k.books[key] = b
		for i := range hits {
			ct := k.counters[hits[i].Key]
			if ct == nil {
				ct = newCounter(&hits[i], now)
				k.counters[hits[i].Key] = ct
			}
			if b.counters = append(b.counters, ct); !slices.Contains(ct.books, b) {
				ct.books = append(ct.books, b)
			}
		}
	}
	for i, ct := range b.counters {
		ct.limit(&hits[i])
	}
	b.hits, b.urgent = hits, true
	b.onFailure, b.localRate = failurePolicy(t)
	if c.book == b {
		return
	}
	k.leave(c)
	for _, ct := range b.counters {
		if c.isResumed && c.reports == 0 {
			ct.came(c)
		}
	}
	c.book, c.at, c.moves, c.window = b, now, false, b.window()
	b.clients = append(b.clients, c)
}

// leave ends what the client is charged to, if it is to anything. What it was assigned stays in force.
func (k *Keeper) leave(c *client) {
	b := c.book
	if b == nil {
		return
	}
	c.book, c.burst, c.inWindow = nil, 0, 0
	b.clients = slices.DeleteFunc(b.clients, func(other *client) bool { return other == c })
}

// forget removes a book without clients.
func (k *Keeper) forget(key string, b *book) {
	delete(k.books, key)
	for _, ct := range b.counters {
		ct.books = slices.DeleteFunc(ct.books, func(other *book) bool { return other == b })
		if len(ct.books) == 0 {
			delete(k.counters, ct.key)
		}
	}
}

// failurePolicy returns what holds of a request with these limits while the store does not answer.
func failurePolicy(t *Target) (f descriptors.OnStoreFailure, localRate float64) {
	worst := map[descriptors.OnStoreFailure]int{
		descriptors.Allow: 0, descriptors.Local: 1, descriptors.Fail: 2, descriptors.Deny: 3,
	}
	localRate = math.Inf(1)
	for _, l := range t.Limits {
		if worst[l.OnStoreFailure] > worst[f] {
			f = l.OnStoreFailure
		}
		if l.Local != nil {
			localRate = min(localRate, rateOf(l.Local))
		}
	}
	return f, localRate
}
