package rlqs

import (
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// maxLogged bounds the reasons that are logged.
const maxLogged = 100

// resolveAll finds the limits of all clients again, after rules changed or a counter was reset.
func (k *Keeper) resolveAll(now time.Duration) {
	k.changed = false
	k.eachClient(func(c *client) {
		c.could, c.inWindow = min(c.could, c.burst), 0 // a counter that was reset knows nothing of it
		if t := k.o.Resolver.Resolve(c.stream.domain, c.id); !c.isBroken() && !k.retarget(c, &t, now) {
			k.abandon(c, now)
		}
		c.reply = true
	})
	for _, b := range k.books {
		b.ahead, b.debt, b.unpaid, b.back, b.retryAt = min(b.ahead, 0), 0, 0, 0, 0
	}
}

// retarget makes the client count what its target says. It returns false if the limits cannot be assigned.
func (k *Keeper) retarget(c *client, t *Target, now time.Duration) bool {
	c.shadow, c.enforced, c.rule = nil, nil, t.Rule
	refused, none := t.Refused, false
	var enforced []limiter.Hit
	for i := range t.Hits {
		h := t.Hits[i]
		p, err := prepaid(h)
		if t.Shadow || h.Mode == limiter.Shadow {
			if err == nil && h.Policy.Algorithm() == limiter.FixedWindow {
				h = p // a report is charged as far as it fits
			}
			h.Mode, h.Group, h.ByItself = limiter.Shadow, 0, false
			c.shadow = append(c.shadow, countedOf(t, i, h))
			continue
		}
		if why := Unfit(&h); why != "" && refused == "" {
			refused = why
		}
		if err != nil && refused == "" {
			refused = err.Error()
		}
		none = none || h.Policy.Limit() == 0
		enforced, c.enforced = append(enforced, p), append(c.enforced, countedOf(t, i, p))
	}
	switch {
	case refused != "":
		k.refuse(c.stream.domain, refused)
		return false
	case len(enforced) == 0:
		k.leave(c)
		c.fixed = AllowAll
	case none:
		k.leave(c)
		c.fixed = DenyAll
	default:
		k.join(c, enforced, t, now)
	}
	return true
}

// refuse counts a bucket that gets no assignment, and logs each reason once.
func (k *Keeper) refuse(domain, why string) {
	k.stats.Refused++
	line := domain + ": " + why
	if _, ok := k.logged[line]; ok || len(k.logged) >= maxLogged {
		return
	}
	k.logged[line] = struct{}{}
	k.o.Logger.Warn("a limit cannot be assigned to Envoys as a quota, its buckets get no assignment",
		slog.String("domain", domain), slog.String("reason", why)) // a bucket's values are the requests'
}

// bookKey returns a key that is equal for hits on the same counters.
func bookKey(hits []limiter.Hit) string {
	if len(hits) == 1 {
		return hits[0].Key
	}
	var b strings.Builder
	for i := range hits {
		b.WriteByte(0) // no counter's key begins so
		b.WriteString(strconv.Itoa(len(hits[i].Key)))
		b.WriteByte(':')
		b.WriteString(hits[i].Key)
	}
	return b.String()
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
	c.isCovered = c.isResumed && slices.ContainsFunc(b.clients, (*client).isBroken) // by the stream that broke
	for _, ct := range b.counters {
		c.isCovered = c.isResumed && ct.came(c) || c.isCovered // or by another Keeper
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
	if i := slices.Index(b.clients, c); i >= 0 {
		b.clients = slices.Delete(b.clients, i, i+1)
	}
}

// forget removes a book without clients.
func (k *Keeper) forget(key string, b *book) {
	delete(k.books, key)
	for _, ct := range b.counters {
		if i := slices.Index(ct.books, b); i >= 0 {
			ct.books = slices.Delete(ct.books, i, i+1)
		}
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
