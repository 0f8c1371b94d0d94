//go:build e2e

package e2e

import (
	"net/http"
	"testing"
	"time"
)

// The upstream returns what a request has cost. Weir charges it when the request is done, also beyond the limit: the
// client then waits until it has paid.
func TestCostFromTheResponse(t *testing.T) {
	t.Parallel()
	c := withCosts(t, "[{actions: [{remote_address: {}}]}, "+
		"{actions: [{remote_address: {}}], apply_on_stream_done: true, hits_addend: {format: '%RESP(x-cost)%'}}]", "14")
	if got := c.status(t, "/"); got != 200 {
		t.Fatalf("the first request: status %d, want 200", got)
	}
	// 15 hits are in a funnel of 10 that leaks one an hour: after 6 hours there is room for another.
	checkSeconds(t, c.awaitRemaining(t, "0"), "Retry-After", 6*3600)
	if got := c.status(t, "/"); got != 429 {
		t.Errorf("the second request: status %d, want 429", got)
	}
}

// costs is a client of an Envoy whose route has rate_limits of its own.
type costs struct{ *client }

// withCosts starts it all; the upstream answers with the header x-cost. The path /look asks for 0 hits.
func withCosts(t *testing.T, rateLimits, cost string) costs {
	t.Helper()
	s := startWeir(t, ruleFile(t, `
domain: llm
descriptors:
  - key: remote_address
    rate_limit: {algorithm: funnel, requests_per_unit: 1, unit: hour, burst: 10, charge_denied: full}
`))
	e := proxy{
		Weir: []string{s.GRPC}, Domain: "llm", PerFilter: rateLimits,
		Look:     "[{actions: [{remote_address: {}}], hits_addend: {number: 0}}]",
		Upstream: upstream(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Cost", cost) }),
	}.start(t)
	return costs{newClient(t, "127.0.0.1", e.Listener("front"))}
}

// awaitRemaining asks for 0 hits until that much remains: Envoy reports the cost of a finished request without
// waiting for the answer.
func (c costs) awaitRemaining(t *testing.T, want string) (look sample) {
	t.Helper()
	await(t, 30*time.Second, want+" remaining", func() bool {
		look = c.get(t.Context(), "/look")
		return look.header.Get("X-Ratelimit-Remaining") == want
	})
	return look
}
