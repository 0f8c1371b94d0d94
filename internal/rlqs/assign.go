package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// settle divides what was charged among the clients of a group, and assigns them what it suffices for.
func (k *Keeper) settle(a *ask, now time.Duration) {
	g := a.group
	if a.failure != nil {
		k.stats.Failures++
		g.isFailing = true
		k.assignByPolicy(a, now)
		return
	}
	if a.first != nil {
		g.isFailing = false
		k.learn(a, now)
	}
	k.stats.Charged += uint64(a.got)   //nolint:gosec // not below 0
	k.stats.Returned += uint64(a.back) //nolint:gosec // not below 0
	rest := float64(a.got)
	part := func(of float64) float64 { // of a sum that is paid
		if of <= 0 {
			return 0
		}
		paid := min(rest, of)
		rest -= paid
		return paid / of
	}
	keep, owe, more := part(a.keep), part(a.owe), part(a.more)
	long := g.cadence.long
	for _, c := range a.clients {
		if c.isGone || c.group != g {
			continue
		}
		n := c.plan.keep*keep + c.plan.more*more + rest/float64(len(a.clients))
		c.float += n
		c.debt = max(0, c.debt-c.plan.owe*owe)
		c.unpaid = min(c.debt, c.plan.owe*(1-owe)) + c.plan.raise*(1-more)
		c.charge(n, g.window())
		if c.isListening() && !c.isStale {
			k.assign(c, long, a.at, now)
		}
	}
}

// learn takes what the store answered.
func (k *Keeper) learn(a *ask, now time.Duration) {
	isEmpty, wait, g := false, time.Duration(0), a.group
	for i, ct := range g.counters {
		d := &a.first[i]
		isShort := !d.Allowed && (a.got < a.n-1 || a.got == 0)
		if isShort && d.Remaining == 0 {
			isEmpty, wait = true, max(wait, d.RetryAfter)
		}
		ct.learn(&a.last[i], a.got, isShort, now)
		g.cadence.learn(a.hits[i].Policy, d, a.sent)
	}
	if isEmpty && g.isWindow() {
		g.retryAt = now + min(wait, contended)
	}
}

// assign sends the client what was charged for, if that is not what it has or if it reported.
func (k *Keeper) assign(c *client, long, planned, now time.Duration) {
	rate, burst, isShort := c.affords(long)
	burst = math.Floor(burst)
	next := c.assigned
	if !c.isBucket() || rate != c.rate || burst != c.burst {
		next = bucketOf(rate, burst, c.assigned)
	}
	if next.TTL = k.ttl(c, next.Strategy, now); next.TTL < time.Second {
		return
	}
	if isShort && c.isBucket() {
		k.stats.Shortages++
	}
	c.isLow = isShort || c.isLow && rate < c.plan.rate
	isSame := c.isSent && next.Strategy == c.assigned.Strategy && next.MaxTokens == c.assigned.MaxTokens &&
		next.PerFill == c.assigned.PerFill && next.Fill == c.assigned.Fill
	if isSame && !c.reply && !c.isUrgent && !c.isLate(now, k.o.TTL) {
		return
	}
	if !c.reply && !c.isUrgent && !isShort {
		c.stream.pushed = planned
	}
	if next.Strategy == TokenBucket {
		c.float -= max(0, float64(next.MaxTokens)-c.burst)
		c.burst = float64(next.MaxTokens)
	} else {
		c.burst = 0
	}
	c.setRate(next.rate(), now)
	k.send(c, next, now)
}

// assignByPolicy assigns the clients of a group what holds while the store does not answer. What they let pass is not
// charged, also later.
func (k *Keeper) assignByPolicy(a *ask, now time.Duration) {
	g, sum := a.group, 0.0
	for _, c := range a.clients {
		sum += c.plan.rate
	}
	for _, c := range a.clients {
		if c.isGone || c.group != g || !c.isListening() || c.isStale {
			continue
		}
		c.isFree, c.float, c.debt, c.unpaid = true, 0, 0, 0
		rate := c.plan.rate
		switch g.onFailure {
		case descriptors.Fail: // the Envoy falls back when its assignment ends
			continue
		case descriptors.Deny:
			rate = 0
		case descriptors.Local:
			rate *= min(1, g.localRate/max(sum, 1e-9))
		case descriptors.Allow:
		}
		next := c.assigned
		if !c.isBucket() || math.Abs(rate-c.rate) > c.rate/100 {
			next = bucketOf(rate, max(1, c.plan.burst), c.assigned)
		}
		isSame := c.isSent && c.assigned.Strategy == next.Strategy && c.assigned.PerFill == next.PerFill
		if isSame && !c.reply && !c.isUrgent {
			continue
		}
		next.TTL = k.o.TTL
		c.rate, c.burst = next.rate(), float64(next.MaxTokens)
		k.send(c, next, now)
	}
}

// bucketOf returns the token bucket for a rate and a burst, or what denies all if the rate is too low for one.
func bucketOf(rate, burst float64, last Assignment) Assignment {
	if a, ok := roundDown(rate, burst, last); ok {
		return a
	}
	return Assignment{Strategy: DenyAll}
}

// ttl is how long the client's next assignment holds. One that does not extend the last one may be less than a second.
func (k *Keeper) ttl(c *client, s Strategy, now time.Duration) time.Duration {
	if !c.reply && !c.isUrgent && now-c.reported > max(c.every, interval)*3/2 {
		return (c.expires - now).Truncate(time.Second) // it may be gone
	}
	if ends := c.group.windowEnds(); s == DenyAll && ends > now {
		return min(max(k.o.TTL, (ends-now+time.Second-1).Truncate(time.Second)), longestDeny)
	}
	return k.o.TTL
}

// send has the next response to the client's stream carry an assignment.
func (k *Keeper) send(c *client, a Assignment, now time.Duration) {
	a.ID = c.id
	c.assigned, c.isSent, c.expires = a, true, now+a.TTL
	c.reply, c.isUrgent = false, false
	switch a.Strategy {
	case AllowAll:
		k.stats.AllowAll++
	case DenyAll:
		k.stats.DenyAll++
	case TokenBucket:
		k.stats.TokenBuckets++
	case Abandon:
	}
	c.stream.outbox = append(c.stream.outbox, a)
}
