package rlqs

import (
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// cover is the time for whose rates is charged: one tick, and aheadOf more, so that a lower rate arrives before the
	// charged hits are used. delivery is the time after which a lower rate is taken to have arrived.
	cover, aheadOf, delivery = tick + aheadOf, tick / 2, tick / 4
	// burstPart: all bursts of a process together are one part in so many of a limit's capacity, as its leases are.
	burstPart = 10
	// windowMargin is how long before its window ends unused hits are refunded at the latest. It is longer than a call
	// takes.
	windowMargin = 20 * time.Millisecond
	littleHit    = 1e-6 // that is not charged, as it may come of rounding
)

// book is what is charged for all clients with the same limits. The keeper's lock guards it.
//
// ahead is how many charged hits nobody can have used yet. Time takes the clients' rates from it, an assignment takes a
// burst, and a charge adds to it. So nothing passes uncharged while it is not negative.
type book struct {
	hits     []limiter.Hit // of the limits, with N unset
	counters []*counter    // of hits
	clients  []*client

	isFailing bool    // the store did not answer the last charge
	allows    float64 // requests a second that pass meanwhile
	isSilent  bool    // nothing is assigned meanwhile

	ahead float64
	debt  float64 // requests that passed uncharged

	urgent bool    // it does not wait for the next tick
	back   float64 // hits to return to the windows
}

// account takes from ahead what the clients can have used until now.
func (b *book) account(now time.Duration) {
	for _, c := range b.clients {
		if b.isFailing { // nothing of what it uses is to be refunded
			c.window = 0
		}
		until := now
		if c.expires > 0 {
			until = max(c.at, min(now, c.expires))
		}
		used := c.rate * (until - c.at).Seconds()
		c.at = now
		c.could += used
		b.ahead -= used
		if c.expires > 0 && now >= c.expires {
			c.end()
		}
	}
	if b.isFailing {
		b.ahead = 0
	}
}

// plan decides what each client is to have, and returns what is to be charged for it.
func (b *book) plan(now time.Duration) *ask {
	b.account(now)
	if b.isFailing {
		sum := 0.0
		for _, c := range b.clients {
			sum += c.share
		}
		for _, c := range b.clients {
			c.share *= min(1, b.allows/max(sum, 1e-9))
		}
	}
	for _, c := range b.clients {
		if c.moves = c.mayMove(now); c.moves {
			c.goalRate, c.goalBurst = c.share, min(c.burst, c.burstGoal())
			b.addBursts(c.goalBurst - c.burst)
		}
	}
	for _, c := range b.clients { // bursts rise by what others have left
		if burst := c.burstGoal(); c.moves && burst > c.goalBurst {
			burst = max(c.goalBurst, math.Floor(min(burst, c.goalBurst+b.burstRoom())))
			if !c.hasBucket() && c.share > 0 { // a bucket has at least one token
				burst = max(1, burst)
			}
			b.addBursts(burst - c.goalBurst)
			c.goalBurst = burst
		}
	}
	base, rise := b.needs(cover)
	a := &ask{book: b, hits: b.hits, back: b.takeBack(now)}
	owe := b.debt
	for _, ct := range b.counters { // what a broken stream was assigned is charged, and may be in the debt
		owe = min(owe, ct.spare)
	}
	a.n = int64(min(math.Ceil(max(0, base+rise-b.ahead)+owe-littleHit), b.capacity()))
	if b.isFailing { // also if nothing is to be assigned, to see whether the store answers
		a.n = max(a.n, 1)
	}
	return a
}

// needs returns the hits that ahead must have for a time: for what is in force and stays, and for what is to rise.
func (b *book) needs(long time.Duration) (base, rise float64) {
	for _, c := range b.clients {
		if !c.moves {
			base += c.rate * long.Seconds()
			continue
		}
		base += min(c.rate, c.goalRate)*long.Seconds() + max(0, c.rate-c.goalRate)*delivery.Seconds()
		rise += max(0, c.goalRate-c.rate)*long.Seconds() + max(0, c.goalBurst-c.burst)
	}
	return base, rise
}

// addBursts counts bursts that were planned.
func (b *book) addBursts(n float64) {
	for _, ct := range b.counters {
		ct.bursts += n
	}
}

// burstRoom returns by how much the clients' bursts may rise.
func (b *book) burstRoom() float64 {
	room := math.Inf(1)
	for _, ct := range b.counters {
		room = min(room, float64(ct.policy.Capacity())/burstPart-ct.bursts)
	}
	return max(0, room)
}

// settle assigns what the charged hits suffice for. The step was planned at a time before now.
func (k *Keeper) settle(a *ask, planned, now time.Duration) {
	b := a.book
	b.account(now)
	k.stats.Refunded += uint64(a.back) //nolint:gosec // not below 0
	k.stats.Charged += uint64(a.got)   //nolint:gosec // not below 0
	b.ahead += float64(a.got)
	long := max(cover-(now-planned), 2*delivery)
	base, rise := b.needs(long)
	switch {
	case a.failure != nil: // what passes then is not charged, also later
		k.stats.Failures++
		if b.isFailing, b.debt = true, 0; !b.isSilent {
			k.assignAll(b, rise, rise, 1, planned, now)
		}
		return
	case a.first != nil:
		b.isFailing = false
		for i, ct := range b.counters {
			ct.learn(&a.last[i], a.got, !a.first[i].Allowed && a.got < max(1, a.n-1), now)
		}
	}
	paid := max(0, min(b.debt, b.ahead-base-rise))
	b.ahead -= paid
	b.debt -= paid
	if pot := b.ahead - base; pot >= -littleHit {
		k.assignAll(b, max(0, pot), rise, 1, planned, now)
		return
	}
	k.assignAll(b, 0, rise, b.scale(long), planned, now)
}

// scale returns to what part the rates in force must sink, so that the charged hits suffice: until lower ones arrive,
// they go on. Those of broken streams cannot sink.
func (b *book) scale(long time.Duration) float64 {
	room, scaled, tolerated := b.ahead, 0., 0.
	for _, c := range b.clients {
		room -= c.rate * delivery.Seconds()
		tolerated += c.rate * (aheadOf / 2).Seconds()
		switch {
		case !c.isListening():
			room -= c.rate * (long - delivery).Seconds()
		case c.moves:
			scaled += min(c.rate, c.goalRate) * (long - delivery).Seconds()
		default:
			scaled += c.rate * (long - delivery).Seconds()
		}
	}
	if room+tolerated >= scaled {
		return 1
	}
	return max(0, room) / scaled
}

// assignAll assigns the goals: they rise by as much as pot suffices for, where rise would suffice for all, and all
// rates sink to the part scale.
func (k *Keeper) assignAll(b *book, pot, rise, scale float64, planned, now time.Duration) {
	for _, c := range b.clients { // the first tokens come first
		if c.moves && !c.hasBucket() && c.goalBurst >= 1 {
			rise--
			if pot >= 1-littleHit {
				pot--
			} else {
				c.goalBurst = 0
			}
		}
	}
	part := 1.
	if pot = max(0, pot); rise > pot {
		part = pot / rise
	}
	for _, c := range b.clients {
		rate, burst := c.rate, c.burst
		toward := func(goal, from float64) float64 { return min(from, goal) + max(0, goal-from)*part }
		switch isNew := !c.hasBucket(); {
		case !c.isListening(), !c.moves && isNew:
			continue
		case isNew && c.goalBurst < 1, b.isFailing && b.allows == 0:
			if k.deny(c, now); c.goalRate > 0 {
				k.stats.Shortages++
			}
			continue
		case c.moves:
			rate, burst = toward(c.goalRate, c.rate), toward(c.goalBurst, max(1, c.burst))
		}
		if c.isLow = scale < 1 || c.isLow && rate < c.goalRate*.99; scale < 1 {
			k.stats.Shortages++
		}
		k.assign(c, rate*scale, burst, planned, now)
	}
}

// deny makes an Envoy deny all requests of a bucket: its first token is not there, or its limit denies while the store
// fails. If it goes on with what a broken stream was assigned, that is charged, and better.
func (k *Keeper) deny(c *client, now time.Duration) {
	c.isLow = true
	goesOn := c.isResumed && c.expires == 0 && slices.ContainsFunc(c.book.clients, (*client).isBroken)
	if (c.reply || c.hasBucket()) && !goesOn && k.send(c, Assignment{Strategy: DenyAll}, now) {
		c.rate, c.burst = 0, 0
	}
}

// assign sends a rate and a burst, unless the Envoy has them and did not report. Both are charged.
func (k *Keeper) assign(c *client, rate, burst float64, planned, now time.Duration) {
	next := c.assigned
	if rate, burst = max(rate, slowest), math.Floor(burst); !c.hasBucket() || rate != c.rate || burst != c.burst {
		next = roundDown(rate, burst, c.assigned)
	}
	next.ID, next.TTL = c.assigned.ID, c.assigned.TTL
	if next == c.assigned && !c.reply {
		return
	}
	isPush := !c.reply
	if !k.send(c, next, now) {
		return
	}
	if isPush {
		c.stream.pushed = planned
	}
	b := c.book
	charge := max(0, float64(next.MaxTokens)-c.burst)
	if slower := c.rate - next.rate(); slower > 0 {
		if now >= c.wasUntil {
			c.was = 0
		}
		c.was, c.wasUntil = max(c.was, c.rate), now+certain
		charge += slower * delivery.Seconds()
	}
	c.rate, c.burst = next.rate(), float64(next.MaxTokens)
	c.could += charge
	b.ahead -= charge
}

// capacity returns the most hits that can be charged at once.
func (b *book) capacity() float64 {
	least := int64(limiter.MaxHits)
	for i := range b.hits {
		least = min(least, b.hits[i].Policy.Core().Largest)
	}
	return float64(least)
}

// refund returns hits to the windows that the client did not use, as far as they were charged in these windows and
// still count. since is the time since the last report.
func (b *book) refund(c *client, n float64, since time.Duration) {
	canReturn := !slices.ContainsFunc(b.hits, func(h limiter.Hit) bool {
		return !isWindow(h.Policy) || !h.Policy.Core().Is(step.InWindows) && h.Policy.Window() < 2*since
	})
	if n > 0 && canReturn && !b.isFailing && c.window == b.window() {
		b.back += n
	}
}

// takeBack returns how many hits to return to the windows now.
func (b *book) takeBack(now time.Duration) (n int64) {
	for _, ct := range b.counters {
		if ct.ends > 0 && now+windowMargin > ct.ends {
			b.back = 0
		}
	}
	n = wholeHits(b.back)
	b.back -= float64(n)
	return n
}

// window returns the number of the fixed windows that the counters are in. It rises as soon as one of them has ended.
func (b *book) window() (n int) {
	for _, ct := range b.counters {
		n += ct.window
	}
	return n
}
