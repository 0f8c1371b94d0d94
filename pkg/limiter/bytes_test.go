package limiter_test

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestBytesADay: costs above 2^32 are counted exactly, by every algorithm that does not remember each hit. Those by
// which later requests pay for a large one take such a limit, and costs up to MaxCost.
func TestBytesADay(t *testing.T) {
	const day, tenth = int64(100_000_000_000), int64(10_000_000_000)
	for _, a := range limiter.Algorithms() {
		in := limiter.Params{Algorithm: a, Limit: day, Window: 24 * time.Hour}
		p, err := limiter.NewPolicy(in)
		if a == limiter.SlidingLog || a == limiter.Concurrency {
			if err == nil {
				t.Errorf("%s takes a log of %d entries", a, day)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", a, err)
			continue
		}
		if p.Core().Largest < day {
			largest := p.Core().Largest
			if _, d := storekit.Step(p, storekit.State{}, epoch, largest+1); d.Allowed || largest != step.MaxCost {
				t.Errorf("%s: a cost above %d: %+v, want a denial from %d on", a, p.Core().Largest, d, step.MaxCost)
			}
			continue
		}
		var s storekit.State
		var d limiter.Decision
		if a == limiter.LeakyQueue { // the first one departs now
			s, _ = storekit.Step(p, s, epoch, tenth)
		}
		for i := range day / tenth {
			s, d = storekit.Step(p, s, epoch, tenth)
			if !d.Allowed || a != limiter.LeakyQueue && d.Remaining != day-(i+1)*tenth {
				t.Fatalf("%s: request %d of 10 GB: %+v", a, i, d)
			}
		}
		if _, d = storekit.Step(p, s, epoch, tenth); d.Allowed || d.RetryAfter == limiter.Never {
			t.Errorf("%s: 10 GB more than fit: %+v, want a denial that ends", a, d)
		}
	}
}
