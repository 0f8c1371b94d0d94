package metrics_test

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// only are the series whose names start so.
func only(tb testing.TB, m *metrics.Metrics, prefix string) map[string]string {
	tb.Helper()
	series := scrape(tb, m)
	maps.DeleteFunc(series, func(name, _ string) bool { return !strings.HasPrefix(name, prefix) })
	return series
}

// Hits above 80 % of the limit are near it, as envoyproxy/ratelimit counts them: of 4 hits that fill 5 of 10 to 9, one.
func TestNearLimit(t *testing.T) {
	for _, tt := range []struct {
		rule            string
		ratio           float64
		hits, remaining int64
		want            string
	}{
		{rule("a"), 0.8, 1, 2, "0"},
		{rule("a"), 0.8, 1, 1, "1"},
		{rule("a"), 0.8, 4, 1, "1"},
		{rule("a"), 0.8, 10, 0, "2"},
		{rule("a"), 0.85, 1, 1, "1"}, // 8.5 hits are 8
		{rule("a"), 0, 3, 5, "3"},
		{rule("a"), 1, 10, 0, "0"},
		{"{key: a, rate_limit: {algorithm: token_bucket, requests_per_unit: 10, burst: 100, unit: second}}", 0.8, 1, 15, "1"},
	} {
		m := metrics.New(metrics.Options{MaxRules: 1, NearLimitRatio: tt.ratio})
		set := compile(t, tt.rule)
		m.Prepare(set)
		m.Decided(set.Limits()[0], decide.Allowed, tt.hits, &limiter.Decision{Allowed: true, Remaining: tt.remaining})
		m.Decided(set.Limits()[0], decide.Denied, 1, &limiter.Decision{}) // not charged, and so not near
		got := only(t, m, "weir_hits_near")[`weir_hits_near_limit_total{domain="shop",limit="",rule="a"}`]
		if got != tt.want {
			t.Errorf("%s: %d hits that leave %d, ratio %v: %q near, want %s",
				tt.rule, tt.hits, tt.remaining, tt.ratio, got, tt.want)
		}
	}
}

func TestCachedDenials(t *testing.T) {
	m := newMetrics()
	set := compile(t, rule("a"))
	m.Prepare(set)
	m.Decided(set.Limits()[0], decide.Denied, 5, &limiter.Decision{})
	m.Decided(set.Limits()[0], decide.Denied, 3, &limiter.Decision{Cached: true})
	got := only(t, m, "weir_hits_cached")
	want := map[string]string{`weir_hits_cached_denied_total{domain="shop",limit="",rule="a"}`: "3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Beyond the bound rules count together, also those of requests that the set before has matched, and one that comes
// within it by a reload has series of its own.
func TestMaxRules(t *testing.T) {
	m := metrics.New(metrics.Options{MaxRules: 2, NearLimitRatio: 0.8})
	two := "{key: two, rate_limits: [{requests_per_unit: 1, unit: second}, {requests_per_unit: 1, unit: day}]}"
	before := compile(t, rule("one"), two, rule("three"), rule("four"))
	m.Prepare(before)
	for _, l := range before.Limits() {
		m.Decided(l, decide.Allowed, 1, &nearly)
	}
	series := func(domain, limit, rule string) string {
		return `weir_decisions_total{domain="` + domain + `",limit="` + limit + `",outcome="allowed",rule="` + rule + `"}`
	}
	check := func(without string, want map[string]string) {
		t.Helper()
		got := only(t, m, "weir_decisions_total")
		maps.DeleteFunc(got, func(name, _ string) bool { return !strings.Contains(name, `"allowed"`) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("decisions (-want +got):\n%s", diff)
		}
		if got := scrape(t, m)["weir_rules_without_series"]; got != without {
			t.Errorf("%s rules without series, want %s", got, without)
		}
	}
	check("2", map[string]string{
		series("shop", "", "one"): "1", series("shop", "1", "two"): "1", series("shop", "2", "two"): "1",
		series("(other)", "(other)", "(other)"): "2",
	})

	after := compile(t, rule("one"), rule("four"), rule("five"))
	m.Prepare(after)
	m.Decided(after.Limits()[1], decide.Allowed, 1, &nearly)
	m.Decided(before.Limits()[3], decide.Allowed, 1, &nearly) // three, which is gone
	check("1", map[string]string{
		series("shop", "", "one"): "1", series("shop", "", "four"): "1", series("(other)", "(other)", "(other)"): "3",
	})
}

// The names, labels and sums by which envoyproxy/ratelimit's users know them.
func TestClassic(t *testing.T) {
	m := metrics.New(metrics.Options{MaxRules: 10, NearLimitRatio: 0.8, Classic: true})
	deep := "{key: path, value: /a, descriptors: [{key: user, rate_limit: {requests_per_unit: 10, unit: second}, " +
		"descriptors: [{key: third, rate_limit: {requests_per_unit: 10, unit: second}}]}]}"
	address := "{key: remote_address, value: 10.1.2.3, shadow_mode: true, " +
		"rate_limit: {requests_per_unit: 10, unit: second}}"
	set := compile(t, rule("client"), deep, address)
	m.Prepare(set)
	for _, l := range set.Limits() {
		m.Decided(l, decide.Allowed, 2, &nearly)
	}
	client := set.Limits()[0]
	m.Decided(client, decide.Denied, 3, &limiter.Decision{})
	m.Decided(client, decide.Denied, 4, &limiter.Decision{Cached: true})
	m.Decided(client, decide.AllowedOnFailure, 5, &limiter.Decision{})
	m.Decided(set.Limits()[3], decide.ShadowDenied, 6, &limiter.Decision{})
	m.StoreFailed(limiter.ErrUnavailable)
	m.Requested(0)

	want := map[string]string{
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"}`:            "1",
		`ratelimit_service_should_rate_limit_error{err_type="service_error"}`:          "0",
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`:              "1",
		`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}`: "1",
		`ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"}`:   "0",
	}
	for _, line := range []struct {
		key1, key2                               string
		total, over, within, near, local, shadow int
	}{
		{"client", "", 14, 7, 2, 1, 4, 0},
		{"path_/a", "user", 4, 0, 4, 2, 0, 0}, // with the level below
		{"remote_address_10_1_2_3", "", 8, 6, 2, 1, 0, 6},
	} {
		labels := `{domain="shop",key1="` + line.key1 + `",key2="` + line.key2 + `"}`
		for name, n := range map[string]int{
			"total_hits": line.total, "over_limit": line.over, "within_limit": line.within, "near_limit": line.near,
			"over_limit_with_local_cache": line.local, "shadow_mode": line.shadow,
		} {
			want["ratelimit_service_rate_limit_"+name+labels] = strconv.Itoa(n)
		}
	}
	got := only(t, m, "ratelimit_")
	maps.DeleteFunc(got, func(name, _ string) bool { return strings.Contains(name, "_bucket{") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	for name := range only(t, newMetrics(), "ratelimit_") {
		t.Errorf("%s is there though nobody asked for it", name)
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
