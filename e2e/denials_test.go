//go:build e2e

package e2e

import (
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// A flood on an exhausted limit costs Redis nothing, and hits that another process refunds are available at once.
func TestFloodOnAUsedUpLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	file := ruleFile(t, `
domain: shop
descriptors:
  - {key: tenant, rate_limit: {algorithm: funnel, requests_per_unit: 5, unit: day}}
`)
	patient := []string{
		"--store", server.URL(), "--store-timeout", "1s",
	} // also on a busy machine every request is counted
	front, other := startWeir(t, file, patient...), startWeir(t, file, patient...)
	e := proxy{
		Weir: []string{front.GRPC}, Domain: "shop",
		RateLimits: "[{actions: [{request_headers: {header_name: x-tenant, descriptor_key: tenant}}]}]",
	}.start(t)
	c := newClient(t, "127.0.0.1", e.Listener("front"))
	commands := startMonitor(t, server)

	if got := tally(c.burst(t.Context(), 8, "/", "X-Tenant", "ann")); got[200] != 5 || got[429] != 3 {
		t.Fatalf("statuses %v of 8 requests under a limit of 5", got)
	}
	proctest.Eventually(t, "answered without Redis", func() bool {
		c.status(t, "/", "X-Tenant", "ann")
		return front.Metric("weir_cached_denials_total") > 0
	})
	before := commands.about(t, server, "tenant=ann")
	if before == 0 {
		t.Fatal("the monitor shows no command about the counter")
	}
	if got := tally(c.burst(t.Context(), 2000, "/", "X-Tenant", "ann")); got[429] != 2000 {
		t.Errorf("statuses %v of a flood on a limit that is used up", got)
	}
	if asked := commands.about(t, server, "tenant=ann") - before; asked != 0 {
		t.Errorf("2,000 denied requests made %d commands of Redis, want none", asked)
	}
	if got := tally(c.burst(t.Context(), 3, "/", "X-Tenant", "bob")); got[200] != 3 {
		t.Errorf("statuses %v of another tenant, want 200", got)
	}

	refund := question("tenant", "ann")
	refund.Descriptors[0].HitsAddend, refund.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(2), true
	if _, err := other.client(t).ShouldRateLimit(t.Context(), refund); err != nil {
		t.Fatal(err)
	}
	passed := 0
	proctest.Eventually(t, "passing what was given back", func() bool {
		if c.status(t, "/", "X-Tenant", "ann") == 200 {
			passed++
		}
		return passed == 2
	})
	if got := tally(c.burst(t.Context(), 50, "/", "X-Tenant", "ann")); got[429] != 50 {
		t.Errorf("statuses %v after what was given back was used, too", got)
	}
}
