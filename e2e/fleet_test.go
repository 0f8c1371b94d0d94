//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"
)

// Ten processes on one Redis share one key, under several times the traffic that its limit allows: in no second do
// more pass than the algorithm lets pass, as if there were one.
func TestTenProcessesShareOneLimit(t *testing.T) {
	fleet := startFleet(t, 10, `
domain: shop
descriptors:
  - {key: log, rate_limit: {algorithm: sliding_log, requests_per_unit: 300, unit: second}}
  - {key: funnel, rate_limit: {algorithm: funnel, requests_per_unit: 300, unit: second, burst: 100}}
  - {key: year, rate_limit: {algorithm: fixed_window, requests_per_unit: 700, unit: year}}
`)
	for _, tt := range []struct {
		key   string
		bound int // in a second
	}{
		{"log", 300},
		{"funnel", 100 + 300},
		{"year", 700},
	} {
		t.Run(tt.key, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			passed, asked := flood(ctx, t, fleet, tt.key, 4, 5*time.Millisecond)
			most := mostWithin(passed, time.Second)
			t.Logf("%d of %d passed, at most %d in a second; the bound is %d", len(passed), asked, most, tt.bound)
			if most > tt.bound {
				t.Errorf("%d passed in a second, want at most %d", most, tt.bound)
			}
			if tt.key == "year" && (len(passed) != tt.bound || asked < 2*tt.bound) {
				t.Errorf("%d of %d passed in all, want %d", len(passed), asked, tt.bound)
			}
			if most < tt.bound/2 {
				t.Errorf("%d passed in a second: the limit was not reached", most)
			}
		})
	}
}
