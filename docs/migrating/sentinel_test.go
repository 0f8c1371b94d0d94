package migrating

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// warmUp is Sentinel's WarmUpController: a bucket of tokens says how cold the resource is, and that says how many
// requests a second may pass.
type warmUp struct {
	count, period, factor float64 // a second; seconds
	warning, most         float64
	stored                float64
	second                int64
}

func newWarmUp(count, period, factor float64, second int64) *warmUp {
	w := &warmUp{count: count, period: period, factor: factor, second: second}
	w.warning = float64(int64(period*count) / int64(factor-1))
	w.most = w.warning + float64(int64(2*period*count/(1+factor)))
	w.stored = w.most
	return w
}

// admitted is how many of more requests than that are admitted in the next second, after so many in the one before.
func (w *warmUp) admitted(before float64) float64 {
	if w.stored < w.warning || w.stored > w.warning && before < float64(int64(w.count)/int64(w.factor)) {
		w.stored = min(w.most, w.stored+w.count)
	}
	w.stored = max(0, w.stored-before)
	limit := w.count
	if w.stored >= w.warning {
		slope := (w.factor - 1) / w.count / (w.most - w.warning)
		limit = 1 / ((w.stored-w.warning)*slope + 1/w.count)
	}
	return float64(int64(limit))
}

// TestSentinelWarmsUp: under four times the count, Weir has admitted as much as Sentinel from the end of the warm-up
// on, and up to a third more. Sentinel counts whole requests a second, and cuts what a cold second may have.
func TestSentinelWarmsUp(t *testing.T) {
	rule := func(count int64, period time.Duration) limiter.Params {
		return limiter.Params{
			Algorithm: limiter.SmoothWarmingUp, Limit: count, Window: time.Second, WarmUp: period,
			MaxWait: (2 * time.Second / time.Duration(count)).Truncate(time.Millisecond),
		}
	}
	onPage(t, "sentinel.md", "warm-up", rule(100, 10*time.Second))
	for _, count := range []int64{20, 100, 250} {
		for _, period := range []int64{5, 10, 20} {
			p := newPolicy(t, rule(count, time.Duration(period)*time.Second))
			s := newWarmUp(float64(count), float64(period), 3, 0)
			var state limiter.State
			weir, other, before := 0.0, 0.0, 0.0
			now := start
			for second := range 3 * period {
				for end := now + 1_000_000; now < end; now += 1_000_000 / (4 * count) {
					var d limiter.Decision
					if state, d = p.Step(state, now, 1); d.Allowed {
						weir++
					}
				}
				before = s.admitted(before)
				if other += before; second+1 >= period {
					between(t, "the share in percent", int64(100*weir/other), 100, 133)
				}
			}
		}
	}
}
