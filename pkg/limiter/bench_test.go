package limiter_test

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// BenchmarkStep decides hits of cost 1 on one counter: steadily at 9 of 10 of the limit, so that all fit, and at 10
// times of it, so that most do not.
func BenchmarkStep(b *testing.B) {
	const limit, window = 100, time.Minute
	for _, a := range algorithms {
		p := mustPolicy(b, limiter.Params{Algorithm: a, Limit: limit, Window: window})
		for _, by := range []struct {
			name  string
			every time.Duration
		}{
			{"allowed", window / limit * 10 / 9},
			{"denied", window / limit / 10},
		} {
			b.Run(a.String()+"/"+by.name, func(b *testing.B) {
				var s storekit.State
				now := int64(epoch)
				b.ReportAllocs()
				for b.Loop() {
					now += by.every.Microseconds()
					s, _ = storekit.Step(p, s, now, 1)
				}
			})
		}
	}
}
