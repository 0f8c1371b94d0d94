package limitertest

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// change is a rule that changes while its counter is in use, as docs/algorithms/rule-changes.md has it: so many hits
// are used under the first rule, and some time later the second one has so much remaining. Where that is nothing,
// retry is when a hit passes again.
type change struct {
	name      string
	from      limiter.Params
	used      int
	later     time.Duration
	to        limiter.Params
	remaining int64
	retry     time.Duration
}

// minute and the others are rules of ten.
var (
	minute  = limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10, Window: 60 * sec}
	first   = limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10, Window: 60 * sec, Align: limiter.AlignFirstHit}
	leaks   = limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Window: hour}
	tokens  = limiter.Params{Algorithm: limiter.TokenBucket, Limit: 10, Window: hour}
	empty   = limiter.Params{Algorithm: limiter.TokenBucket, Limit: 10, Window: hour, StartsEmpty: true}
	batches = limiter.Params{Algorithm: limiter.TokenBucket, Limit: 10, Window: hour, RefillsAtOnce: true}
	slides  = limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec}
	logged  = limiter.Params{Algorithm: limiter.SlidingLog, Limit: 10, Window: 10 * sec}
	leased  = limiter.Params{Algorithm: limiter.Concurrency, Limit: 10, Window: 10 * sec}
	queued  = limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 10, Window: sec}
	warms   = limiter.Params{Algorithm: limiter.SmoothWarmingUp, Limit: 10, Window: sec, WarmUp: 10 * sec}
	saved   = limiter.Params{Algorithm: limiter.SmoothBursty, Limit: 10, Window: sec}
)

// with is the rule with another limit, window and burst, where they are not 0.
func with(in limiter.Params, limit int64, window time.Duration, burst int64) limiter.Params {
	if limit != 0 {
		in.Limit = limit
	}
	if window != 0 {
		in.Window = window
	}
	in.Burst = burst
	return in
}

// but is the rule with something else changed.
func but(in limiter.Params, change func(*limiter.Params)) limiter.Params {
	change(&in)
	return in
}

// changes are worked by hand.
var changes = []change{
	{"higher rate", minute, 6, 30 * sec, with(minute, 100, 0, 0), 94, 0},
	{"lower rate", minute, 6, 30 * sec, with(minute, 5, 0, 0), 0, 30 * sec},
	{"longer window", minute, 6, 30 * sec, with(minute, 0, hour, 0), 4, 0},
	{"shorter window, the same start", with(minute, 0, hour, 0), 6, 30 * sec, minute, 4, 0},
	{"shorter window, a later start", with(minute, 0, hour, 0), 6, 30 * 60 * sec, minute, 10, 0},
	{"first hit, higher rate", first, 6, 30 * sec, with(first, 100, 0, 0), 94, 0},
	{"first hit, longer window", first, 6, 30 * sec, with(first, 6, hour, 0), 0, hour - 30*sec},
	{"first hit, shorter window", with(first, 0, hour, 0), 6, 30 * sec, with(first, 5, 0, 0), 0, 30 * sec},

	// 6 hits are 36 minutes.
	{"higher rate", leaks, 6, 0, with(leaks, 100, 0, 0), 40, 0},
	{"lower rate", leaks, 6, 0, with(leaks, 5, 0, 0), 2, 0},
	{"larger burst", leaks, 6, 0, with(leaks, 0, 0, 20), 14, 0},
	{"smaller burst", leaks, 6, 0, with(leaks, 0, 0, 4), 0, hour / 10}, // full
	{"used up, far higher rate", with(leaks, 5, 0, 0), 5, 0, with(leaks, 1000, 60*sec, 0), 0, 60 * ms},
	{"longer window", leaks, 6, 0, with(leaks, 0, 2*hour, 0), 7, 0},
	{"shorter window", leaks, 6, 0, with(leaks, 0, hour/2, 0), 0, hour / 20},
	{"smaller burst, half leaked", leaks, 6, hour * 3 / 10, with(leaks, 0, 0, 4), 3, 0}, // full 18 minutes ago
	{"half leaked", leaks, 6, hour * 3 / 10, with(leaks, 5, 0, 0), 3, 0},                // 18 minutes are one and a half

	{"higher rate", tokens, 6, 0, with(tokens, 100, 0, 0), 40, 0},
	{"lower rate", tokens, 6, 0, with(tokens, 5, 0, 0), 2, 0},
	{"larger burst", tokens, 6, 0, with(tokens, 0, 0, 20), 14, 0},
	{"smaller burst", tokens, 6, 0, with(tokens, 0, 0, 4), 0, hour / 10},
	{"used up, far higher rate", with(tokens, 5, 0, 0), 5, 0, with(tokens, 1000, 60*sec, 0), 0, 60 * ms},
	{"longer window", tokens, 6, 0, with(tokens, 0, 2*hour, 0), 7, 0},
	{"starts empty, higher rate", empty, 1, hour * 6 / 10, with(empty, 20, 0, 0), 12, 0}, // 24 minutes are 8 of 20
	{"starts empty, smaller burst", empty, 1, hour * 6 / 10, with(empty, 0, 0, 5), 5, 0}, // full 36 minutes ago

	// 6 tokens are missing.
	{"batches, lower rate", batches, 6, hour / 3, with(batches, 4, 0, 10), 4, 0},
	{"batches, larger burst", batches, 6, hour / 3, with(batches, 0, 0, 20), 14, 0},
	{"batches, smaller burst", batches, 6, hour / 3, with(batches, 0, 0, 4), 0, hour * 2 / 3},
	{"batches, shorter window, not yet over", batches, 6, hour / 3, with(batches, 0, hour/2, 0), 4, 0},
	{"batches, shorter window, over", batches, 6, hour / 3, with(batches, 0, hour/4, 0), 10, 0},

	{"higher rate", slides, 6, 5 * sec, with(slides, 20, 0, 0), 14, 0},
	{"lower rate", slides, 6, 5 * sec, with(slides, 4, 0, 0), 0, 5500 * ms}, // when half of their segment is out
	{"longer window", slides, 6, 5 * sec, with(slides, 0, 20*sec, 0), 4, 0},
	{"shorter window, still inside", slides, 6, 5 * sec, with(slides, 0, 5*sec, 0), 4, 0},
	{"shorter window, outside", slides, 6, 5 * sec, with(slides, 0, 3*sec, 0), 10, 0},
	{"fewer segments", slides, 6, 5 * sec, but(slides, func(p *limiter.Params) { p.Segments = 5 }), 4, 0},
	{"one segment", slides, 6, 5 * sec, but(slides, func(p *limiter.Params) { p.Segments = 1 }), 4, 0},
	{"more segments", slides, 6, 5 * sec, but(slides, func(p *limiter.Params) { p.Segments = 100 }), 4, 0},
	{"oldest full", slides, 6, 10500 * ms, but(slides, func(p *limiter.Params) { p.Oldest = limiter.OldestFull }), 4, 0},
	{"oldest none", slides, 6, 10500 * ms, but(slides, func(p *limiter.Params) { p.Oldest = limiter.OldestNone }), 10, 0},
	{"segment cap", slides, 6, 5 * sec, but(slides, func(p *limiter.Params) { p.SegmentCap = 2 }), 2, 0},

	{"higher rate", logged, 6, 5 * sec, with(logged, 20, 0, 0), 14, 0},
	{"lower rate", logged, 6, 5 * sec, with(logged, 4, 0, 0), 0, 5 * sec},
	{"longer window", logged, 6, 5 * sec, with(logged, 6, 20*sec, 0), 0, 15 * sec},
	{"shorter window, still inside", logged, 6, 5 * sec, with(logged, 0, 5*sec+us, 0), 4, 0},
	{"shorter window, outside", logged, 6, 5 * sec, with(logged, 0, 5*sec, 0), 10, 0},

	{"more at once", leased, 6, 5 * sec, with(leased, 20, 0, 0), 14, 0},
	{"fewer at once", leased, 6, 5 * sec, with(leased, 4, 0, 0), 0, 5 * sec},
	{"longer lease", leased, 6, 5 * sec, with(leased, 6, 20*sec, 0), 0, 15 * sec},
	{"shorter lease", leased, 6, 5 * sec, with(leased, 0, 5*sec, 0), 10, 0},

	// The last of 6 departs in 0.5 s, and the queue is as new 1 s after that.
	{"higher rate", queued, 6, 0, with(queued, 20, 0, 0), 10, 0},
	{"lower rate", queued, 6, 0, with(queued, 5, 0, 0), 2, 0},
	{"longer window", queued, 6, 0, with(queued, 0, 2*sec, 5), 2, 0},
	{"larger burst", queued, 6, 0, with(queued, 0, 0, 14), 13, 0},       // as new 0.1 s from now
	{"smaller burst", queued, 6, 0, with(queued, 0, 0, 5), 0, 100 * ms}, // full
	{"used up, higher rate", with(queued, 1, 0, 0), 1, 0, with(queued, 100, 0, 50), 0, 10 * ms},
	{"shorter wait", queued, 6, 0, but(queued, func(p *limiter.Params) { p.MaxWait = 300 * ms }), 0, 100 * ms},

	// 6 of 10 saved permits are 0.6 s; one more than is saved passes, and the next one pays.
	{"higher rate", saved, 6, 0, with(saved, 20, 0, 0), 9, 0},
	{"lower rate", saved, 6, 0, with(saved, 5, 0, 0), 3, 0},
	{"longer window", saved, 6, 0, with(saved, 0, 2*sec, 0), 3, 0},
	{"more saved", saved, 6, 0, but(saved, func(p *limiter.Params) { p.BurstFor = 2 * sec }), 15, 0},
	{"less saved", saved, 6, 0, but(saved, func(p *limiter.Params) { p.BurstFor = 500 * ms }), 0, 100 * ms},
	{"longer wait", saved, 6, 0, but(saved, func(p *limiter.Params) { p.MaxWait = 500 * ms }), 10, 0},

	// The first permit of a cold limit costs 0.298 s, which is owed under whatever rule.
	{"higher rate", warms, 1, 0, with(warms, 20, 0, 0), 0, 298 * ms},
	{"longer window", warms, 1, 0, with(warms, 0, 2*sec, 0), 0, 298 * ms},
}

// check changes the rule, and then uses up what it says that remains.
func (c *change) check(f *fixture) {
	from, to := policy(f, c.from), policy(f, c.to)
	key := c.from.Algorithm.String() + "/" + c.name
	for range c.used {
		f.take(limiter.Hit{Key: key, Policy: from, N: 1})
	}
	f.clock.Advance(c.later)
	look := f.take(limiter.Hit{Key: key, Policy: to, Look: true})[0]
	if look.Remaining != c.remaining || look.RetryAfter != c.retry {
		f.Errorf("%d remain, and the next passes after %s; want %d and %s", look.Remaining, look.RetryAfter, c.remaining,
			c.retry)
	}
	full := limiter.Hit{Key: key + "/full", Policy: to, N: 1}
	for allowed := true; allowed; {
		allowed = f.take(full)[0].Allowed
	}
	full.N, full.Look = 0, true
	if most := f.take(full)[0].ResetAfter; look.ResetAfter > most && !to.Core().PaysLater { // which may owe more
		f.Errorf("fully available in %s, where a counter that is full is in %s", look.ResetAfter, most)
	}
	for range c.remaining {
		f.want("+", limiter.Hit{Key: key, Policy: to, N: 1})
	}
	f.want("-", limiter.Hit{Key: key, Policy: to, N: 1})
	if c.remaining == 0 && to.Params().ChargeDenied == limiter.ChargeNone {
		f.clock.Advance(c.retry - us)
		f.want("-", limiter.Hit{Key: key, Policy: to, N: 1})
		f.clock.Advance(us)
		f.want("+", limiter.Hit{Key: key, Policy: to, N: 1})
	}
}

// runChanges checks each change, and that there is one of rate and one of window for every algorithm.
func runChanges(t *testing.T, fresh Fresh) {
	t.Helper()
	rates, windows := map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		name := c.from.Algorithm.String()
		rates[name] = rates[name] || c.from.Limit != c.to.Limit
		windows[name] = windows[name] || c.from.Window != c.to.Window
		t.Run(name+", "+c.name, func(t *testing.T) { c.check(newFixture(t, fresh)) })
	}
	for _, name := range limit.AlgorithmNames() {
		if !rates[name] || !windows[name] {
			t.Errorf("%s: the changes of limitertest have none of its rate or none of its window", name)
		}
	}
}
