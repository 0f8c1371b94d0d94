//go:build e2e

package envoymodule

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// shop limits each key to 50 requests a year, and the key teapot to none, with a response of its own.
const shop = `
domain: shop
descriptors:
  - key: key
    value: teapot
    rate_limit: {unit: year, requests_per_unit: 0}
    response: {headers: {X-Kettle: "no", Content-Type: application/json}, body: '{"tea": false}'}
  - key: key
    value: shadowy
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: key
    rate_limit: {unit: year, requests_per_unit: 50, name: per-key}
`

// Two workers share the counters, in memory and in Redis: of 400 requests at once exactly the limit passes.
func TestExactCountsOfTwoWorkers(t *testing.T) {
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			flags := []string{rules(t, shop)}
			if store == "redis" {
				flags = append(flags, "--store="+redistest.Start(t).URL(), "--store-timeout=5s")
			}
			e := start(t, listener("front", []string{moduleFilter(config(flags, byKey))}, toUpstream))
			c := newClient(t, e, "front")
			var passed, denied atomic.Int64
			var wait sync.WaitGroup
			for range 16 {
				wait.Go(func() {
					for range 25 {
						r, err := c.Try(t, "/", "x-key", "ann")
						switch {
						case err != nil:
							t.Error(err)
						case r.Status == http.StatusOK:
							passed.Add(1)
						case r.Status == http.StatusTooManyRequests:
							denied.Add(1)
						default:
							t.Errorf("status %d", r.Status)
						}
					}
				})
			}
			wait.Wait()
			if passed.Load() != 50 || denied.Load() != 350 {
				t.Errorf("%d passed and %d were denied, want 50 and 350", passed.Load(), denied.Load())
			}
			for name, want := range map[string]uint64{"ok": 50, "over_limit": 350, "error": 0} {
				if got := e.Stat("dynamicmodulescustom." + name); got != want {
					t.Errorf("Envoy's counter %s is %d, want %d", name, got, want)
				}
			}
		})
	}
}
