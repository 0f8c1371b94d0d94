//go:build e2e

package envoymodule

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// A leaky queue releases a request each 500 ms. Of 6 at once, 4 reach the upstream one after the other, and 2, for
// which the queue has no room, are denied at once. No worker waits meanwhile. Clients that leave end the wait.
func TestQueueDelays(t *testing.T) {
	const queue = `
domain: shop
descriptors:
  - {key: key, value: free, rate_limit: {unlimited: true}}
  - {key: key, value: slow, rate_limit: {algorithm: leaky_queue, requests_per_unit: 1, unit: minute, burst: 10}}
  - {key: key, rate_limit: {algorithm: leaky_queue, requests_per_unit: 2, unit: second, burst: 3}}
`
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			addr := proctest.FreeAddr(t)
			flags := []string{rules(t, queue), "--http-addr=" + addr}
			if store == "redis" {
				flags = append(flags, "--store="+redistest.Start(t).URL(), "--store-timeout=5s")
			}
			var mu sync.Mutex
			var arrivals []time.Time
			up := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Key") != "ann" {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				arrivals = append(arrivals, time.Now())
			})
			e := proctest.StartEnvoyWith(t, bootstrap([]string{
				listener("front", []string{moduleFilter(config(flags, byKey))}, toUpstream),
			}, []string{cluster("upstream", up)}), proctest.EnvoyOptions{Workers: 1, Modules: moduleFolder(t)})
			c := newClient(t, e, "front")
			c.Get(t, "/", "x-key", "free")
			began := time.Now()
			var passed, denied atomic.Int64
			var wait sync.WaitGroup
			for range 6 {
				wait.Go(func() {
					switch r, err := c.Try(t, "/", "x-key", "ann"); {
					case err != nil:
						t.Error(err)
					case r.Status == http.StatusOK:
						passed.Add(1)
					case r.Status == http.StatusTooManyRequests:
						denied.Add(1)
					}
				})
			}
			for range 20 { // beside those that wait
				if r := c.Get(t, "/", "x-key", "free"); r.Status != http.StatusOK {
					t.Errorf("a request that waits for nothing: status %d", r.Status)
				}
			}
			quick := time.Since(began)
			wait.Wait()
			if passed.Load() != 4 || denied.Load() != 2 {
				t.Fatalf("%d passed and %d were denied, want 4 and 2", passed.Load(), denied.Load())
			}
			// A busy machine makes a request late, never early. Redis's clock may differ by a bit.
			var after []time.Duration
			for i, at := range arrivals {
				after = append(after, at.Sub(began).Round(time.Millisecond))
				if due := time.Duration(i) * 500 * time.Millisecond; after[i] < due-10*time.Millisecond {
					t.Errorf("request %d has reached the upstream after %s, want %s or more", i, after[i], due)
				}
			}
			t.Logf("arrivals at the upstream: %v; 20 others took %s", after, quick)

			c.Get(t, "/", "x-key", "slow")
			delayed := func(n float64) {
				proctest.Eventually(t, fmt.Sprintf("%v requests are delayed", n), func() bool {
					return metric(t, addr, "weir_delayed_requests") == n
				})
			}
			ctx, leave := context.WithCancel(t.Context())
			for range 5 {
				wait.Go(func() {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, http.NoBody)
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("X-Key", "slow")
					if r, err := c.Do(req); err == nil {
						t.Errorf("answered: %+v", r)
					}
				})
			}
			delayed(5)
			leave()
			wait.Wait()
			delayed(0)
		})
	}
}
