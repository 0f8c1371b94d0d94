//go:build e2e

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// While Redis is unreachable, the remaining hits of a limit that fails open are unknown: Envoy sends no headers.
func TestNoHeadersAreInvented(t *testing.T) {
	redis := redistest.Start(t)
	s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - {key: remote_address, rate_limit: {requests_per_unit: 60, unit: hour, on_store_failure: allow}}
`), "--store", redis.URL())
	app := upstream(t, func(http.ResponseWriter, *http.Request) {})
	e := proxy{Weir: []string{s.GRPC}, Upstream: app, Domain: "shop"}.start(t)
	client := &proctest.Client{HTTP: http.DefaultClient, URL: "http://" + e.Listener("front")}
	remaining := func() []string {
		t.Helper()
		res := client.Get(t, "/")
		if res.Status != http.StatusOK {
			t.Fatalf("Envoy answers %d", res.Status)
		}
		return res.Header.Values("X-Ratelimit-Remaining")
	}
	if got := remaining(); len(got) != 1 {
		t.Fatalf("with Redis, x-ratelimit-remaining is %q, want one", got)
	}
	redis.Kill()
	await(t, 30*time.Second, "without headers", func() bool { return len(remaining()) == 0 })
	if got := s.Metric(`weir_decisions_total{domain="shop",limit="",outcome="allowed_on_failure",rule="remote_address"}`); got == 0 {
		t.Error("no request was decided without Redis")
	}
}
