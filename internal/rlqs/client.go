package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// What reports mean, and how often assignments are sent.
const (
	interval    = 5 * time.Second // between two reports of an Envoy
	minMeasured = time.Second     // a shorter time between two reports says little of a rate
	idleReports = 3               // a bucket without requests in so many reports is abandoned
	// pushEvery is the shortest time between two responses to a stream that are sent without a report, but for shares that
	// sink because a counter has not enough. recoverEvery is the same for shares that rise again after that.
	pushEvery, recoverEvery = time.Second, 2 * tick
	// certain is the time after which a message has arrived if its stream did not break.
	certain = time.Second
)

// client is a bucket of a stream. The keeper's lock guards it.
type client struct {
	stream *Stream
	id     BucketID

	isNew     bool // nothing is known of its demand
	isResumed bool // another stream had the bucket: what its first report says was charged there
	reply     bool // it was reported since the last assignment was sent

	// Its limits. Without a book nothing is charged, and fixed is assigned.
	target Target
	book   *book
	fixed  Strategy

	// Its reports.
	lastCount     float64 // requests of the last report
	want          float64 // requests a second
	reports, idle int     // idle: those without a request since the last one with some
	reported      time.Duration

	// Its assignment, as far as is known.
	assigned    Assignment
	expires     time.Duration
	rate, burst float64       // of a token bucket
	was         float64       // rate before it was lowered
	wasUntil    time.Duration // until then was may be in force if the stream breaks
	isLow       bool          // the rate was lowered because a counter had not enough

	// could is how many requests it may have admitted at the time at that were not reported yet.
	at     time.Duration
	could  float64
	window int // of the book, when it last reported

	share, burstShare   float64  // what division gave it
	limitedBy           *counter // that gave it the smallest share
	moves               bool     // goalRate and goalBurst are to be assigned in this step
	goalRate, goalBurst float64
}

// report takes what an Envoy reports.
func (c *client) report(u *Usage, now time.Duration) {
	since := now - c.reported // Envoy's own time_elapsed is cut to whole seconds
	if c.reports == 0 {
		since = u.Elapsed
	}
	seconds := max(since, minMeasured).Seconds()
	c.lastCount = u.count()
	if c.reports > 0 || since > 0 { // upward at once, downward to a quarter
		c.isNew, c.want = false, max(c.lastCount/seconds, c.want/4)
	}
	c.reports++
	if c.idle++; c.lastCount > 0 {
		c.idle = 0
	}
	c.reported, c.reply = now, true
	c.note(u)
	if c.book != nil {
		c.settleReport(min(float64(u.Allowed), limiter.MaxHits), since, now)
	}
}

// settleReport compares what passed with what was charged for. Of what was not used, the Envoy can still use what its
// bucket holds, and what comes while the report is on its way.
func (c *client) settleReport(allowed float64, since, now time.Duration) {
	b := c.book
	b.account(now)
	left := c.could - allowed
	if left < 0 {
		if !b.isFailing && (!c.isResumed || c.reports != 1) {
			c.stream.keeper.stats.Over += uint64(-left)
			b.debt = min(b.debt-left, b.capacity())
		}
		left = 0
	}
	c.could = min(left, c.burst+c.rate*tick.Seconds())
	b.refund(c, left-c.could, since)
	c.window = b.window()
}

// isBroken reports whether nothing can be sent to the client.
func (c *client) isBroken() bool { return c.stream.closed }

// hasBucket reports whether the Envoy has a token bucket.
func (c *client) hasBucket() bool { return c.assigned.Strategy == TokenBucket }

// isListening reports whether an assignment can be sent: the stream is open, and the Envoy was not silent since the
// last assignment ended.
func (c *client) isListening() bool { return !c.isBroken() && (c.expires > 0 || c.reply) }

// end is called when the last assignment is no longer in force.
func (c *client) end() {
	c.assigned, c.expires, c.rate, c.burst = Assignment{}, 0, 0, 0
	if !c.reply { // it is silent
		c.want, c.isNew = 0, false
	}
}

// mayMove reports whether the client's share is to be assigned now: it differs enough, and the stream was not sent
// something a moment ago.
func (c *client) mayMove(now time.Duration) bool {
	if !c.isListening() {
		return false
	}
	every := pushEvery
	if c.isLow {
		every = recoverEvery
	}
	s := c.stream
	mayPush := now-s.pushed >= every || s.pushed == now
	distance, burst := math.Abs(c.share-c.rate), c.burstGoal()
	if c.reply {
		return !c.hasBucket() || distance > c.rate/100 || math.Abs(burst-c.burst) > c.burst/10
	}
	return mayPush && (!c.hasBucket() || distance > c.rate/10 || burst < c.burst/2 || burst > c.burst*2)
}

// burstGoal returns the burst that the client is to have.
func (c *client) burstGoal() float64 { return max(1, math.Floor(c.burstShare)) }

// wholeHits rounds down to a number of hits that a store takes.
func wholeHits(v float64) int64 { return int64(min(v, limiter.MaxHits/2)) }

// send puts an assignment into the next response to the client's stream. Its lifetime counts from the last report, so
// that an Envoy that no longer reports is not charged for ever. It returns false if that has passed.
func (k *Keeper) send(c *client, a Assignment, now time.Duration) bool {
	a.ID = c.id
	if a.TTL = (c.reported + ttl - now + time.Second - 1).Truncate(time.Second); a.TTL < time.Second {
		return false
	}
	c.assigned, c.expires, c.reply = a, now+a.TTL+delivery, false
	k.stats.Sent[a.Strategy]++
	c.stream.put(a)
	return true
}
