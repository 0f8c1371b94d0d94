//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// The keys of a limit are spread over a cluster's masters: each does its share of the work, so that more masters bear
// more. On a machine of two cores that shows in the masters' CPU, not in requests a second.
func TestClusterSharesTheWork(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - {key: user, rate_limit: {algorithm: funnel, requests_per_unit: 1000, unit: second}}
`), "--store", cluster.URL(), "--store-timeout", "1s")
	service := s.client(t)
	var masters []*redis.Client
	for _, m := range cluster.Masters {
		c := redis.NewClient(&redis.Options{Addr: m.Addr(), Protocol: 2})
		t.Cleanup(func() { _ = c.Close() })
		masters = append(masters, c)
	}
	ask := func(d time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		var wg sync.WaitGroup
		for w := range 32 {
			wg.Go(func() {
				for i := w; ctx.Err() == nil; i++ {
					if _, err := service.ShouldRateLimit(context.WithoutCancel(ctx),
						question("user", fmt.Sprint("u", i%3000))); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	ask(300 * time.Millisecond) // loads the scripts
	calls, used, all := make([]float64, len(masters)), make([]float64, len(masters)), 0.0
	for i, m := range masters {
		calls[i], used[i] = -scriptCalls(t, m), -cpu(t, m)
	}
	ask(longtest.Pick(time.Second, 2*time.Second))
	for i, m := range masters {
		calls[i], used[i] = calls[i]+scriptCalls(t, m), used[i]+cpu(t, m)
		all += calls[i]
	}
	for i := range masters {
		t.Logf("master %d: %.0f calls, %.2f s of CPU", i+1, calls[i], used[i])
		if share := calls[i] / all; share < 0.25 || share > 0.42 {
			t.Errorf("master %d has %.0f %% of the calls, want about a third", i+1, 100*share)
		}
	}
}

func scriptCalls(t *testing.T, c *redis.Client) float64 {
	t.Helper()
	return info(t, c, "commandstats", `cmdstat_evalsha:calls=([0-9]+)`)
}
