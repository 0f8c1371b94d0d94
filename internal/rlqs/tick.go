package rlqs

import (
	"context"
	"slices"
	"time"
)

const (
	// pushEvery is the shortest time between two responses to a stream that it did not ask for by a report, but for lower
	// shares because a counter has not enough.
	pushEvery = time.Second
	// recoverEvery is the same for shares that rise again after that.
	recoverEvery = 2 * tick
	// moved is how much of a divided total has to change for the shares to be divided again.
	moved = 0.02
)

// step does what is due, and returns when to come again.
func (k *Keeper) step(ctx context.Context) (next time.Duration) {
	now := k.now()
	k.resolve(now)

	k.mu.Lock()
	k.look(now)
	due := k.dueGroups(now)
	k.divideAll(due, now)
	asks := k.plan(due, now)
	shadows, sums := k.askShadows(now), k.askSums(due, now)
	k.mu.Unlock()

	k.take(ctx, slices.Concat(asks, shadows, sums))

	k.mu.Lock()
	now = k.now()
	for _, a := range sums {
		a.sum.learn(a, now)
	}
	for _, a := range asks {
		k.settle(a, now)
	}
	out := k.collect()
	decided := k.takeReported(shadows)
	next = k.next(now)
	k.mu.Unlock()

	for i := range out {
		out[i].to.Send(out[i].assignments)
	}
	k.observe(decided)
	return next
}

// look ends what has ended, and answers reports of buckets that nothing is charged for.
func (k *Keeper) look(now time.Duration) {
	k.eachClient(func(c *client) {
		switch {
		case c.isStale:
		case c.isBroken():
			if !c.isAssigned(now) {
				k.drop(c)
			}
		case c.idle >= idleReports, c.refused != "" && c.isSent:
			if c.group != nil {
				c.account(now)
				c.refund(c.float+c.burst, now-c.reported)
			}
			k.stats.Abandoned++
			c.stream.outbox = append(c.stream.outbox, Assignment{ID: c.id, Strategy: Abandon})
			k.drop(c)
		case c.refused != "":
			c.isUrgent, c.reply = false, false
		case c.group == nil && (c.reply || c.isUrgent || c.isLate(now, k.o.TTL)):
			c.rate, c.burst = 0, 0
			k.send(c, Assignment{Strategy: c.fixed, TTL: k.o.TTL}, now)
		}
	})
}

// isLate reports whether the client's assignment has to be sent again without a report, since reports come less often
// than every few seconds.
func (c *client) isLate(now, ttl time.Duration) bool {
	return c.isSent && c.expires-now < ttl/2 && now-c.reported <= c.every*3/2
}

// dueGroups returns the groups whose tick it is, and those that do not wait for one.
func (k *Keeper) dueGroups(now time.Duration) (due []*group) {
	for _, g := range k.groups {
		for _, ct := range g.counters {
			if ct.open(now) {
				g.retryAt, g.urgent = 0, true
			}
		}
		if now >= g.due {
			g.due = g.cadence.next(now)
		} else if !g.urgent {
			continue
		}
		g.urgent = false
		due = append(due, g)
	}
	return due
}

// next is when the next step is due.
func (k *Keeper) next(now time.Duration) time.Duration {
	next := now.Truncate(tick) + tick
	for _, g := range k.groups {
		next = min(next, g.due)
		for _, ct := range g.counters {
			if ct.ends > now {
				next = min(next, ct.ends)
			}
		}
	}
	return max(next, now+betweenSteps)
}

// response is what one stream is sent.
type response struct {
	to          Sender
	assignments []Assignment
}

// collect takes what is to be sent.
func (k *Keeper) collect() (out []response) {
	for s := range k.streams {
		if len(s.outbox) > 0 {
			out = append(out, response{s.to, s.outbox})
			s.outbox = nil
		}
	}
	return out
}
