package rlqs

import (
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// cover is the time for which rates are charged in advance: a tick plus aheadOf, so that a lower rate arrives before
	// the charged hits are used. delivery is the time after which a lowered rate is assumed to have arrived.
	cover, aheadOf, delivery = tick + aheadOf, tick / 2, tick / 4
	// All bursts of a process together are at most 1/burstPart of a limit's capacity, as its leases are.
	burstPart = 10
	// windowMargin is the time before the end of a window in which unused hits are no longer refunded. It exceeds the
	// duration of a call to the store.
	windowMargin = 20 * time.Millisecond
	littleHit    = 1e-6 // not charged, because it may be a rounding error
)

// book is the account of all clients with the same limits. Keeper.mu protects it.
//
// ahead is the number of charged hits that no client can have used yet. Time subtracts the clients' rates from it, an
// assignment subtracts a burst, a charge adds to it. While it is not negative, requests are charged before they pass.
type book struct {
	hits     []limiter.Hit // hits for the limits, with N unset
	counters []*counter    // counters of hits
	clients  []*client

	isFailing bool    // whether the store failed to decide the last charge
	allows    float64 // requests per second to admit while isFailing
	isSilent  bool    // whether to send no assignments while isFailing

	ahead float64
	debt  float64 // number of requests that passed uncharged

	urgent bool    // does not wait for the next tick
	back   float64 // hits to refund to the windows
}

// account subtracts from ahead the hits that the clients can have used until now.
func (b *book) account(now time.Duration) {
	for _, c := range b.clients {
		if b.isFailing { // hits used meanwhile must not be refunded
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

// plan sets each client's goals, and returns the necessary charge.
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
	for _, c := range b.clients { // bursts rise by the room that other clients leave
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
	for _, ct := range b.counters { // the debt may include broken streams' hits, which are charged anyway
		owe = min(owe, ct.spare)
	}
	a.n = int64(min(math.Ceil(max(0, base+rise-b.ahead)+owe-littleHit), b.capacity()))
	if b.isFailing { // even with no goal, to test whether the store works
		a.n = max(a.n, 1)
	}
	return a
}

// needs returns the hits that ahead must have for this time: base for the rates that remain, rise for higher rates.
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

// addBursts adds planned bursts to the counters.
func (b *book) addBursts(n float64) {
	for _, ct := range b.counters {
		ct.bursts += n
	}
}

// burstRoom returns the number of hits by which the clients' bursts may rise.
func (b *book) burstRoom() float64 {
	room := math.Inf(1)
	for _, ct := range b.counters {
		room = min(room, float64(ct.policy.Capacity())/burstPart-ct.bursts)
	}
	return max(0, room)
}

// settle assigns rates for which the charged hits suffice. planned is the time of plan.
func (k *Keeper) settle(a *ask, planned, now time.Duration) {
	b := a.book
	b.account(now)
	k.stats.Refunded += uint64(a.back) //nolint:gosec // not below 0
	k.stats.Charged += uint64(a.got)   //nolint:gosec // not below 0
	b.ahead += float64(a.got)
	long := max(cover-(now-planned), 2*delivery)
	base, rise := b.needs(long)
	switch {
	case a.failure != nil: // requests that pass now are never charged
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

// scale returns the factor by which to lower rates so that the charged hits suffice. Until a lower rate arrives, the
// client uses the old rate. Rates of broken streams cannot be lowered.
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

// assignAll assigns the goals. If pot is less than rise, rates rise only by the part pot/rise. scale multiplies rates.
func (k *Keeper) assignAll(b *book, pot, rise, scale float64, planned, now time.Duration) {
	for _, c := range b.clients { // first tokens have priority
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

// deny makes an Envoy deny all requests of a bucket, because the bucket's first token is missing, or its limit denies
// while the store fails. It does nothing if the Envoy can continue with the charged assignment of a broken stream.
func (k *Keeper) deny(c *client, now time.Duration) {
	c.isLow = true
	goesOn := c.isResumed && c.expires == 0 && slices.ContainsFunc(c.book.clients, (*client).isBroken)
	if (c.reply || c.hasBucket()) && !goesOn && k.send(c, Assignment{Strategy: DenyAll}, now) {
		c.rate, c.burst = 0, 0
	}
}

// assign sends a rate and a burst, which must be charged, unless the Envoy has them and has not reported.
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

// capacity returns the maximum number of hits that can be charged at once.
func (b *book) capacity() float64 {
	least := int64(limiter.MaxHits)
	for i := range b.hits {
		least = min(least, b.hits[i].Policy.Core().Largest)
	}
	return float64(least)
}

// refund refunds hits that the client did not use, if they were charged in the current windows and still count. since
// is the time since the last report.
func (b *book) refund(c *client, n float64, since time.Duration) {
	canReturn := !slices.ContainsFunc(b.hits, func(h limiter.Hit) bool {
		return !isWindow(h.Policy) || !h.Policy.Core().Is(step.InWindows) && h.Policy.Window() < 2*since
	})
	if n > 0 && canReturn && !b.isFailing && c.window == b.window() {
		b.back += n
	}
}

// takeBack returns the number of hits to refund to the windows now.
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

// window returns a number that rises when the fixed window of one of the counters ends.
func (b *book) window() (n int) {
	for _, ct := range b.counters {
		n += ct.window
	}
	return n
}
