package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// reserved lists limits with a Reserve, in groups of limits that may replace each other under a counter.
var reserved = [][]limiter.Params{
	{
		{Algorithm: limiter.FixedWindow, Window: 10 * time.Second},
		{Algorithm: limiter.FixedWindow, Window: 7 * time.Second},
		{Algorithm: limiter.FixedWindow, Window: 10 * time.Second, Align: limiter.AlignFirstHit},
		{Algorithm: limiter.FixedWindow, Window: time.Hour, Align: limiter.AlignCalendar},
	},
	{
		{Algorithm: limiter.SlidingWindow, Window: 10 * time.Second},
		{Algorithm: limiter.SlidingWindow, Window: 10 * time.Second, Segments: 8},
		{Algorithm: limiter.SlidingWindow, Window: 700_001 * time.Microsecond, Segments: 1},
		{Algorithm: limiter.SlidingWindow, Window: 7 * time.Second, Oldest: limiter.OldestNone},
	},
	{
		{Algorithm: limiter.SlidingLog, Window: 10 * time.Second},
		{Algorithm: limiter.SlidingLog, Window: 7 * time.Second},
	},
	{
		{Algorithm: limiter.Funnel, Window: 10 * time.Second},
		{Algorithm: limiter.Funnel, Window: 700_001 * time.Microsecond, Burst: 100},
		{Algorithm: limiter.Funnel, Limit: 999_999_937, Window: time.Hour, Burst: 10_000_000},           // ticks of 1 ms
		{Algorithm: limiter.Funnel, Limit: 4_000_000_007, Window: 24 * time.Hour, Burst: 1_000_000_000}, // ticks of 1 s
	},
}

// TestTakeBackAfterEdit takes charges back after their limit has been edited: in Redis and in memory, with equal
// decisions.
func TestTakeBackAfterEdit(t *testing.T) {
	t.Parallel()
	server, clock := redistest.Start(t), limitertest.NewClock()
	inRedis := fresh(server)(t, clock)
	for _, all := range reserved {
		for i := range all {
			for j := range all {
				from, to := reservedPolicy(t, all[i]), reservedPolicy(t, all[j])
				for _, wait := range []time.Duration{0, 1, 345_678 * time.Microsecond, 2 * time.Second, 8 * time.Second} {
					clock.Advance(time.Hour + 123_457*time.Microsecond)
					inMemory, err := memstore.New(memstore.Options{Now: clock.Now})
					if err != nil {
						t.Fatal(err)
					}
					key := fmt.Sprint(all[i].Algorithm, i, j, wait)
					take := func(h limiter.Hit) limiter.Decision {
						t.Helper()
						h.Key, h.Peek = key, h.N == 0
						return takeBoth(t, inRedis, inMemory, h)
					}
					n, back := hitsOf4s(from), -hitsOf4s(to)
					first := take(limiter.Hit{Policy: from, N: n})
					clock.Advance(78_901 * time.Microsecond)
					second := take(limiter.Hit{Policy: from, N: n - 1})
					clock.Advance(wait)
					take(limiter.Hit{Policy: to, N: back, TakenAt: first.TakenAt, OrOldest: true, Mode: limiter.Shadow})
					take(limiter.Hit{Policy: to, N: back, TakenAt: second.TakenAt})
					take(limiter.Hit{Policy: to})
					if err := inMemory.Close(); err != nil {
						t.Error(err)
					}
				}
			}
		}
	}
}

// reservedPolicy returns the policy of the parameters with a Reserve of 5, and by default a Limit of 10.
func reservedPolicy(t *testing.T, in limiter.Params) *limiter.Policy {
	t.Helper()
	in.Reserve = 5
	if in.Limit == 0 {
		in.Limit = 10
	}
	return policy(t, in)
}

// hitsOf4s returns how many hits a limit admits in 4 s, or 4 if it counts in windows.
func hitsOf4s(p *limiter.Policy) int64 {
	if !p.Core().Is(step.IsRate) {
		return 4
	}
	return p.Limit() * 4_000_000 / p.Window().Microseconds()
}

// takeBoth decides a hit with two stores, and returns their decision.
func takeBoth(t *testing.T, one, other limiter.Store, h limiter.Hit) limiter.Decision {
	t.Helper()
	var got, want [1]limiter.Decision
	for _, err := range []error{
		one.Take(t.Context(), []limiter.Hit{h}, got[:]),
		other.Take(t.Context(), []limiter.Hit{h}, want[:]),
	} {
		if err != nil {
			t.Fatalf("%s, %d hits: %v", h.Key, h.N, err)
		}
	}
	if got != want {
		t.Errorf("%s, %d hits: %+v, want %+v", h.Key, h.N, got[0], want[0])
	}
	return got[0]
}
