package descriptors

import (
	"math"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// warnUnreachable warns, when the second of the two is placed, of a rule for a key alone beside a pattern that matches
// every value. (A pattern below such a pattern is an error.)
func (c *Builder) warnUnreachable(b *Branch, d *Descriptor) {
	if b.every == nil || b.any == nil {
		return
	}
	switch all := b.every; {
	case d.Value == "" && d.Match.Form == "":
		c.Warnf(WarnUnreachable, d.At, "%s is never reached: value %s at %s matches every value; remove one of the two",
			b.any.rule.Path, all.text, all.to.rule.Source)
	case d.Value != "" && strings.Trim(d.Value, "*") == "":
		c.Warnf(WarnUnreachable, d.ValueAt,
			"value %s matches every value, so that %s at %s is never reached; remove one of the two",
			d.Value, b.any.rule.Path, b.any.rule.Source)
	}
}

// warnOf warns of one limit that is likely to do something else than was meant.
func (c *Builder) warnOf(l *checked) {
	c.warnWait(l)
	c.warnSmallBurst(l)
	p := &l.params
	if p.Algorithm.Has("burst") && p.Algorithm.Has("max_wait") {
		c.warnShortQueue(l)
	}
	const perEntry = 32 // bytes in memory, at most
	if p.Algorithm.Has("max_log_entries") && p.Limit > limiter.MaxLogEntries {
		c.Warnf(WarnHugeLog, l.fieldAt("max_log_entries"),
			"each counter of this limit can take %.1f MB, and each request looks through it; "+
				"use sliding_window, which takes a few hundred bytes", float64(p.Limit*perEntry)/1e6)
	}
}

// warnSmallBurst warns of a limit that denies requests at the rate that it names, since they are not exactly as far
// apart.
func (c *Builder) warnSmallBurst(l *checked) {
	p := &l.params
	interval := p.Window / time.Duration(max(p.Limit, 1))
	dense := p.Limit > 1 && interval < time.Second && p.Refill == limiter.RefillGreedy
	if dense && p.Burst == 1 && l.policy.MaxWait() == 0 {
		c.Warnf(WarnBurst, l.fieldAt("burst"),
			"burst: 1 denies every request that comes within %s of another one, and all that cost more "+
				"than 1 hit; write how many may come at once, or leave it out for %d", FormatDuration(interval), p.Limit)
	}
	if l.has("burst_seconds") && p.Limit > 0 && p.BurstFor < interval && p.MaxWait < interval {
		c.Warnf(WarnBurst, l.fieldAt("burst_seconds"),
			"in this time less than one request is saved up, so that each that comes within %s of "+
				"another one is denied; write at least %g", FormatDuration(interval), interval.Seconds())
	}
}

// envoyTimeout is how long Envoy waits for an answer unless its filter says otherwise.
const envoyTimeout = 20 * time.Millisecond

// warnWait warns of answers that come when Envoy no longer waits for them.
func (c *Builder) warnWait(l *checked) {
	if wait := l.policy.MaxWait(); wait > envoyTimeout {
		c.Warnf(WarnMaxWait, l.fieldAt("max_wait"),
			"requests are delayed by up to %s, but Envoy waits only %s unless its rate limit "+
				"filter has a longer timeout; raise that, or write a max_wait below it", wait, envoyTimeout)
	}
}

// warnShortQueue warns of a max_wait that nobody reaches, since no more than burst requests wait.
func (c *Builder) warnShortQueue(l *checked) {
	p := &l.params
	capacity := l.policy.Capacity()
	leaks := time.Duration(float64(capacity) / float64(max(p.Limit, 1)) * float64(p.Window)).Round(time.Millisecond)
	if p.Limit == 0 || p.MaxWait <= leaks {
		return
	}
	reaches := int64(math.Ceil(float64(p.MaxWait) / float64(p.Window) * float64(p.Limit)))
	c.Warnf(WarnShortQueue, l.fieldAt("max_wait"),
		"nobody waits for %s: no more than burst requests wait, %d, and these are gone after %s; "+
			"write burst: %d, or a max_wait of at most %s", FormatDuration(p.MaxWait), capacity, FormatDuration(leaks), reaches,
		FormatDuration(leaks))
}

// DefaultMaxCounters is the most limits that a request may ask where --max-counters says nothing else: so many take
// Redis about 5 ms, in which it does nothing else, of the 15 ms that the store has by default.
const DefaultMaxCounters = 1024

// warnManyLimits warns of a rule that no request may ask by default.
func (c *Builder) warnManyLimits(all []checked) {
	if len(all) > DefaultMaxCounters {
		c.Warnf(WarnManyLimits, all[DefaultMaxCounters].at,
			"this rule has %d limits, and a request that asks more than --max-counters (%d) is "+
				"refused, which Envoy lets pass by default; remove limits, or raise --max-counters", len(all), DefaultMaxCounters)
	}
}

// warnRedundant warns of limits of one rule that never deny, since another one, which counts the same hits over the
// same time, does so first.
func (c *Builder) warnRedundant(all []checked) {
	tightest := map[form]*checked{} // by what else they are
	capacity := func(p *limiter.Params) int64 {
		if p.Burst != 0 {
			return p.Burst
		}
		return p.Limit
	}
	for i := range all {
		l := &all[i]
		if l.wrong || l.Unlimited {
			continue
		}
		of := l.form
		of.params.Limit, of.params.Burst, of.params.MaxLogEntries = 0, 0, 0
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
		c.Warnf(WarnRedundant, loose.at,
			"this limit never denies, since the one at %s, of %d and not %d in the same time, does so first; "+
				"remove one of the two, or give one another window", tight.at, tight.params.Limit, loose.params.Limit)
	}
}
