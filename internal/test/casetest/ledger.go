package casetest

import (
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Ledger remembers the requests of one key that a limit with a reservation admitted. It checks the bound of
// reservations from nothing but times and costs.
type Ledger struct {
	policies []*limiter.Policy
	requests []*Request
	lost     []int64
}

// Request is an admitted request. Times are in microseconds.
type Request struct {
	At, Charged, Real int64
	Gone              int64   // TakenAt of the decision
	ends              []int64 // times of its end, more than one if it was sent twice
}

// NewLedger returns a Ledger of a key that has never been hit.
func NewLedger(p *limiter.Policy) *Ledger { return &Ledger{policies: []*limiter.Policy{p}} }

// Start notes an admitted request in the order of time.
func (l *Ledger) Start(at, charged, spent, gone int64) *Request {
	r := &Request{At: at, Charged: charged, Real: spent, Gone: gone}
	l.requests = append(l.requests, r)
	return r
}

// End notes the end of a request.
func (l *Ledger) End(r *Request, at int64) { r.ends = append(r.ends, at) }

// Lose notes that the key's state was lost.
func (l *Ledger) Lose(at int64) { l.lost = append(l.lost, at) }

// Edit notes a changed rule of the same counter.
func (l *Ledger) Edit(at int64, p *limiter.Policy) {
	l.Lose(at)
	l.policies = append(l.policies, p)
}

// over returns how much more than its cost the request was charged.
func (r *Request) over() int64 { return max(0, r.Charged-r.Real) }

// Check returns an error if requests that started in any span of time cost more than the limit admits in it, plus what
// they cost above their charges, plus the slack: what ends refunded of other requests' charges, because their own
// charge was lost or they were sent twice; for buckets, also the overcharges in flight, since a leak has no owner.
func (l *Ledger) Check() error {
	leaks := int64(0)
	if l.policies[0].Core().Is(step.IsRate) {
		leaks = l.mostInFlight()
	}
	for i, first := range l.requests {
		var spent, above int64
		for _, last := range l.requests[i:] {
			spent += last.Real
			above += max(0, last.Real-last.Charged)
			most := l.admits(first.At, last.At) + above + l.foreign(first.At, last.At) + leaks
			if spent > most {
				return fmt.Errorf("requests from %d to %d cost %d, at most %d may", first.At, last.At, spent, most)
			}
		}
	}
	return nil
}

// admits returns the hits that the limit admits from one time to another. A lost state admits its capacity again.
func (l *Ledger) admits(from, to int64) (most int64) {
	for _, p := range l.policies {
		window, span := p.Window().Microseconds(), to-from
		var hits int64
		again := p.Capacity()
		switch p.Algorithm() {
		case limiter.FixedWindow:
			windows := to/window - from/window + 1
			if p.Params().Align != limiter.AlignEpoch {
				windows = span/window + 2
			}
			hits = windows * p.Limit()
		case limiter.SlidingWindow, limiter.SlidingLog:
			hits, again = (span/window+1)*(p.Limit()+p.Core().Extra), p.Limit()
		default: // a funnel or token bucket, with ticks of up to a second
			ticks := time.Duration(p.Core().Args()[1]) * time.Microsecond
			hits = p.Capacity() + int64(float64(span+ticks.Microseconds())*float64(p.Limit())/float64(window)+0.001)
		}
		most = max(most, hits+again*count(l.lost, from, to))
	}
	return most
}

// foreign returns what ends from one time to another may have refunded of other requests' charges.
func (l *Ledger) foreign(from, to int64) (hits int64) {
	for _, r := range l.requests {
		for i, at := range r.ends {
			if from <= at && at <= to && (i > 0 || count(l.lost, r.At, at) > 0) {
				hits += r.over()
			}
		}
	}
	return hits
}

// mostInFlight returns the largest sum of the overcharges of several requests in flight at once that give them back.
func (l *Ledger) mostInFlight() (most int64) {
	for _, begins := range l.requests {
		sum, several := int64(0), -1
		for _, r := range l.requests {
			if r.over() > 0 && len(r.ends) > 0 && r.At <= begins.At && begins.At <= r.ends[0] {
				sum += r.over()
				several++
			}
		}
		if several > 0 {
			most = max(most, sum)
		}
	}
	return most
}

// count returns how many of the times are in the span.
func count(times []int64, from, to int64) (n int64) {
	for _, at := range times {
		if from <= at && at <= to {
			n++
		}
	}
	return n
}
