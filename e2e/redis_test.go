//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// patience is the longest that a request may take while Redis is gone: the store's timeout is at most 500 ms, the rest
// is for a busy machine. Envoy's timeout here is as long, and its answer is then 500, so that a hang would be seen.
const patience = 2 * time.Second

// Redis goes away in mid-traffic and comes back. Meanwhile no request hangs or fails, and each rule's
// on_store_failure decides; afterwards the limits hold again, by themselves.
func TestRedisGoesAway(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		away, again func(*redistest.Server)
	}{
		{"killed and restarted", (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"paused and resumed", (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - {key: rule, value: open, rate_limit: {requests_per_unit: 0, unit: second}}
  - {key: rule, value: closed, rate_limit: {requests_per_unit: 1000000, unit: second, on_store_failure: deny}}
  - {key: rule, value: counted, rate_limit: {algorithm: funnel, requests_per_unit: 5, unit: day,
     on_store_failure: deny}}
`), "--store", redis.URL(), "--store-timeout", "500ms") // also on a busy machine every request is counted
			e := proxy{
				Weir: []string{s.GRPC}, Domain: "shop",
				RateLimits: "[{actions: [{request_headers: {header_name: x-rule, descriptor_key: rule}}]}]",
			}.start(t)
			c := newClient(t, "127.0.0.1", e.Listener("front"))
			// The opposite of what their on_store_failure says, so that the difference shows.
			open, closed := c.goOn(t, "/", "X-Rule", "open"), c.goOn(t, "/", "X-Rule", "closed")
			flows := func(openStatus, closedStatus int) {
				t.Helper()
				since := time.Now()
				await(t, 30*time.Second, "answered as it should be", func() bool {
					return open.count(openStatus, since) > 50 && closed.count(closedStatus, since) > 50
				})
			}
			flows(429, 200)
			tt.away(redis)
			flows(200, 429)
			tt.again(redis)
			flows(429, 200)

			samples := append(open.stop(), closed.stop()...)
			if got := tally(samples); got[200]+got[429] != len(samples) {
				t.Errorf("statuses %v: a request failed", got)
			}
			took := longest(samples)
			t.Logf("%d requests, the longest took %s", len(samples), took)
			if took > patience {
				t.Errorf("a request took %s, want less than %s", took, patience)
			}
			if got := tally(c.burst(t.Context(), 8, "/", "X-Rule", "counted")); got[200] != 5 || got[429] != 3 {
				t.Errorf("statuses %v after Redis is back, want 5 times 200 and 3 times 429", got)
			}
		})
	}
}
