//go:build e2e

package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// regionRules are the answers of docs/tasks/regions.md.
const regionRules = `
domain: shop
descriptors:
  - {key: home, rate_limit: {store: home, algorithm: funnel, requests_per_unit: 60, unit: second}}
  - key: leased
    rate_limit: {store: home, algorithm: sliding_log, requests_per_unit: 2000, unit: hour, consistency: leased, lease_for: 60s}
  - {key: parts, rate_limit: {scope: regions, algorithm: funnel, requests_per_unit: 200, unit: second, burst: 100}}
`

// Three regions, each with a Redis of its own, share limits. The Redis of the first is their home, 150 ms away from the
// others. With 90, 9 and 1 percent of the load, they never admit more than the limit; the log has how much of it.
func TestRegions(t *testing.T) {
	t.Parallel()
	const long = 3 * time.Second
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	far := startFaultyProxy(t, servers[0].Addr())
	far.set(manner{delay: 150 * time.Millisecond})
	rules, homes := ruleFile(t, regionRules), []string{servers[0].Addr(), far.addr, far.addr}
	var fleet []*weir
	for i, region := range []string{"eu", "us", "ap"} {
		fleet = append(fleet, startWeir(t, rules, "--region", region, "--regions", "eu=60,us=30,ap=10", "--store",
			servers[i].URL(), "--named-store", "home=redis://"+homes[i]+"/0?timeout=10s", "--store-timeout", "5s",
			"--on-store-failure", "deny")) // the time is not what is tested
	}
	for _, tt := range []struct {
		key              string
		inSecond, inTest int // bounds
		pause            time.Duration
	}{
		{"home", 60 + 60, 60 + 60*int(long/time.Second), 100 * time.Millisecond},
		{"leased", 2000, 2000, 10 * time.Millisecond},
		{"parts", 100 + 200, 100 + 200*int(long/time.Second), 100 * time.Millisecond},
	} {
		t.Run(tt.key, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), long)
			defer cancel()
			var mu sync.Mutex
			var wg sync.WaitGroup
			var passed []decided
			for i, callers := range []int{18, 2, 1} {
				wg.Go(func() {
					p, _ := flood(ctx, t, fleet[i:i+1], tt.key, callers, tt.pause)
					mu.Lock()
					defer mu.Unlock()
					passed = append(passed, p...)
				})
			}
			wg.Wait()
			slices.SortFunc(passed, func(a, b decided) int { return a.began.Compare(b.began) })
			most := mostWithin(passed, time.Second)
			t.Logf("%d passed, %.2f of the limit, at most %d in a second", len(passed), float64(len(passed))/float64(tt.inTest),
				most)
			if n := sum(fleet, "weir_lease_answers_total"); tt.key == "leased" && n < 100 {
				t.Errorf("%v requests were decided by permits: too few to tell", n)
			}
			if most > tt.inSecond || tt.key == "leased" && len(passed) > tt.inTest {
				t.Errorf("%d passed in a second, %d in all, want at most %d and %d", most, len(passed), tt.inSecond, tt.inTest)
			}
		})
	}
}
