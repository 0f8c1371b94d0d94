//go:build e2e

package e2e

import (
	"net/http"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// A request through Envoy is one trace: the span of the rate limit service is a part of Envoy's.
func TestATraceThroughEnvoy(t *testing.T) {
	collector := partnertest.StartCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.Endpoint)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	weir := startWeir(t, ruleFile(t, `
domain: shop
descriptors: [{key: remote_address, rate_limit: {requests_per_unit: 1, unit: year}}]
`), "--otel-traces")
	envoy := proxy{Weir: []string{weir.GRPC}, Domain: "shop", Collector: collector.Addr}.start(t)
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		resp, err := http.Get("http://" + envoy.Listener("front"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("status %d, want %d", resp.StatusCode, want)
		}
	}
	proctest.Eventually(t, "two traces of Envoy with a span of the rate limit service", func() bool {
		ofEnvoy := map[string]bool{} // by trace and ID
		spans := collector.Spans()
		for _, s := range spans {
			if s.Service == "envoy" {
				ofEnvoy[s.Trace+s.ID] = true
			}
		}
		denied := map[bool]int{}
		for _, s := range spans {
			if s.Service == "weir" && ofEnvoy[s.Trace+s.Parent] {
				denied[s.Bools["weir.denied"]]++
			}
		}
		return denied[false] == 1 && denied[true] == 1
	})
}
