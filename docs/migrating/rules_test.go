package migrating

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestRules checks that the rules of pages whose arithmetic the oracles of pkg/limiter define are those that the tables
// of settings make.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		page, name string
		rule       limiter.Params
	}{
		{"guava.md", "bursty", limiter.Params{
			Algorithm: limiter.SmoothBursty, Limit: 5, Window: time.Second, MaxWait: 500 * time.Millisecond,
		}},
		{"guava.md", "warming", limiter.Params{
			Algorithm: limiter.SmoothWarmingUp, Limit: 50, Window: time.Second, WarmUp: 4 * time.Second,
			MaxWait: 100 * time.Millisecond,
		}},
		{"bucket4j.md", "burst", limiter.Params{
			Algorithm: limiter.TokenBucket, Limit: 10, Window: time.Second, Burst: 50,
		}},
		{"bucket4j.md", "batches", limiter.Params{
			Algorithm: limiter.TokenBucket, Limit: 100, Window: time.Minute, Burst: 100, RefillsAtOnce: true,
		}},
		{"bucket4j.md", "aligned", limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 400, Window: time.Hour, ChargeDenied: limiter.ChargeNone,
		}},
		{"sentinel.md", "reject", limiter.Params{
			Algorithm: limiter.SlidingWindow, Limit: 20, Window: time.Second, Segments: 2, Oldest: limiter.OldestNone,
		}},
		{"sentinel.md", "throttle", limiter.Params{
			Algorithm: limiter.LeakyQueue, Limit: 10, Window: time.Second, Burst: 5, MaxWait: 500 * time.Millisecond,
		}},
		{"sentinel.md", "warm-up", limiter.Params{
			Algorithm: limiter.SmoothWarmingUp, Limit: 100, Window: time.Second, WarmUp: 10 * time.Second,
			MaxWait: 20 * time.Millisecond,
		}},
		{"gubernator.md", "emails", limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 100, Window: time.Minute, Align: limiter.AlignFirstHit,
			ChargeDenied: limiter.ChargeNone,
		}},
		{"gubernator.md", "requests", limiter.Params{
			Algorithm: limiter.Funnel, Limit: 10, Window: time.Second, Burst: 10,
		}},
		{"limitador.md", "post", limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 5, Window: time.Minute, Align: limiter.AlignFirstHit,
			ChargeDenied: limiter.ChargeNone,
		}},
		{"redis-cell.md", "per-user", limiter.Params{
			Algorithm: limiter.Funnel, Limit: 30, Window: time.Minute, Burst: 16,
		}},
	} {
		onPage(t, tt.page, tt.name, tt.rule)
	}
}
