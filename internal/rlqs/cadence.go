package rlqs

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Times of a Keeper.
const (
	tick      = 100 * time.Millisecond // how often it charges ahead
	shortTick = tick / 2               // for limits that do not admit at once what four ticks need
	// callMargin is how long a charge may take to be counted.
	callMargin = 10 * time.Millisecond
	// shortWindow is a time in which hits are charged so seldom that it matters when.
	shortWindow = 40 * tick
)

// cadence is when a group charges what it charges ahead.
//
// In windows that slide, hits that are charged before they are used count too early, and for longer than the window. A
// window of a second, charged at once for 100 ms, would have 1,100 ms of hits.
type cadence struct {
	long time.Duration // between two charges
	// segment is that of a sliding window; 0: there is none. The last charge of each segment comes just before it ends:
	// by then the segment that leaves the window counts nearly nothing. phase is a moment at which one ends, by the
	// store's clock.
	segment, phase time.Duration
}

// cadenceOf returns when to charge hits together.
func cadenceOf(hits []limiter.Hit) cadence {
	c := cadence{long: tick}
	for i := range hits {
		p := hits[i].Policy
		if float64(p.Capacity()) < rateOf(p)*(4*tick).Seconds() {
			c.long = shortTick
		}
	}
	for i := range hits {
		p := hits[i].Policy
		if p.Window() >= shortWindow {
			continue
		}
		switch p.Algorithm() {
		case limiter.SlidingWindow:
			return cadence{long: segmentTick(p), segment: segmentOf(p)}
		case limiter.SlidingLog:
			return cadence{long: logTick(p.Window())}
		default:
		}
	}
	return c
}

// segmentTick returns a time that a segment is a multiple of, or that is a multiple of a segment.
func segmentTick(p *limiter.Policy) time.Duration {
	segment := segmentOf(p)
	if segment < shortTick {
		return segment * (shortTick / segment) //nolint:durationcheck // a count of segments
	}
	return segment / (segment / shortTick)
}

func segmentOf(p *limiter.Policy) time.Duration {
	return p.Window() / time.Duration(p.Params().Segments)
}

// logTick returns a time between two charges that does not divide the window: the charge before the window would else
// leave it when the next one comes, sooner or later.
func logTick(window time.Duration) time.Duration {
	n := chargesIn(window, tick)
	return (window + callMargin + n - 1) / n // rounded up, else there would be one more
}

// chargesIn is the most charges that are in a window at once.
func chargesIn(window, long time.Duration) time.Duration {
	return (window + callMargin + long - 1) / long
}

// next returns the moment of the next charge after now.
func (c *cadence) next(now time.Duration) time.Duration {
	if c.segment == 0 {
		return now.Truncate(c.long) + c.long
	}
	unit := min(c.long, c.segment)
	next := now + c.long
	if next -= (next + callMargin - c.phase) % unit; next < now+unit/4 {
		next += unit
	}
	return next
}

// learn takes the answer to a charge that was sent at a moment: of a sliding window it says when a segment ends. What
// the charge took to the store makes that early by as much, as the next charges have to be.
func (c *cadence) learn(p *limiter.Policy, d *limiter.Decision, sent time.Duration) {
	if d.ResetAfter > 0 && p.Algorithm() == limiter.SlidingWindow && segmentOf(p) == c.segment {
		c.phase = (sent + d.ResetAfter) % c.segment
	}
}

// sustained is how many hits a second can be charged to the limit for ever.
func (c *cadence) sustained(p *limiter.Policy) float64 {
	early := c.long
	if c.segment > 0 {
		early = callMargin
	}
	limit, window := float64(p.Limit()), p.Window()
	switch p.Algorithm() {
	case limiter.SlidingWindow:
		in := p.Params()
		segment := segmentOf(p)
		if in.Oldest == limiter.OldestFull {
			window += segment
		}
		rate := limit / (window + early).Seconds()
		if in.SegmentCap > 0 {
			rate = min(rate, float64(in.SegmentCap)/(segment+early).Seconds())
		}
		return rate
	case limiter.SlidingLog:
		return limit / (float64(chargesIn(window, c.long)) * c.long.Seconds())
	default:
		return limit / window.Seconds()
	}
}
