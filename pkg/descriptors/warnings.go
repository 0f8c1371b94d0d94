package descriptors

import (
	"math"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// warnUnreachable warns, when the second of the two is placed, of a rule for a key alone beside a pattern that matches
// every value. (A pattern below such a pattern is an error.)
func (c *compiler) warnUnreachable(b *Branch, d *descriptor) {
	alone := d.value == "" && d.match.form == noForm
	everything := d.value != "" && strings.Trim(d.value, "*") == ""
	if b.any == nil || b.order == 0 || !alone && !everything {
		return
	}
	all := b.every
	switch {
	case all == nil:
	case alone:
		c.warn(WarnUnreachable, d.at, "%s is never reached: value %s at %s matches every value; remove one of the two",
			b.any.rule.Path, all.text, all.to.rule.Source)
	case b.any.rule != nil:
		c.warn(WarnUnreachable, d.valueAt, "value %s matches every value, so that %s at %s is never reached; remove one of the two",
			d.value, b.any.rule.Path, b.any.rule.Source)
	}
}

// warnOf warns of one limit that is likely to do something else than was meant.
func (r *reader) warnOf(l *rateLimit) {
	p := &l.params
	interval := p.Window / time.Duration(max(p.Limit, 1))
	switch p.Algorithm {
	case limiter.Funnel, limiter.TokenBucket:
		if p.Burst == 1 && p.Limit > 1 && interval < time.Second && p.Refill == limiter.RefillGreedy {
			r.warn(WarnBurst, l.place("burst"), "burst: 1 denies every request that comes within %s of another one, and all that cost more "+
				"than 1 hit; write how many may come at once, or leave it out for %d", FormatDuration(interval), p.Limit)
		}
	case limiter.SmoothBursty:
		if l.has("burst_seconds") && p.Limit > 0 && p.BurstFor < interval && p.MaxWait < interval {
			r.warn(WarnBurst, l.place("burst_seconds"), "in this time less than one request is saved up, so that each that comes within %s of "+
				"another one is denied; write at least %g", FormatDuration(interval), interval.Seconds())
		}
	case limiter.LeakyQueue:
		r.warnShortQueue(l)
	case limiter.SlidingLog, limiter.Concurrency:
		const perEntry = 32 // bytes in memory, at most
		if p.Limit > limiter.MaxLogEntries {
			r.warn(WarnHugeLog, l.place("max_log_entries"), "each counter of this limit can take %.1f MB, and each request looks through it; "+
				"use sliding_window, which takes a few hundred bytes", float64(p.Limit*perEntry)/1e6)
		}
	default:
	}
}

// warnShortQueue warns of a max_wait that nobody reaches, since no more than burst requests wait.
func (r *reader) warnShortQueue(l *rateLimit) {
	p := &l.params
	places := l.shared.Capacity()
	leaks := time.Duration(float64(places) / float64(max(p.Limit, 1)) * float64(p.Window)).Round(time.Millisecond)
	if p.Limit == 0 || p.MaxWait <= leaks {
		return
	}
	reaches := int64(math.Ceil(float64(p.MaxWait) / float64(p.Window) * float64(p.Limit)))
	r.warn(WarnShortQueue, l.place("max_wait"), "nobody waits for %s: no more than burst requests wait, %d, and these are gone after %s; "+
		"write burst: %d, or a max_wait of at most %s", FormatDuration(p.MaxWait), places, FormatDuration(leaks), reaches, FormatDuration(leaks))
}

// DefaultMaxCounters is the most limits that a request may ask where --max-counters says nothing else: so many take Redis
// about 5 ms, in which it does nothing else, of the 15 ms that the store has by default.
const DefaultMaxCounters = 1024

// warnManyLimits warns of a rule that no request may ask by default.
func (r *reader) warnManyLimits(all []*rateLimit) {
	if len(all) > DefaultMaxCounters {
		r.warn(WarnManyLimits, all[DefaultMaxCounters].at, "this rule has %d limits, and a request that asks more than --max-counters (%d) is "+
			"refused, which Envoy lets pass by default; remove limits, or raise --max-counters", len(all), DefaultMaxCounters)
	}
}

// warnRedundant warns of limits of one rule that never deny, since another one, which counts the same hits over the same time,
// does so first.
func (r *reader) warnRedundant(all []*rateLimit) {
	tightest := map[limiter.Params]*rateLimit{} // by what else they are
	capacity := func(p *limiter.Params) int64 {
		if p.Burst != 0 {
			return p.Burst
		}
		return p.Limit
	}
	for _, l := range all {
		if l.bad || l.unlimited {
			continue
		}
		of := l.params
		of.Limit, of.Burst, of.MaxLogEntries = 0, 0, 0
		first := tightest[of]
		if first == nil {
			tightest[of] = l
			continue
		}
		loose, tight := first, l
		if first.params.Limit <= l.params.Limit {
			loose, tight = l, first
		}
		if tight.params.Limit == loose.params.Limit || capacity(&tight.params) > capacity(&loose.params) {
			continue // the same limit is an error
		}
		tightest[of] = tight
		r.warn(WarnRedundant, loose.at, "this limit never denies, since the one at %s, of %d and not %d in the same time, does so first; "+
			"remove one of the two, or give one another window", tight.at, tight.params.Limit, loose.params.Limit)
	}
}
