package limit

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func TestShare(t *testing.T) {
	tests := []struct {
		name           string
		in             limiter.Params
		n              int64
		limit, burst   int64
		window         time.Duration
		want           limiter.Algorithm
		chargedDenials limiter.ChargeDenied
	}{
		{"alone", limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Window: time.Second}, 1, 10, 10, time.Second, limiter.Funnel, limiter.ChargeNone},
		{
			"one that is not said",
			limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Window: time.Second},
			0, 10, 10, time.Second, limiter.Funnel,
			limiter.ChargeNone,
		},
		{
			"a window's number is rounded down",
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10, Window: time.Minute},
			3, 3, 3,
			time.Minute, limiter.FixedWindow, limiter.ChargeFull,
		},
		{
			"at least one",
			limiter.Params{Algorithm: limiter.FixedWindow, Limit: 2, Window: time.Minute},
			3, 1, 1, time.Minute, limiter.FixedWindow,
			limiter.ChargeFull,
		},
		{
			"nothing stays nothing",
			limiter.Params{Algorithm: limiter.FixedWindow, DenyAll: true, Window: time.Minute},
			3, 0, 0, time.Minute, limiter.FixedWindow,
			limiter.ChargeFull,
		},
		{
			"no rate", limiter.Params{Algorithm: limiter.Funnel, DenyAll: true, Window: time.Minute, Burst: 5}, 3, 0, 0, time.Minute, limiter.Funnel, limiter.ChargeNone,
		},
		{
			"a rate is exact",
			limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Window: time.Second, Burst: 20},
			3, 10, 6, 3 * time.Second,
			limiter.Funnel, limiter.ChargeNone,
		},
		{
			"less than one a window",
			limiter.Params{Algorithm: limiter.TokenBucket, Limit: 2, Window: time.Minute},
			6, 2, 1, 6 * time.Minute,
			limiter.TokenBucket, limiter.ChargeNone,
		},
		{
			"refilled at once",
			limiter.Params{Algorithm: limiter.TokenBucket, Limit: 10, Window: time.Second, RefillsAtOnce: true},
			3, 3, 3,
			time.Second, limiter.TokenBucket, limiter.ChargeNone,
		},
		{
			"a queue",
			limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 10, Window: time.Second, Burst: 7},
			2, 10, 3, 2 * time.Second,
			limiter.LeakyQueue, limiter.ChargeNone,
		},
		{
			"in flight",
			limiter.Params{Algorithm: limiter.Concurrency, Limit: 10, Window: time.Minute},
			4, 2, 2, time.Minute, limiter.Concurrency,
			limiter.ChargeNone,
		},
		{
			"a segment's cap",
			limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 9, Window: time.Second, SegmentCap: 6},
			3, 3, 2,
			time.Second, limiter.SlidingWindow, limiter.ChargeNone,
		},
		{
			"too slow to be counted",
			limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Window: step.MaxWindow, ChargeDenied: limiter.ChargeFull},
			3, 3, 3, step.MaxWindow, limiter.Funnel, limiter.ChargeFull,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Share(tt.in, tt.n)
			if err != nil {
				t.Fatal(err)
			}
			if p.Limit() != tt.limit || p.Window() != tt.window || p.Capacity() != tt.burst || p.Algorithm() != tt.want ||
				p.Params().ChargeDenied != tt.chargedDenials {
				t.Errorf("%s of %d per %s, at most %d at once, charging denials %s; want %s of %d per %s, %d, %s", p.Algorithm(),
					p.Limit(),
					p.Window(), p.Capacity(), p.Params().ChargeDenied, tt.want, tt.limit, tt.window, tt.burst, tt.chargedDenials)
			}
		})
	}
}

// Together, all shares admit at once what the limit admits, or one hit each. Over time they admit at most the limit's
// rate, or one hit each per window. Every limit has a share.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := limiter.Params{
			Algorithm: limiter.Algorithm(rapid.IntRange(int(limiter.FixedWindow), int(limiter.SmoothWarmingUp)).Draw(t, "algorithm")),
			Limit:     rapid.Int64Range(0, 20_000).Draw(t, "limit"),
			Window:    time.Duration(rapid.Int64Range(1, step.MaxWindow.Milliseconds()).Draw(t, "window")) * time.Millisecond,
		}
		in.DenyAll = in.Limit == 0
		n := rapid.Int64Range(1, 100_000).Draw(t, "replicas")
		if in.Algorithm.Takes("burst") {
			in.Burst = rapid.Int64Range(0, 20_000).Draw(t, "burst")
		}
		whole, err := limiter.NewPolicy(in)
		if err != nil {
			t.Skip()
		}
		share, err := Share(in, n)
		if err != nil {
			t.Fatalf("1/%d of %+v: %v", n, in, err)
		}
		atOnce := max(whole.Capacity(), n)
		switch {
		case in.Limit == 0:
			atOnce = 0
		case share.Algorithm() == limiter.FixedWindow:
			atOnce = max(in.Limit, n)
		// The next hit pays, so each lets one more pass.
		case in.Algorithm == limiter.SmoothBursty || in.Algorithm == limiter.SmoothWarmingUp:
			atOnce = whole.Capacity() + n
		}
		if got := n * share.Capacity(); got > atOnce {
			t.Errorf("%d shares of %+v let %d pass at once, want at most %d", n, in, got, atOnce)
		}
		rate := func(p *limiter.Policy) float64 { return float64(p.Limit()) / p.Window().Seconds() }
		most := max(rate(whole), float64(n)/whole.Window().Seconds())
		if got := float64(n) * rate(share); got > most*1.000001 || in.Limit == 0 && got > 0 {
			t.Errorf("%d shares of %+v let %g a second pass, want at most %g", n, in, got, most)
		}
	})
}
