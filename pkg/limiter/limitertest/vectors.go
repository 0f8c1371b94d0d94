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
	at           time.Duration
	times        int
	n            int64
	allowed      bool
	remaining    int64
	retry, reset time.Duration
}

// check compares every field of the last decision of each line.
func (v *vector) check(f *fixture) {
	p := policy(f, v.params)
	for i, h := range v.hits {
		f.clock.Set(start + h.at.Microseconds())
		var got limiter.Decision
		for k := range h.times {
			got = f.take(limiter.Hit{Key: v.name, Policy: p, N: h.n})[0]
			if got.Allowed != h.allowed {
				f.Errorf("line %d (at %s, cost %d), time %d: allowed is %t", i+1, h.at, h.n, k+1, got.Allowed)
			}
		}
		want := limiter.Decision{Allowed: h.allowed, Remaining: h.remaining, RetryAfter: h.retry, ResetAfter: h.reset}
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

// vectors are worked by hand from the algorithms' definitions.
var vectors = []vector{
	{
		"funnel of 15 that leaks one hit in two seconds",
		limiter.Params{Algorithm: limiter.Funnel, Limit: 30, Window: time.Minute, Burst: 15},
		[]vectorHit{
			{0, 1, 1, yes, 14, 0, 2 * sec},
			{0, 14, 1, yes, 0, 0, 30 * sec},
			{0, 5, 1, no, 0, 2 * sec, 30 * sec},
			{2*sec - us, 1, 1, no, 0, us, 28*sec + us},
			{2 * sec, 1, 1, yes, 0, 0, 30 * sec},
			{2 * sec, 1, 1, no, 0, 2 * sec, 30 * sec},
			{2 * sec, 1, 3, no, 0, 6 * sec, 30 * sec},
			{2 * sec, 1, 16, no, 0, never, 30 * sec},
			{12 * sec, 1, 0, yes, 5, 0, 20 * sec},
			{32 * sec, 1, 0, yes, 15, 0, 0},
		},
	},
	{
		"funnel that loses no third of a microsecond",
		limiter.Params{Algorithm: limiter.Funnel, Limit: 3, Window: sec, Burst: 2},
		[]vectorHit{
			{0, 2, 1, yes, 0, 0, 666_667 * us},
			{333_333 * us, 1, 1, no, 0, us, 333_334 * us},
			{333_334 * us, 1, 1, yes, 0, 0, 666_666 * us},
			{666_666 * us, 1, 1, no, 0, us, 333_334 * us},
			{666_667 * us, 1, 1, yes, 0, 0, 666_667 * us},
			{999_999 * us, 1, 1, no, 0, us, 333_335 * us},
			{sec, 1, 1, yes, 0, 0, 666_667 * us},
		},
	},
	{
		"token bucket",
		limiter.Params{Algorithm: limiter.TokenBucket, Limit: 10, Window: sec, Burst: 20},
		[]vectorHit{
			{0, 20, 1, yes, 0, 0, 2 * sec},
			{0, 1, 1, no, 0, 100 * ms, 2 * sec},
			{100 * ms, 1, 1, yes, 0, 0, 2 * sec},
			{1100 * ms, 1, 10, yes, 0, 0, 2 * sec},
			{1100 * ms, 1, 20, no, 0, 2 * sec, 2 * sec},
			{3100 * ms, 1, 20, yes, 0, 0, 2 * sec},
		},
	},
	{
		"fixed windows, twice the limit across their edge",
		limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10, Window: time.Minute},
		[]vectorHit{
			{59 * sec, 10, 1, yes, 0, 0, sec},
			{59 * sec, 1, 1, no, 0, sec, sec},
			{60 * sec, 10, 1, yes, 0, 0, 60 * sec},
			{60 * sec, 1, 1, no, 0, 60 * sec, 60 * sec},
			{90 * sec, 1, 11, no, 0, never, 30 * sec},
			{120 * sec, 1, 0, yes, 10, 0, 0},
		},
	},
	{
		"fixed window from the first hit",
		limiter.Params{Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit, Limit: 2, Window: time.Minute},
		[]vectorHit{
			{30 * sec, 2, 1, yes, 0, 0, 60 * sec},
			{60 * sec, 1, 1, no, 0, 30 * sec, 30 * sec},
			{90*sec - us, 1, 1, no, 0, us, us},
			{90 * sec, 1, 1, yes, 1, 0, 60 * sec},
			{100 * sec, 1, 1, yes, 0, 0, 50 * sec},
		},
	},
	{
		"sliding log",
		limiter.Params{Algorithm: limiter.SlidingLog, Limit: 3, Window: 10 * sec},
		[]vectorHit{
			{0, 1, 1, yes, 2, 0, 10 * sec},
			{1 * sec, 2, 1, yes, 0, 0, 10 * sec}, // two hits in one instant are two
			{1 * sec, 1, 1, no, 0, 9 * sec, 10 * sec},
			{1 * sec, 1, 2, no, 0, 10 * sec, 10 * sec},
			{10*sec - us, 1, 1, no, 0, us, sec + us},
			{10 * sec, 1, 1, yes, 0, 0, 10 * sec},
			{10 * sec, 1, 1, no, 0, sec, 10 * sec},
			{11 * sec, 2, 1, yes, 0, 0, 10 * sec},
			{11 * sec, 1, 1, no, 0, 9 * sec, 10 * sec},
		},
	},
	{
		"sliding window, oldest proportional",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec},
		[]vectorHit{
			{0, 10, 1, yes, 0, 0, 11 * sec},
			{0, 1, 1, no, 0, 10_100 * ms, 11 * sec},
			{10 * sec, 1, 1, no, 0, 100 * ms, sec},
			{10_100*ms - us, 1, 1, no, 0, us, 900*ms + us},
			{10_100 * ms, 1, 1, yes, 0, 0, 10_900 * ms},
			{10_500 * ms, 1, 4, yes, 0, 0, 10_500 * ms},
			{10_500 * ms, 1, 1, no, 0, 100 * ms, 10_500 * ms},
		},
	},
	{
		"sliding window, oldest full",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec, Oldest: limiter.OldestFull},
		[]vectorHit{
			{0, 10, 1, yes, 0, 0, 11 * sec},
			{10_500 * ms, 1, 1, no, 0, 500 * ms, 500 * ms},
			{11 * sec, 10, 1, yes, 0, 0, 11 * sec},
		},
	},
	{
		"sliding window, oldest none",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec, Oldest: limiter.OldestNone},
		[]vectorHit{
			{0, 10, 1, yes, 0, 0, 10 * sec},
			{10*sec - us, 1, 1, no, 0, us, us},
			{10 * sec, 10, 1, yes, 0, 0, 10 * sec},
		},
	},
	{
		"sliding window, two hits a segment",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec, SegmentCap: 2},
		[]vectorHit{
			{0, 2, 1, yes, 0, 0, 11 * sec},
			{0, 1, 1, no, 0, sec, 11 * sec},
			{0, 1, 3, no, 0, never, 11 * sec},
			{1 * sec, 2, 1, yes, 0, 0, 11 * sec},
			{2 * sec, 2, 1, yes, 0, 0, 11 * sec},
			{3 * sec, 2, 1, yes, 0, 0, 11 * sec},
			{4 * sec, 2, 1, yes, 0, 0, 11 * sec},
			{5 * sec, 1, 1, no, 0, 5500 * ms, 10 * sec},
			{10_500 * ms, 1, 1, yes, 0, 0, 10_500 * ms},
		},
	},
	{
		"sliding window of one segment",
		limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: 10 * sec, Segments: 1},
		[]vectorHit{
			{5 * sec, 10, 1, yes, 0, 0, 15 * sec},
			{12 * sec, 1, 2, yes, 0, 0, 18 * sec},
			{12 * sec, 1, 1, no, 0, sec, 18 * sec},
		},
	},
}
