package rlqs

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// resolveAll resolves all clients again after rules changed or a counter was reset.
func (k *Keeper) resolveAll(now time.Duration) {
	k.changed = false
	k.eachClient(func(c *client) {
		c.could, c.window, c.reply = min(c.could, c.burst), 0, true // a reset counter has lost the other charges
		switch t := k.o.Resolve(c.stream.domain, c.id); {
		case c.isBroken():
		case t.Refused != "":
			k.refuse(c.stream.domain, t.Refused)
			k.abandon(c, now)
		default:
			k.retarget(c, &t, now)
		}
	})
	for _, b := range k.books {
		b.ahead, b.debt, b.back = min(b.ahead, 0), 0, 0
	}
}

// retarget sets the client's target and charges it to the target's counters.
func (k *Keeper) retarget(c *client, t *Target, now time.Duration) {
	c.target, c.fixed = *t, AllowAll
	var enforced []limiter.Hit
	for _, h := range t.Hits {
		if h.Mode == limiter.Shadow {
			continue
		}
		if enforced = append(enforced, prepaid(h)); h.Policy.Limit() == 0 {
			c.fixed = DenyAll
		}
	}
	if len(enforced) == 0 || c.fixed == DenyAll {
		k.leave(c)
	} else {
		k.join(c, enforced, now)
	}
}

// join charges the client to the counters of hits.
func (k *Keeper) join(c *client, hits []limiter.Hit, now time.Duration) {
	key := ""
	for i := range hits {
		key = fmt.Sprintf("%s%q", key, hits[i].Key)
	}
	b := k.books[key]
	if b == nil {
		b = &book{}
		k.books[key] = b
		for i := range hits {
			ct := k.counters[hits[i].Key]
			if ct == nil {
				ct = &counter{key: hits[i].Key, began: now, lastAt: now, deniedAt: -contended}
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
	b.allows, b.isSilent = onFailure(c.target.Limits)
	if c.book == b {
		return
	}
	k.leave(c)
	for _, ct := range b.counters {
		if c.isResumed && c.reports == 0 {
			ct.came(c)
		}
	}
	c.book, c.at, c.moves, c.window, c.limitedBy = b, now, false, b.window(), b.counters[0]
	b.clients = append(b.clients, c)
}

// onFailure returns the requests per second to admit while the store fails. If isSilent is true, Envoys get no
// assignments then, and fall back when their assignments expire.
func onFailure(limits []*descriptors.Limit) (allows float64, isSilent bool) {
	allows = math.Inf(1)
	for _, l := range limits {
		switch l.OnStoreFailure {
		case descriptors.Deny:
			allows = 0
		case descriptors.Local:
			if l.IsLocal() {
				allows = min(allows, rateOf(l.Local))
			}
		case descriptors.Fail:
			isSilent = true
		case descriptors.Allow:
		}
	}
	return allows, isSilent && allows > 0
}

// leave stops charging the client. Its assignment remains valid.
func (k *Keeper) leave(c *client) {
	b := c.book
	if b == nil {
		return
	}
	c.book, c.burst = nil, 0
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
