package rlqs

import (
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// What reports mean.
const (
	firstWant   = 1               // requests a second that a bucket wants before its first whole report
	minMeasured = time.Second     // a shorter time between two reports says little of a rate
	idleReports = 3               // a bucket without requests in so many is abandoned
	aheadOf     = tick / 2        // how long before it is needed a rate is charged, so that a lower one arrives in time
	delivery    = aheadOf / 2     // after which a lower rate is taken to have arrived
	longestDeny = time.Hour       // an empty window is denied for that long without a stream, at most
	interval    = 5 * time.Second // between two reports of an Envoy
	// longestEvery is the longest time between two reports that an Envoy is believed.
	longestEvery = time.Minute
	littleHit    = 1e-6        // that is not charged, as it may come of rounding
	certain      = time.Second // after which a message has arrived if its stream did not break
)

// client is a bucket of a stream: what the Envoy may let pass of it was charged before. The keeper's lock guards it.
type client struct {
	stream *Stream
	id     BucketID

	isStale  bool // its target is not known, or changed
	isUrgent bool // it waits for no tick
	isGone   bool
	reply    bool // it was reported since it was last sent an assignment

	// What it counts. Without a group nothing is charged ahead, and fixed is what it is assigned.
	group   *group
	fixed   Strategy
	refused string
	shadow  []shadowHit // charged by what was reported
	passed  int64       // requests that are to be charged to shadow

	passedBy, shadowDue time.Duration // until when all passed is to be charged, and when the next part of it is

	// What is counted of it.
	rule            *descriptors.Rule // nil: none
	enforced        []counted
	allowed, denied uint64  // reported, and not counted yet
	wasFree         bool    // the store failed when they were reported
	passRate        float64 // allowed requests a second, in the last report

	// What it wants.
	want     float64 // requests a second
	reports  int
	idle     int // reports without a request since the last one with some
	reported time.Duration
	every    time.Duration // between its last two reports

	// What it has, as far as is known.
	assigned Assignment
	isSent   bool // assigned was sent, and neither ended nor was abandoned
	expires  time.Duration
	rate     float64       // of assigned
	burst    float64       // of assigned, as far as it is charged to group
	before   float64       // rate before it was lowered, if it may not have been sent
	toldAt   time.Duration // when before is no more in force, unless the stream has broken
	pool     *pool         // of a stream that broke
	poolAt   int           // in pool

	// What was charged. All are hits.
	at       time.Duration // until when float is right
	float    float64       // charged beyond what can have passed since: the future's
	unused   float64       // charged and not reported as allowed, as far as it can still pass
	inWindow float64       // of unused, what was charged in the group's window windowOf, in one that slides lately
	windowOf int           // since the last report
	debt     float64       // passed without being charged
	unpaid   float64       // of debt, what the store had not enough for
	isFree   bool          // the store failed: what passes is not charged

	isLow            bool     // its rate was lowered because a counter had not enough, and did not rise since
	share, burstGoal float64  // what it may have
	limitedBy        *counter // that gives it the smallest share
	plan             plan     // of the step that is being done
}

// plan is what a step wants to do about a client.
type plan struct {
	rate, burst     float64 // to assign
	mayRaise        bool    // the burst, in this step
	raise           float64 // of a burst that the client already has
	keep, owe, more float64 // hits to charge: for what is in force, for debts, for what is to be assigned beyond
}

// isAssigned reports whether the last assignment may still be in force.
func (c *client) isAssigned(now time.Duration) bool { return c.isSent && now < c.lastsUntil() }

// report takes what an Envoy reports, and returns how many requests passed uncharged.
func (c *client) report(u *Usage, now time.Duration) (over uint64) {
	since := now - c.reported // Envoy's own time_elapsed is cut to whole seconds
	c.reports++
	if c.reports == 1 {
		since = u.Elapsed
	}
	if c.reports > 1 || since > 0 {
		c.every = min(since, longestEvery)
	}
	count := float64(u.Allowed) + float64(u.Denied)
	switch {
	case c.reports == 1 && since <= 0:
		c.want = firstWant
	default: // upward at once, downward to a quarter
		c.want = max(count/max(since, minMeasured).Seconds(), c.want/4)
	}
	c.idle++
	if count > 0 {
		c.idle = 0
	}
	c.passRate = float64(u.Allowed) / max(since, minMeasured).Seconds()
	c.reported, c.reply = now, true
	c.note(u)
	if len(c.shadow) > 0 || c.isStale {
		c.pass(count, since, now)
	}
	if c.group != nil {
		c.group.touch()
	}
	if c.group == nil && !c.isStale {
		return 0
	}
	return c.settleReport(u, since)
}

// settleReport compares what passed with what was charged. Of what was charged only as much can still pass as the
// Envoy's bucket holds, and what is charged ahead.
func (c *client) settleReport(u *Usage, since time.Duration) (over uint64) {
	allowed := min(float64(u.Allowed), limiter.MaxHits)
	c.unused -= allowed
	if c.isFree {
		c.unused = max(c.unused, 0)
		c.isFree = c.group != nil && c.group.isFailing
	}
	if c.unused < 0 {
		over = uint64(-c.unused)
		late := -c.unused
		c.unused = 0
		if c.group != nil {
			late = c.group.stillCounted(late, since, c.reported)
		}
		c.debt += late
		if c.group != nil {
			c.debt = min(c.debt, c.group.capacity())
		}
	}
	slides := c.group == nil || c.group.slides()
	if !slides {
		c.inWindow = max(0, c.inWindow-allowed)
	}
	if surplus := c.unused - c.burst - max(0, c.float); surplus > 0 {
		c.unused -= surplus
		if c.group != nil {
			c.refund(surplus, since)
		}
	}
	if slides {
		c.inWindow = 0
	}
	return over
}

// refund has the group return hits to its windows, as far as they were charged in these and still count. since is the
// time since the last report.
func (c *client) refund(n float64, since time.Duration) {
	g := c.group
	if !g.canRefund(since) || c.windowOf != g.window() {
		return
	}
	if n = min(n, c.inWindow); n <= 0 {
		return
	}
	if g.backOf != c.windowOf {
		g.backOf, g.back = c.windowOf, 0
	}
	g.back += n
	c.inWindow -= n
}

func clampHits(v float64) int64 {
	if v >= limiter.MaxHits/2 {
		return limiter.MaxHits / 2
	}
	return int64(v)
}

// account counts what can have passed until now.
func (c *client) account(now time.Duration) {
	until, ends := now, c.lastsUntil()
	if c.isSent {
		until = min(now, max(c.at, ends))
	}
	c.float -= c.rate * (until - c.at).Seconds()
	c.at = now
	if c.isSent && now >= ends {
		c.forgetAssignment()
	}
}

// forgetAssignment is called when the last assignment is no longer in force.
func (c *client) forgetAssignment() {
	c.isSent, c.rate, c.burst, c.assigned = false, 0, 0, Assignment{}
	c.float = min(c.float, 0)
	c.unused = max(c.float, 0)
}

// setRate is called when an assignment of that rate is sent. A lower one takes a while to arrive.
func (c *client) setRate(rate float64, now time.Duration) {
	if now >= c.toldAt {
		c.before = 0
	}
	if rate < c.rate {
		c.float -= (c.rate - rate) * delivery.Seconds()
		c.before, c.toldAt = max(c.before, c.rate), now+certain
	}
	c.rate = rate
}

// isBucket reports whether the Envoy has a token bucket.
func (c *client) isBucket() bool { return c.isSent && c.assigned.Strategy == TokenBucket }

// isBroken reports whether nothing can be sent to the client.
func (c *client) isBroken() bool { return c.stream.closed }

// isListening reports whether an assignment can be sent: the stream is open, and the Envoy has not been silent since
// the last assignment ended.
func (c *client) isListening() bool { return !c.isBroken() && (c.isSent || c.reply || c.isUrgent) }

// makePlan decides what to charge and to assign, for a group with ticks that long. The burst may rise by room.
func (c *client) makePlan(long time.Duration, room float64, now time.Duration) {
	cover := (long + aheadOf).Seconds()
	p := plan{rate: c.rate, burst: c.burst}
	isBucket := c.isBucket()
	if c.isListening() {
		goal := max(0, c.share-c.unpaid) // what does not fit at once is paid in about a second
		distance := math.Abs(goal - c.rate)
		s := c.stream
		every := pushEvery
		if c.isLow {
			every = recoverEvery
		}
		mayPush := c.isUrgent || now-s.pushed >= every || s.pushed == now
		burst := max(1, math.Floor(min(c.burstGoal, c.burst+room)))
		isOff := math.Abs(burst-c.burst) > c.burst/10
		isFar := burst < c.burst/2 || burst > c.burst*2
		switch {
		case c.reply && (distance > c.rate/100 || isOff), mayPush && (distance > c.rate/10 || isFar || !isBucket):
			p.rate, p.burst, p.mayRaise = goal, burst, true
		case isFar && burst > c.burst: // it saves for that
			p.burst = burst
		}
		if !isBucket {
			p.burst = max(1, min(c.burstGoal, room))
		}
	}
	ahead := max(c.float, 0)
	kept := min(c.rate, p.rate)*cover + max(0, c.rate-p.rate)*delivery.Seconds()
	p.keep, p.owe = max(0, kept-c.float), c.debt
	p.more = max(0, p.rate*cover-max(kept, ahead)) + max(0, p.burst-c.burst)
	if isBucket {
		p.raise = max(0, p.burst-c.burst)
	} else {
		p.more = max(0, p.rate*cover+p.burst-max(kept, ahead))
	}
	if !isBucket && p.rate == 0 {
		p.more = 0
	}
	c.plan = p
}

// charge takes what the store has charged for the client.
func (c *client) charge(n float64, window int) {
	c.unused += n
	if c.windowOf != window {
		c.windowOf, c.inWindow = window, 0
	}
	c.inWindow += n
}

// affords returns the rate and burst that what was charged suffices for, and whether they are lower for want of it.
func (c *client) affords(long time.Duration) (rate, burst float64, isShort bool) {
	cover, late := (long + aheadOf).Seconds(), (long + aheadOf/2).Seconds()
	if !c.isBucket() { // its first token comes first
		if c.plan.rate == 0 || c.float < 1-littleHit {
			return 0, 0, c.plan.rate > 0
		}
		burst = max(1, min(c.plan.burst, c.float-c.plan.rate*cover))
		rate = min(c.plan.rate, (c.float-burst)/cover)
		isShort = rate < c.plan.rate*.9
		return max(rate, slowest), burst, isShort // else it could not have that one token
	}
	higher := max(0, c.float) / cover
	lowered := max(0, c.rate-c.plan.rate) * delivery.Seconds()
	switch {
	case c.float >= c.plan.rate*late+lowered:
		rate = c.plan.rate
	case higher > c.rate*1.1:
		rate = higher
	case c.float >= c.rate*late && c.plan.rate >= c.rate:
		rate = c.rate
	default: // until a lower rate arrives, the higher one goes on
		until := delivery.Seconds()
		rate, isShort = min(c.plan.rate, c.rate, max(0, c.float-c.rate*until)/(cover-until)), true
	}
	if c.group.isSlow() && c.plan.rate > 0 { // what its bucket has would be lost without one
		rate = max(rate, min(c.rate, slowest))
	}
	burst = min(c.burst, c.plan.burst)
	if rate == c.plan.rate && c.plan.burst > c.burst && c.plan.mayRaise {
		burst = c.burst + max(0, min(c.plan.burst-c.burst, c.float-rate*cover))
	}
	return rate, max(1, burst), isShort
}
