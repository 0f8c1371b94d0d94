package limiter

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestShare(t *testing.T) {
	tests := []struct {
		name           string
		in             Params
		n              int64
		limit, burst   int64
		window         time.Duration
		want           Algorithm
		chargedDenials ChargeDenied
	}{
		{"alone", Params{Algorithm: Funnel, Limit: 10, Window: time.Second}, 1, 10, 10, time.Second, Funnel, ChargeNone},
		{
			"one that is not said",
			Params{Algorithm: Funnel, Limit: 10, Window: time.Second},
			0, 10, 10, time.Second, Funnel,
			ChargeNone,
		},
		{
			"a window's number is rounded down",
			Params{Algorithm: FixedWindow, Limit: 10, Window: time.Minute},
			3, 3, 3,
			time.Minute, FixedWindow, ChargeFull,
		},
		{
			"at least one",
			Params{Algorithm: FixedWindow, Limit: 2, Window: time.Minute},
			3, 1, 1, time.Minute, FixedWindow,
			ChargeFull,
		},
		{
			"nothing stays nothing",
			Params{Algorithm: FixedWindow, Window: time.Minute},
			3, 0, 0, time.Minute, FixedWindow,
			ChargeFull,
		},
		{"no rate", Params{Algorithm: Funnel, Window: time.Minute, Burst: 5}, 3, 0, 0, time.Minute, Funnel, ChargeNone},
		{
			"a rate is exact",
			Params{Algorithm: Funnel, Limit: 10, Window: time.Second, Burst: 20},
			3, 10, 6, 3 * time.Second,
			Funnel, ChargeNone,
		},
		{
			"less than one a window",
			Params{Algorithm: TokenBucket, Limit: 2, Window: time.Minute},
			6, 2, 1, 6 * time.Minute,
			TokenBucket, ChargeNone,
		},
		{
			"refilled at once",
			Params{Algorithm: TokenBucket, Limit: 10, Window: time.Second, Refill: RefillInterval},
			3, 3, 3,
			time.Second, TokenBucket, ChargeNone,
		},
		{
			"a queue",
			Params{Algorithm: LeakyQueue, Limit: 10, Window: time.Second, Burst: 7},
			2, 10, 3, 2 * time.Second,
			LeakyQueue, ChargeNone,
		},
		{
			"in flight",
			Params{Algorithm: Concurrency, Limit: 10, Window: time.Minute},
			4, 2, 2, time.Minute, Concurrency,
			ChargeNone,
		},
		{
			"a segment's cap",
			Params{Algorithm: SlidingWindow, Limit: 9, Window: time.Second, SegmentCap: 6},
			3, 3, 2,
			time.Second, SlidingWindow, ChargeNone,
		},
		{
			"too slow to be counted",
			Params{Algorithm: Funnel, Limit: 10, Window: MaxWindow, ChargeDenied: ChargeFull},
			3, 3, 3, MaxWindow, Funnel, ChargeFull,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := tt.in.Share(tt.n)
			if err != nil {
				t.Fatal(err)
			}
			if p.Limit() != tt.limit || p.Window() != tt.window || p.Capacity() != tt.burst || p.Algorithm() != tt.want ||
				p.ChargeDenied() != tt.chargedDenials {
				t.Errorf("%s of %d per %s, at most %d at once, charging denials %s; want %s of %d per %s, %d, %s", p.Algorithm(),
					p.Limit(),
					p.Window(), p.Capacity(), p.ChargeDenied(), tt.want, tt.limit, tt.window, tt.burst, tt.chargedDenials)
			}
		})
	}
}

// All shares together let pass at once what the limit does, or one each, and over time no more than its rate, or one
// each per window. Every limit has a share.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Params{
			Algorithm: Algorithm(rapid.IntRange(int(FixedWindow), int(SmoothWarmingUp)).Draw(t, "algorithm")),
			Limit:     rapid.Int64Range(0, 20_000).Draw(t, "limit"),
			Window:    time.Duration(rapid.Int64Range(1, MaxWindow.Milliseconds()).Draw(t, "window")) * time.Millisecond,
		}
		n := rapid.Int64Range(1, 100_000).Draw(t, "replicas")
		if in.Algorithm.Has("burst") {
			in.Burst = rapid.Int64Range(0, 20_000).Draw(t, "burst")
		}
		whole, err := NewPolicy(in)
		if err != nil {
			t.Skip()
		}
		share, err := in.Share(n)
		if err != nil {
			t.Fatalf("1/%d of %+v: %v", n, in, err)
		}
		atOnce := max(whole.Capacity(), n)
		switch {
		case in.Limit == 0:
			atOnce = 0
		case share.Algorithm() == FixedWindow:
			atOnce = max(in.Limit, n)
		case in.Algorithm == SmoothBursty || in.Algorithm == SmoothWarmingUp: // the next hit pays, so each lets one more pass
			atOnce = whole.Capacity() + n
		}
		if got := n * share.Capacity(); got > atOnce {
			t.Errorf("%d shares of %+v let %d pass at once, want at most %d", n, in, got, atOnce)
		}
		rate := func(p *Policy) float64 { return float64(p.Limit()) / p.Window().Seconds() }
		most := max(rate(whole), float64(n)/whole.Window().Seconds())
		if got := float64(n) * rate(share); got > most*1.000001 || in.Limit == 0 && got > 0 {
			t.Errorf("%d shares of %+v let %g a second pass, want at most %g", n, in, got, most)
		}
	})
}
