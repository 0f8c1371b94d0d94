package partnertest

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-ratelimit/weir/internal/metrics/metric"
)

// Series returns the groups' values by series, as Prometheus reads them.
func Series(tb testing.TB, groups ...metric.Group) map[string]string {
	tb.Helper()
	registry := prometheus.NewRegistry()
	for _, g := range groups {
		registry.MustRegister(g)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		tb.Fatalf("the scrape answers %d: %s", w.Code, w.Body)
	}
	series := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if i := strings.LastIndex(line, " "); !strings.HasPrefix(line, "#") {
			series[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return series
}
