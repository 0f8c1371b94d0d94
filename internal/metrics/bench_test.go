package metrics_test

import (
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func BenchmarkDecided(b *testing.B) {
	m := newMetrics()
	set := compile(b, rule("a"))
	m.Prepare(set)
	l := set.Limits()[0]
	for b.Loop() {
		m.Decided(l, decide.Allowed, 1, &nearly)
	}
}

// BenchmarkScrape is GET /metrics after every rule was asked. bytes are what Prometheus gets, uncompressed.
func BenchmarkScrape(b *testing.B) {
	for _, size := range []struct{ rules, own int }{
		{1000, 10_000}, {10_000, 10_000}, {100_000, 10_000}, {100_000, 100_000},
	} {
		b.Run(fmt.Sprintf("rules=%d/max=%d", size.rules, size.own), func(b *testing.B) {
			m := metrics.New(metrics.Options{MaxRules: size.own, NearLimitRatio: 0.8})
			rules := make([]string, size.rules)
			for i := range rules {
				rules[i] = rule(fmt.Sprint("rule", i))
			}
			set := compile(b, rules...)
			m.Prepare(set)
			for _, l := range set.Limits() {
				m.Decided(l, decide.Allowed, 1, &nearly)
			}
			handler := m.Handler()
			var bytes int
			for b.Loop() {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), "GET", "/metrics", nil))
				bytes = w.Body.Len()
			}
			b.ReportMetric(float64(bytes), "bytes")
		})
	}
}

// BenchmarkSample measures a sample, which is taken every 5 seconds, of this number of rules that all have had
// requests.
func BenchmarkSample(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			m := metrics.New(metrics.Options{MaxRules: n, NearLimitRatio: 0.8})
			rules := make([]string, n)
			for i := range rules {
				rules[i] = rule(fmt.Sprint("rule-", i))
			}
			set := compile(b, strings.Join(rules, "\n  - "))
			m.Prepare(set)
			h := admin.NewHistory(m.Sample)
			for b.Loop() {
				b.StopTimer()
				for _, l := range set.Limits() {
					m.Decided(l, decide.Allowed, 1, &limiter.Decision{Allowed: true})
				}
				b.StartTimer()
				h.Read()
				m.Sample(func(adminapi.LimitCounts) {})
			}
		})
	}
}
