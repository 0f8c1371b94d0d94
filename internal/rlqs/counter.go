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

// Parameters of the division of a counter's limit.
const (
	// While no charge is denied, clients get in sum at most slackOf times their demand plus 1/slackPart of the limit, or
	// 1/halfPart of the limit if that is more. A reserve lets requests move to another Envoy, but wastes unused charges.
	slackOf, slackPart, halfPart = 3, 10, 2
	// While the counter is exhausted, a process charges probeOf times the hits of the last second plus 1/probePart of the
	// limit, to test whether there are more.
	probeOf, probePart = 1.05, 50
	// contended is the time after a denial in which a counter counts as exhausted.
	contended = time.Second
	// 1/leavePart of the remaining hits of a window are assigned for the time between two reports.
	leavePart = 4
)

// counter is the counter of one limit, with this process's use of it. Keeper.mu protects it.
type counter struct {
	key    string
	policy *limiter.Policy
	route  any // route of the counter's hits
	books  []*book

	sustained float64 // hits per second that can be charged indefinitely

	room     float64       // estimated available hits per second; infinite while no charge is denied
	granted  float64       // hits per second that the store granted recently
	began    time.Duration // when measuring granted began
	lastAt   time.Duration // when granted was updated
	deniedAt time.Duration

	remaining int64         // remaining hits after the last charge
	ends      time.Duration // known end of the fixed window of the last charge, or 0
	window    int           // number of that window

	n      int     // number of clients in this step
	bursts float64 // sum of the clients' bursts in this step
	spare  float64 // hits per second that broken streams leave

	demand demand // demand of all Keepers
}

// limit sets the counter's policy, which may have changed with the rules.
func (ct *counter) limit(h *limiter.Hit) {
	if ct.policy == nil || limit.Identity(ct.policy) != limit.Identity(h.Policy) {
		ct.room, ct.remaining, ct.ends = math.Inf(1), h.Policy.Limit(), 0
		ct.nextWindow()
	}
	ct.policy, ct.sustained, ct.route = h.Policy, sustained(h.Policy), h.Route
}

// sustained returns the hits per second that can be charged to a limit indefinitely, one tick early.
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

// clients returns the clients of all books that are charged to the counter.
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

// open resets the counter if its fixed window has ended.
func (ct *counter) open(now time.Duration) {
	if ct.ends == 0 || now < ct.ends {
		return
	}
	ct.ends, ct.remaining = 0, ct.policy.Limit()
	ct.nextWindow()
	ct.room, ct.deniedAt = math.Inf(1), now-contended
}

// nextWindow begins the next window. Hits that were charged before are no longer refunded.
func (ct *counter) nextWindow() {
	ct.window++
	for _, b := range ct.books {
		b.back = 0
	}
}

// learn records the store's response to a charge: the granted hits, and whether this counter was the reason for
// granting fewer than requested.
func (ct *counter) learn(d *limiter.Decision, got int64, isShort bool, now time.Duration) {
	over := max(contended.Seconds(), 3/ct.sustained) // the time of some hits of a slow limit
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

// sees records the end of a fixed window from a response. Responses arrive late, so the earliest end is the most exact.
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

// most returns the maximum hits per second of the limit; for a window, at least a part of the remaining hits.
func (ct *counter) most() float64 {
	if isWindow(ct.policy) {
		return max(ct.sustained, float64(ct.remaining)/leavePart/interval.Seconds())
	}
	return ct.sustained
}

// divisible returns the hits per second to divide among clients with this demand.
func (ct *counter) divisible(wanted float64, now time.Duration) float64 {
	most := ct.most()
	fair := ct.fair(most)
	if now-ct.deniedAt < contended {
		return min(ct.room, fair, wanted*probeOf+most/probePart)
	}
	ct.room = math.Inf(1)
	return min(fair, max(wanted*slackOf+most/slackPart, ct.sustained/halfPart))
}

// newcomersWant returns the assumed demand of a client whose demand is unknown: an equal part of the limit, or of half
// of it if there are other clients.
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

// claim returns the clients' demand relative to the limit's rate. A client's demand counts up to the limit's maximum.
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

// divide sets each client's share to the least of its shares of its counters. Counters with the fewest clients come
// first, because hits that a client cannot use due to an earlier counter go to other clients.
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

// divide sets the shares of the counter's clients. It reuses the memory of wants.
func (ct *counter) divide(wants []float64, now time.Duration) []float64 {
	newcomers, wanted, unpaid, broken := ct.newcomersWant(), 0., 0., 0.
	for _, b := range ct.books {
		if now-ct.deniedAt < contended { // else the debt is charged with the next tick
			unpaid += b.debt
		}
		for _, c := range b.clients {
			want := min(c.want, c.share)
			if c.isNew {
				want = min(newcomers, c.share)
			}
			if c.isBroken() { // the client keeps its rate
				broken += c.rate
				want = 0
			}
			wanted += want
			wants = append(wants, want)
		}
	}
	total := max(0, ct.divisible(wanted+unpaid+broken, now)-broken)
	ct.spare = max(0, ct.most()-broken)
	total -= min(unpaid, total/2) // the debt is paid within some seconds
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
