package rlqs

import (
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// resolve finds what the client counts. The keeper's lock is not held.
func (k *Keeper) resolve(now time.Duration) {
	k.mu.Lock()
	if k.changed {
		k.changed = false
		k.urgent = k.urgent[:0]
		k.eachClient(func(c *client) {
			if !c.isBroken() {
				c.isStale, c.isUrgent = true, true
				k.urgent = append(k.urgent, c)
			}
			c.unused = min(c.unused, c.burst) // a counter that was reset knows nothing of it
			c.float, c.inWindow, c.debt = min(c.float, 0), 0, 0
		})
		for _, g := range k.groups {
			g.back, g.retryAt = 0, 0
		}
	}
	fresh := slices.Clone(k.urgent)
	domains := make([]string, len(fresh))
	for i, c := range fresh {
		domains[i] = c.stream.domain
	}
	k.mu.Unlock()
	targets := make([]Target, len(fresh))
	for i, c := range fresh {
		targets[i] = k.o.Resolver.Resolve(domains[i], c.id)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed {
		return // and again in the next step
	}
	k.urgent = slices.Delete(k.urgent, 0, len(fresh))
	for i, c := range fresh {
		if !c.isGone {
			k.retarget(c, &targets[i], now)
		}
	}
}

// retarget has the client count what its target says.
func (k *Keeper) retarget(c *client, t *Target, now time.Duration) {
	c.isStale = false
	c.refused, c.shadow, c.enforced, c.rule = t.Refused, nil, nil, t.Rule
	var enforced []limiter.Hit
	none := false
	for i := range t.Hits {
		h := t.Hits[i]
		if t.Shadow || h.Mode == limiter.Shadow {
			if p, err := prepaid(h); err == nil && h.Policy.Algorithm() == limiter.FixedWindow {
				h = p // a report is charged as far as it fits
			}
			h.Mode, h.Group, h.ByItself = limiter.Shadow, 0, false
			c.shadow = append(c.shadow, shadowHit{h, countedOf(t, i)})
			continue
		}
		if why := Unfit(&h); why != "" && c.refused == "" {
			c.refused = why
		}
		h, err := prepaid(h)
		if err != nil && c.refused == "" {
			c.refused = err.Error()
		}
		none = none || h.Policy.Limit() == 0
		enforced, c.enforced = append(enforced, h), append(c.enforced, countedOf(t, i))
	}
	if len(c.shadow) == 0 {
		c.passed = 0
	}
	switch {
	case c.refused != "":
		k.leave(c)
		c.shadow, c.enforced, c.passed = nil, nil, 0
		k.tell(c)
	case len(enforced) == 0:
		k.leave(c)
		c.fixed = AllowAll
	case none:
		k.leave(c)
		c.fixed = DenyAll
	default:
		k.join(c, enforced, t, now)
	}
}

// tell logs why buckets get no assignment, each reason once.
func (k *Keeper) tell(c *client) {
	line := c.stream.domain + ": " + c.refused
	if _, ok := k.logged[line]; ok || len(k.logged) >= maxLogged {
		return
	}
	k.logged[line] = struct{}{}
	k.o.Logger.Warn("a limit cannot be assigned to Envoys as a quota, its buckets get no assignment",
		slog.String("domain", c.stream.domain), slog.String("reason", c.refused)) // a bucket's values are the requests'
}

// failurePolicy is what holds of a request with these limits while the store does not answer.
func failurePolicy(t *Target) (f descriptors.OnStoreFailure, localRate float64) {
	worst := map[descriptors.OnStoreFailure]int{
		descriptors.Allow: 0, descriptors.Local: 1, descriptors.Fail: 2, descriptors.Deny: 3,
	}
	localRate = math.Inf(1)
	for i, next := range t.OnFailure {
		if worst[next] > worst[f] {
			f = next
		}
		if i < len(t.Local) && t.Local[i] != nil {
			localRate = min(localRate, rateOf(t.Local[i]))
		}
	}
	return f, localRate
}
