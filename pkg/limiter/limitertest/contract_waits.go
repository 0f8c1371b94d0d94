package limitertest

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// queue is a queue of one a second.
func (f *fixture) queue() *limiter.Policy {
	f.Helper()
	return policy(f, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: sec, Burst: 10})
}

// waited checks how long each of the hits is to be delayed.
func (f *fixture) waited(want []time.Duration, hits ...limiter.Hit) {
	f.Helper()
	got := make([]time.Duration, len(hits))
	for i, d := range f.take(hits...) {
		got[i] = d.Wait
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("%s: waits (-want +got)\n%s", describe(hits), diff)
	}
}

// noWaitWhenDenied: what waits beside a denial does not wait, and takes no turn.
func noWaitWhenDenied(f *fixture) {
	one := limiter.Hit{Key: "one", Policy: f.queue(), N: 1}
	ban := limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1}
	f.waited([]time.Duration{0, sec}, one, one)
	f.waited([]time.Duration{0, 0, 0}, one, ban, one)
	f.waited([]time.Duration{2 * sec}, one)
	f.waited([]time.Duration{0}, limiter.Hit{Key: "one", Policy: one.Policy, N: 11})
	f.waited([]time.Duration{0}, limiter.Hit{Key: "one", Policy: one.Policy, N: -1})
	f.waited([]time.Duration{2 * sec}, one)
}
