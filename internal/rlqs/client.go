package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Intervals of reports and assignments.
const (
	interval    = 5 * time.Second // time between two reports of an Envoy
	minMeasured = time.Second     // minimum time between two reports for measuring a rate
	idleReports = 3               // number of reports without requests after which a bucket is abandoned
	// pushEvery is the minimum time between two responses without a report in between; a response that lowers shares
	// because a counter is exhausted need not wait. After it, recoverEvery applies until the shares have recovered.
	pushEvery, recoverEvery = time.Second, 2 * tick
	// certain is the time after which a message has arrived unless its stream broke.
	certain = time.Second
)

// client is a bucket of a stream. Keeper.mu protects it.
type client struct {
	stream *Stream
	id     BucketID

	isNew     bool // whether the client's demand is unknown
	isResumed bool // whether the bucket comes from another stream, where its first report was charged
	reply     bool // whether the bucket was reported since the last assignment

	// Without a book, the client gets the strategy in fixed, and is not charged.
	target Target
	book   *book
	fixed  Strategy

	// Its reports.
	lastCount     float64 // number of requests in the last report
	want          float64 // requests per second
	reports, idle int     // idle is the number of consecutive reports without a request
	reported      time.Duration

	// Its last known assignment.
	assigned    Assignment
	expires     time.Duration
	rate, burst float64       // rate and burst of a token bucket
	was         float64       // rate before it was lowered
	wasUntil    time.Duration // time until which the field was may still apply if the stream breaks
	isLow       bool          // whether the rate was lowered because a counter had too little

	// could is the number of unreported requests that the client may have admitted by the time at.
	at     time.Duration
	could  float64
	window int // the book's window at the last report

	share, burstShare   float64  // results of divide
	limitedBy           *counter // the counter with the smallest share
	moves               bool     // whether goalRate and goalBurst are assigned in this step
	goalRate, goalBurst float64
}

// report records a report of an Envoy.
func (c *client) report(u *Usage, now time.Duration) {
	since := now - c.reported // Envoy's time_elapsed is truncated to whole seconds
	if c.reports == 0 {
		since = u.Elapsed
	}
	seconds := max(since, minMeasured).Seconds()
	c.lastCount = u.count()
	if c.reports > 0 || since > 0 { // rises at once, falls at most to a quarter
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

// settleReport compares the admitted requests with the charged hits. The Envoy can still use unused hits in its bucket,
// and unused hits that accrue during the report's delivery.
func (c *client) settleReport(allowed float64, since, now time.Duration) {
	b := c.book
	b.account(now)
	left := c.could - allowed
	if left < 0 {
		if !b.isFailing && (!c.isResumed || c.reports != 1) {
			c.stream.keeper.stats.Uncharged += uint64(-left)
			b.debt = min(b.debt-left, b.capacity())
		}
		left = 0
	}
	c.could = min(left, c.burst+c.rate*tick.Seconds())
	b.refund(c, left-c.could, since)
	c.window = b.window()
}

// isBroken reports whether the client's stream has ended, so that no response can be sent.
func (c *client) isBroken() bool { return c.stream.closed }

// hasBucket reports whether the Envoy has a token bucket.
func (c *client) hasBucket() bool { return c.assigned.Strategy == TokenBucket }

// isListening reports whether to send assignments: the stream is open, and the Envoy has not been silent too long.
func (c *client) isListening() bool { return !c.isBroken() && (c.expires > 0 || c.reply) }

// end ends the last assignment.
func (c *client) end() {
	c.assigned, c.expires, c.rate, c.burst = Assignment{}, 0, 0, 0
	if !c.reply { // the Envoy is silent
		c.want, c.isNew = 0, false
	}
}

// mayMove reports whether to assign the client's share now: the share differs enough, and the last response to the
// stream is old enough.
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

// burstGoal returns the client's burst according to its share.
func (c *client) burstGoal() float64 { return max(1, math.Floor(c.burstShare)) }

// wholeHits rounds down to a number of hits that a store accepts.
func wholeHits(v float64) int64 { return int64(min(v, limiter.MaxHits/2)) }

// send adds an assignment to the next response of the client's stream. The assignment's lifetime begins with the last
// report, so that an Envoy that stops reporting is not charged forever. send returns false if that lifetime is over.
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
