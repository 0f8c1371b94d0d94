package rlqs

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// How a counter's limit is divided.
const (
	// While nothing is denied, clients are assigned at most slackOf times what they want and one part in slackPart of the
	// limit, or half of the limit if that is more: an Envoy's requests may come to another one any time, but what is
	// charged for nobody is others' loss.
	slackOf, slackPart, halfPart = 3, 10, 2
	// While the counter has not enough, a process charges a little more than it got in the last second, to see whether
	// there is more: probeOf times that, and one part in probePart of the limit.
	probeOf, probePart = 1.05, 50
	// contended is how long after a denial a counter counts as one that has not enough.
	contended = time.Second
	// leavePart is the part of what remains in a window that is assigned for the time between two reports.
	leavePart = 4
)

// counter is the counter of one limit, and what this process may charge to it. The keeper's lock guards it.
type counter struct {
	key    string
	policy *limiter.Policy
	route  any // of its hits
	books  []*book

	sustained float64 // hits a second that can be charged for ever

	room     float64       // hits a second that it is thought to have; infinite while it denies nothing
	granted  float64       // hits a second that it granted lately
	began    time.Duration // when granted began to be measured
	lastAt   time.Duration // of granted
	deniedAt time.Duration

	remaining int64         // after the last charge
	ends      time.Duration // when the fixed window that it was charged in ends, as far as is known, or 0
	window    int           // number of that fixed window

	n      int     // of clients, in the step in progress
	bursts float64 // of all clients, in the step in progress
	spare  float64 // hits a second that broken streams do not have

	demand demand // of all keepers
}

// limit sets the counter's policy, which may be another one after rules changed.
func (ct *counter) limit(h *limiter.Hit) {
	if ct.policy == nil || limit.Identity(ct.policy) != limit.Identity(h.Policy) {
		ct.room, ct.remaining, ct.ends = math.Inf(1), h.Policy.Limit(), 0
		ct.nextWindow()
	}
	ct.policy, ct.sustained, ct.route = h.Policy, sustained(h.Policy), h.Route
}

// sustained returns how many hits a second can be charged to a limit for ever, one tick early.
func sustained(p *limiter.Policy) float64 {
	limit, window, in := float64(p.Limit()), p.Window(), p.Params()
	switch p.Algorithm() {
	case limiter.SlidingWindow:
		segment := window / time.Duration(in.Segments)
		if in.Oldest == limiter.OldestFull {
			window += segment
		}
		rate := limit / (window + tick).Seconds()
		if in.SegmentCap > 0 {
			rate = min(rate, float64(in.SegmentCap)/(segment+tick).Seconds())
		}
		return rate
	case limiter.SlidingLog:
		return limit / (window + tick).Seconds()
	default:
		return limit / window.Seconds()
	}
}

// clients are those of all books that are charged to the counter.
func (ct *counter) clients() iter.Seq[*client] {
	return func(yield func(*client) bool) {
		for _, b := range ct.books {
			for _, c := range b.clients {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// open makes the counter begin again where its fixed window has ended.
func (ct *counter) open(now time.Duration) {
	if ct.ends == 0 || now < ct.ends {
		return
	}
	ct.ends, ct.remaining = 0, ct.policy.Limit()
	ct.nextWindow()
	ct.room, ct.deniedAt = math.Inf(1), now-contended
}

// nextWindow begins another window: no hits are refunded that were charged before.
func (ct *counter) nextWindow() {
	ct.window++
	for _, b := range ct.books {
		b.back = 0
	}
}

// learn takes what the store answered to a charge: how many hits it granted, and whether that was less than asked for
// because of this counter.
func (ct *counter) learn(d *limiter.Decision, got int64, isShort bool, now time.Duration) {
	over := max(contended.Seconds(), 3/ct.sustained) // some hits, of a slow limit
	ct.granted *= math.Exp(-(now - ct.lastAt).Seconds() / over)
	ct.granted += float64(got) / over
	ct.lastAt = now
	ct.remaining = d.Remaining
	if ct.policy.Core().Is(step.InWindows) && d.ResetAfter > 0 {
		ct.sees(now + d.ResetAfter)
	}
	if !isShort {
		return
	}
	ct.deniedAt = now
	age := max(now-ct.began, tick)
	lately := ct.granted / -math.Expm1(-age.Seconds()/over)
	ct.room = lately*probeOf + ct.most()/probePart
}

// sees takes the end of a fixed window as an answer of the store has it, which is late by the time that the answer
// took: of one window the earliest end is the best.
func (ct *counter) sees(ends time.Duration) {
	switch half := ct.policy.Window() / 2; {
	case ct.ends == 0:
		ct.ends = ends
	case ends > ct.ends+half || ends < ct.ends-half:
		ct.ends = ends
		ct.nextWindow()
	default:
		ct.ends = min(ct.ends, ends)
	}
}

// most returns how many hits a second the limit gives at most: of a window, a part of what remains.
func (ct *counter) most() float64 {
	if isWindow(ct.policy) {
		return max(ct.sustained, float64(ct.remaining)/leavePart/interval.Seconds())
	}
	return ct.sustained
}

// divisible returns how many hits a second are divided, of clients that want that many.
func (ct *counter) divisible(wanted float64, now time.Duration) float64 {
	most := ct.most()
	fair := ct.fair(most)
	if now-ct.deniedAt < contended {
		return min(ct.room, fair, wanted*probeOf+most/probePart)
	}
	ct.room = math.Inf(1)
	return min(fair, max(wanted*slackOf+most/slackPart, ct.sustained/halfPart))
}

// newcomersWant returns what a client is taken to want whose demand is not known: an equal part of the limit, or of
// half of it if there are others.
func (ct *counter) newcomersWant() float64 {
	newcomers, others := 0., 1.
	for c := range ct.clients() {
		switch {
		case c.isNew:
			newcomers++
		case c.want > 0:
			others = 2
		}
	}
	return ct.most() / max(newcomers, 1) / others
}

// claim returns what the counter's clients want, none more than the limit gives at most, as a part of its rate.
func (ct *counter) claim() float64 {
	most, newcomers, wanted := ct.most(), ct.newcomersWant(), 0.
	for c := range ct.clients() {
		if c.isNew {
			wanted += newcomers
		} else {
			wanted += min(c.want, most)
		}
	}
	return leastClaim + wanted/rateOf(ct.policy)
}

// divide gives each client its share of each of its counters. A client has the least of its shares; what it cannot use
// of a later counter because of an earlier one goes to others, so those with the fewest clients come first.
func (k *Keeper) divide(now time.Duration) {
	all := slices.Collect(maps.Values(k.counters))
	for _, ct := range all {
		ct.open(now)
		ct.n, ct.bursts = 0, 0
		for c := range ct.clients() {
			c.share, c.burstShare = math.Inf(1), math.Inf(1)
			ct.bursts += c.burst
			ct.n++
		}
	}
	slices.SortFunc(all, func(a, b *counter) int { return cmp.Compare(a.n, b.n) })
	var wants []float64
	for _, ct := range all {
		wants = ct.divide(wants[:0], now)
	}
}

// divide gives the counter's clients their shares. It uses the memory of wants.
func (ct *counter) divide(wants []float64, now time.Duration) []float64 {
	newcomers, wanted, unpaid, broken := ct.newcomersWant(), 0., 0., 0.
	for _, b := range ct.books {
		if now-ct.deniedAt < contended { // else it is charged with the next tick
			unpaid += b.debt
		}
		for _, c := range b.clients {
			want := min(c.want, c.share)
			if c.isNew {
				want = min(newcomers, c.share)
			}
			if c.isBroken() { // it keeps what it has
				broken += c.rate
				want = 0
			}
			wanted += want
			wants = append(wants, want)
		}
	}
	total := max(0, ct.divisible(wanted+unpaid+broken, now)-broken)
	ct.spare = max(0, ct.most()-broken)
	total -= min(unpaid, total/2) // is paid in some seconds
	shares := divide(wants, total)
	i := 0
	for c := range ct.clients() {
		s := shares[i]
		if i++; s < c.share {
			c.limitedBy, c.share = ct, s
		}
		c.burstShare = min(c.burstShare, s, float64(ct.policy.Capacity())/burstPart*s/max(total, s, 1e-9))
	}
	return wants
}

func isWindow(p *limiter.Policy) bool {
	a := p.Algorithm()
	return a == limiter.FixedWindow || a == limiter.SlidingWindow || a == limiter.SlidingLog
}
