package limit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func TestShare(t *testing.T) {
	for _, tt := range casetest.Table[struct {
		Name, Algorithm        string
		In                     limiter.Params
		Parts, Limit, Capacity int64
		Window                 time.Duration
		Charged                string
	}](t, "testdata/share.yaml") {
		t.Run(tt.Name, func(t *testing.T) {
			var err error
			if tt.In.Algorithm, err = limiter.ParseAlgorithm(tt.Algorithm); err != nil {
				t.Fatal(err)
			}
			p, err := limit.Share(tt.In, tt.Parts)
			if err != nil {
				t.Fatal(err)
			}
			if p.Limit() != tt.Limit || p.Window() != tt.Window || p.Capacity() != tt.Capacity ||
				p.Algorithm() != tt.In.Algorithm || p.Params().ChargeDenied.String() != tt.Charged {
				t.Errorf("%s of %d per %s, at most %d at once, charging denials %s; want %+v", p.Algorithm(), p.Limit(),
					p.Window(), p.Capacity(), p.Params().ChargeDenied, tt)
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
		share, err := limit.Share(in, n)
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
