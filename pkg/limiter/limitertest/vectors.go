package limitertest

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// vector is a worked example: what one counter answers to a sequence of hits.
type vector struct {
	name   string
	params limiter.Params
	hits   []vectorHit
}

// vectorHit is a cost of n, at a time since the beginning, asked so many times. Each time it is allowed or
// not; the rest is what the last of them answers.
type vectorHit struct {
	at                 time.Duration
	times              int
	n                  int64
	allowed            bool
	remaining          int64
	retry, reset, wait time.Duration
}

// check compares every field of the last decision of each line.
func (v *vector) check(f *fixture) {
	p := policy(f, v.params)
	for i, h := range v.hits {
		f.clock.Set(start + h.at.Microseconds())
		var got limiter.Decision
		for k := range h.times {
			got = f.take(limiter.Hit{Key: v.name, Policy: p, N: h.n, Look: h.n == 0})[0]
			if got.Allowed != h.allowed {
				f.Errorf("line %d (at %s, cost %d), time %d: allowed is %t", i+1, h.at, h.n, k+1, got.Allowed)
			}
		}
		want := limiter.Decision{
			Allowed: h.allowed, Remaining: h.remaining, RetryAfter: h.retry, ResetAfter: h.reset, Wait: h.wait,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			f.Errorf("line %d (at %s, cost %d): (-want +got)\n%s", i+1, h.at, h.n, diff)
		}
	}
}

const (
	us  = time.Microsecond
	ms  = time.Millisecond
	sec = time.Second

	never = limiter.Never
	yes   = true
	no    = false
)

// zone is nil where it is not known, which stands for UTC; the vectors then fail.
func zone(name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	return loc
}

// vectors are worked by hand from the algorithms' definitions.
var vectors = []vector{
	{
		"funnel of 15 that leaks one hit in two seconds",
		limiter.Params{Algorithm: limiter.Funnel, Limit: 30, Window: time.Minute, Burst: 15},
		[]vectorHit{
			{0, 1, 1, yes, 14, 0, 2 * sec, 0},
			{0, 14, 1, yes, 0, 0, 30 * sec, 0},
			{0, 5, 1, no, 0, 2 * sec, 30 * sec, 0},
			{2*sec - us, 1, 1, no, 0, us, 28*sec + us, 0},
			{2 * sec, 1, 1, yes, 0, 0, 30 * sec, 0},
			{2 * sec, 1, 1, no, 0, 2 * sec, 30 * sec, 0},
			{2 * sec, 1, 3, no, 0, 6 * sec, 30 * sec, 0},
			{2 * sec, 1, 16, no, 0, never, 30 * sec, 0},
			{12 * sec, 1, 0, yes, 5, 0, 20 * sec, 0},
			{32 * sec, 1, 0, yes, 15, 0, 0, 0},
		},
	},
	{
		"token bucket",
		limiter.Params{Algorithm: limiter.TokenBucket, Limit: 10, Window: sec, Burst: 20},
		[]vectorHit{
			{0, 20, 1, yes, 0, 0, 2 * sec, 0},
			{0, 1, 1, no, 0, 100 * ms, 2 * sec, 0},
			{100 * ms, 1, 1, yes, 0, 0, 2 * sec, 0},
			{1100 * ms, 1, 10, yes, 0, 0, 2 * sec, 0},
			{1100 * ms, 1, 20, no, 0, 2 * sec, 2 * sec, 0},
			{3100 * ms, 1, 20, yes, 0, 0, 2 * sec, 0},
		},
	},
	{
		"fixed windows, twice the limit across their edge",
		limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10, Window: time.Minute},
		[]vectorHit{
			{59 * sec, 10, 1, yes, 0, 0, sec, 0},
			{59 * sec, 1, 1, no, 0, sec, sec, 0},
			{60 * sec, 10, 1, yes, 0, 0, 60 * sec, 0},
			{60 * sec, 1, 1, no, 0, 60 * sec, 60 * sec, 0},
			{90 * sec, 1, 11, no, 0, never, 30 * sec, 0},
			{120 * sec, 1, 0, yes, 10, 0, 60 * sec, 0},
		},
	},
	{
		"fixed window from the first hit",
		limiter.Params{Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit, Limit: 2, Window: time.Minute},
		[]vectorHit{
			{30 * sec, 2, 1, yes, 0, 0, 60 * sec, 0},
			{60 * sec, 1, 1, no, 0, 30 * sec, 30 * sec, 0},
			{90*sec - us, 1, 1, no, 0, us, us, 0},
			{90 * sec, 1, 1, yes, 1, 0, 60 * sec, 0},
			{100 * sec, 1, 1, yes, 0, 0, 50 * sec, 0},
		},
	},
	{
		"calendar day of 23 hours, and of 24", // the clocks of Berlin are put forward on 2026-03-29
		limiter.Params{
			Algorithm: limiter.FixedWindow, Align: limiter.AlignCalendar, TimeZone: zone("Europe/Berlin"), Limit: 2,
			Window: 24 * hour,
		},
		[]vectorHit{
			{86*24*hour + 23*hour - us, 2, 1, yes, 0, 0, us, 0}, // 2026-03-28, the last moment
			{86*24*hour + 23*hour - us, 1, 1, no, 0, us, us, 0},
			{86*24*hour + 23*hour, 2, 1, yes, 0, 0, 23 * hour, 0},
			{86*24*hour + 24*hour, 1, 1, no, 0, 22 * hour, 22 * hour, 0},
			{87*24*hour + 22*hour - us, 1, 1, no, 0, us, us, 0},
			{87*24*hour + 22*hour, 1, 3, no, 0, never, 24 * hour, 0},
			{87*24*hour + 22*hour - us, 1, 1, no, 0, 24*hour + us, 24*hour + us, 0}, // the clock steps back
		},
	},
	{
		"sliding log",
		limiter.Params{Algorithm: limiter.SlidingLog, Limit: 3, Window: 10 * sec},
		[]vectorHit{
			{0, 1, 1, yes, 2, 0, 10 * sec, 0},
			{1 * sec, 2, 1, yes, 0, 0, 10 * sec, 0}, // two hits in one instant are two
			{1 * sec, 1, 1, no, 0, 9 * sec, 10 * sec, 0},
			{1 * sec, 1, 2, no, 0, 10 * sec, 10 * sec, 0},
			{10*sec - us, 1, 1, no, 0, us, sec + us, 0},
			{10 * sec, 1, 1, yes, 0, 0, 10 * sec, 0},
			{10 * sec, 1, 1, no, 0, sec, 10 * sec, 0},
			{11 * sec, 2, 1, yes, 0, 0, 10 * sec, 0},
			{11 * sec, 1, 1, no, 0, 9 * sec, 10 * sec, 0},
		},
	},
	{
		"sliding window, oldest proportional",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec},
		[]vectorHit{
			{0, 10, 1, yes, 0, 0, 11 * sec, 0},
			{0, 1, 1, no, 0, 10_100 * ms, 11 * sec, 0},
			{10 * sec, 1, 1, no, 0, 100 * ms, sec, 0},
			{10_100*ms - us, 1, 1, no, 0, us, 900*ms + us, 0},
			{10_100 * ms, 1, 1, yes, 0, 0, 10_900 * ms, 0},
			{10_500 * ms, 1, 4, yes, 0, 0, 10_500 * ms, 0},
			{10_500 * ms, 1, 1, no, 0, 100 * ms, 10_500 * ms, 0},
		},
	},
	{
		"sliding window, oldest full",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec, Oldest: limiter.OldestFull},
		[]vectorHit{
			{0, 10, 1, yes, 0, 0, 11 * sec, 0},
			{10_500 * ms, 1, 1, no, 0, 500 * ms, 500 * ms, 0},
			{11 * sec, 10, 1, yes, 0, 0, 11 * sec, 0},
		},
	},
	{
		"sliding window, two hits a segment",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec, SegmentCap: 2},
		[]vectorHit{
			{0, 2, 1, yes, 0, 0, 11 * sec, 0},
			{0, 1, 1, no, 0, sec, 11 * sec, 0},
			{0, 1, 3, no, 0, never, 11 * sec, 0},
			{1 * sec, 2, 1, yes, 0, 0, 11 * sec, 0},
			{2 * sec, 2, 1, yes, 0, 0, 11 * sec, 0},
			{3 * sec, 2, 1, yes, 0, 0, 11 * sec, 0},
			{4 * sec, 2, 1, yes, 0, 0, 11 * sec, 0},
			{5 * sec, 1, 1, no, 0, 5500 * ms, 10 * sec, 0},
			{10_500 * ms, 1, 1, yes, 0, 0, 10_500 * ms, 0},
		},
	},
	{
		"token bucket that starts empty",
		limiter.Params{
			Algorithm: limiter.TokenBucket, Limit: 4, Window: 2 * sec, Burst: 2, Initial: limiter.InitialEmpty,
		},
		[]vectorHit{
			{0, 1, 0, no, 0, 500 * ms, sec, 0}, // a look begins nothing
			{1 * sec, 3, 1, no, 0, 500 * ms, sec, 0},
			{1500*ms - us, 1, 1, no, 0, us, 500*ms + us, 0},
			{1500 * ms, 1, 1, yes, 0, 0, sec, 0},
			{2 * sec, 1, 0, yes, 1, 0, 500 * ms, 0},
			{2500 * ms, 1, 0, yes, 2, 0, 0, 0},
			{3500*ms - us, 1, 3, no, 2, never, 0, 0},
			{3500 * ms, 1, 0, no, 0, 500 * ms, sec, 0}, // full for as long as filling takes: forgotten
			{3500 * ms, 1, 3, no, 0, never, sec, 0},
			{4 * sec, 1, 1, yes, 0, 0, sec, 0},
			{4 * sec, 1, -1, yes, 1, 0, 500 * ms, 0},
			{4 * sec, 1, -1, yes, 2, 0, 0, 0},
			{5*sec - us, 1, 0, yes, 2, 0, 0, 0},
			{5 * sec, 1, 1, no, 0, 500 * ms, sec, 0},
		},
	},
	{
		"token bucket that is refilled four tokens at a time",
		limiter.Params{
			Algorithm: limiter.TokenBucket, Limit: 4, Window: 10 * sec, Burst: 10, Refill: limiter.RefillInterval,
		},
		[]vectorHit{
			{3 * sec, 10, 1, yes, 0, 0, 30 * sec, 0},
			{3 * sec, 1, 1, no, 0, 10 * sec, 30 * sec, 0},
			{3 * sec, 1, 5, no, 0, 20 * sec, 30 * sec, 0},
			{3 * sec, 1, 11, no, 0, never, 30 * sec, 0},
			{13*sec - us, 1, 1, no, 0, us, 20*sec + us, 0},
			{13 * sec, 1, 4, yes, 0, 0, 30 * sec, 0},
			{14 * sec, 1, 0, no, 0, 9 * sec, 29 * sec, 0},
			{33 * sec, 1, 0, yes, 8, 0, 10 * sec, 0},
			{43 * sec, 1, 0, yes, 10, 0, 0, 0},
			{50 * sec, 1, 1, yes, 9, 0, 10 * sec, 0}, // a full bucket's batch counts from its first hit
			{60*sec - us, 1, 0, yes, 9, 0, us, 0},
			{60 * sec, 1, 0, yes, 10, 0, 0, 0},
		},
	},
	{
		"smooth bursty: the next ones pay",
		limiter.Params{Algorithm: limiter.SmoothBursty, Limit: 5, Window: sec},
		[]vectorHit{
			{0, 1, 10, yes, 0, 0, 2 * sec, 0}, // five of the store, five ahead
			{0, 1, 1, no, 0, sec, 2 * sec, 0},
			{sec - us, 1, 1, no, 0, us, sec + us, 0},
			{1 * sec, 1, 1, yes, 0, 0, 1200 * ms, 0},
			{1 * sec, 1, 100, no, 0, 200 * ms, 1200 * ms, 0},
			{1200 * ms, 1, 0, yes, 1, 0, sec, 0},
			{2200 * ms, 1, 0, yes, 6, 0, 0, 0},
			{2200 * ms, 6, 1, yes, 0, 0, 1200 * ms, 0},
			{2200 * ms, 1, -2, yes, 2, 0, 800 * ms, 0},
			{9 * sec, 1, limiter.MaxCost, no, 6, never, 0, 0}, // more than an hour's worth
			{9 * sec, 1, 18_001, no, 6, never, 0, 0},
			{9 * sec, 1, 18_000, yes, 0, 0, 3600 * sec, 0},
			{9 * sec, 1, 18_001, no, 0, never, 3600 * sec, 0},
		},
	},
	{
		"smooth bursty that waits half a second",
		limiter.Params{
			Algorithm: limiter.SmoothBursty, Limit: 5, Window: sec, BurstFor: 200 * ms, MaxWait: 500 * ms,
		},
		[]vectorHit{
			{0, 1, 1, yes, 3, 0, 200 * ms, 0},
			{0, 1, 1, yes, 2, 0, 400 * ms, 0},
			{0, 1, 1, yes, 1, 0, 600 * ms, 200 * ms},
			{0, 1, 1, yes, 0, 0, 800 * ms, 400 * ms},
			{0, 1, 1, no, 0, 100 * ms, 800 * ms, 0},
			{100*ms - us, 1, 1, no, 0, us, 700*ms + us, 0},
			{100 * ms, 1, 7, yes, 0, 0, 2100 * ms, 500 * ms},
			{100 * ms, 1, 1, no, 0, 1400 * ms, 2100 * ms, 0},
		},
	},
	{
		// a store of 8 permits, of which 4 are dearer: 2.75 s, 2.25 s, ...
		"smooth warming up: one a second after eight seconds",
		limiter.Params{Algorithm: limiter.SmoothWarmingUp, Limit: 1, Window: sec, WarmUp: 8 * sec, MaxCost: limiter.MaxCost},
		[]vectorHit{
			{0, 1, 0, yes, 1, 0, 0, 0},
			{0, 1, 1, yes, 0, 0, 3750 * ms, 0},
			{0, 1, 9, no, 0, 2750 * ms, 3750 * ms, 0},
			{2750*ms - us, 1, 1, no, 0, us, sec + us, 0},
			{2750 * ms, 1, 1, yes, 0, 0, 4250 * ms, 0},
			{5000 * ms, 1, 1, yes, 0, 0, 4750 * ms, 0},
			{6750 * ms, 1, 1, yes, 0, 0, 5250 * ms, 0},
			{8 * sec, 1, 1, yes, 0, 0, 6 * sec, 0}, // warm
			{9 * sec, 1, 2, yes, 0, 0, 9 * sec, 0},
			{9 * sec, 1, 0, no, 0, 2 * sec, 9 * sec, 0},
			{9 * sec, 1, -1, yes, 0, 0, 8 * sec, 0}, // what is in store stays
			{10 * sec, 1, 0, yes, 1, 0, 7 * sec, 0},
			{12 * sec, 1, 5, yes, 0, 0, 13 * sec, 0}, // three of the store, two ahead
			{21 * sec, 1, 0, yes, 1, 0, 4 * sec, 0},
			{23 * sec, 1, 1, yes, 0, 0, 4750 * ms, 0}, // it has cooled down to 1.75 s
			{60 * sec, 1, 0, yes, 1, 0, 0, 0},
			{60 * sec, 1, -3, yes, 1, 0, 0, 0},
			{60 * sec, 1, limiter.MaxCost, yes, 0, 0, 4_294_967_307 * sec, 0},
		},
	},
	{
		"leaky queue",
		limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 5, Window: sec},
		[]vectorHit{
			{0, 1, 1, yes, 5, 0, sec, 0},
			{0, 1, 1, yes, 4, 0, 1200 * ms, 200 * ms},
			{0, 4, 1, yes, 0, 0, 2 * sec, sec},
			{0, 1, 1, no, 0, 200 * ms, 2 * sec, 0},
			{0, 1, 2, no, 0, 400 * ms, 2 * sec, 0},
			{0, 1, 6, no, 0, never, 2 * sec, 0},
			{200*ms - us, 1, 1, no, 0, us, 1800*ms + us, 0},
			{200 * ms, 1, 1, yes, 0, 0, 2 * sec, sec},
			{600 * ms, 1, 0, yes, 2, 0, 1600 * ms, 0},
			{600 * ms, 1, -1, yes, 3, 0, 1400 * ms, 0}, // the last slot is free again
			{600 * ms, 1, 2, yes, 1, 0, 1800 * ms, 800 * ms},
			{5 * sec, 1, 0, yes, 6, 0, 0, 0},
			{5 * sec, 1, 5, yes, 5, 0, sec, 0}, // waits for nobody
			{5 * sec, 1, 1, yes, 4, 0, 1200 * ms, 200 * ms},
		},
	},
	{
		"concurrency",
		limiter.Params{Algorithm: limiter.Concurrency, Limit: 3, Window: 10 * sec},
		[]vectorHit{
			{0, 1, 1, yes, 2, 0, 10 * sec, 0},
			{1 * sec, 2, 1, yes, 0, 0, 10 * sec, 0},
			{2 * sec, 1, 1, no, 0, 8 * sec, 9 * sec, 0},
			{2 * sec, 1, -1, yes, 1, 0, 9 * sec, 0}, // the oldest, whichever it was
			{2 * sec, 1, 1, yes, 0, 0, 10 * sec, 0},
			{3 * sec, 1, 1, no, 0, 8 * sec, 9 * sec, 0},
			{3 * sec, 1, 3, no, 0, 9 * sec, 9 * sec, 0},
			{3 * sec, 1, 4, no, 0, never, 9 * sec, 0},
			{11*sec - us, 1, 1, no, 0, us, sec + us, 0},
			{11 * sec, 1, 1, yes, 1, 0, 10 * sec, 0},
			{11 * sec, 1, -9, yes, 3, 0, 0, 0},
			{11 * sec, 1, 2, yes, 1, 0, 10 * sec, 0},
		},
	},
}
