package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// compile makes a set of the rules of domain shop.
func compile(tb testing.TB, rules ...string) *descriptors.Set {
	tb.Helper()
	text := "domain: shop\ndescriptors:\n  - " + strings.Join(rules, "\n  - ")
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(text)}})
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// rule is one with a limit.
func rule(key string) string {
	return fmt.Sprintf("{key: %s, rate_limit: {requests_per_unit: 10, unit: second}}", key)
}

// nearly is an answer that leaves 1 of 10: the hit was near the limit.
var nearly = limiter.Decision{Allowed: true, Remaining: 1}

func newMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{MaxRules: 100, NearLimitRatio: 0.8})
}

// scrape returns the values by series, as Prometheus reads them.
func scrape(tb testing.TB, m *metrics.Metrics) map[string]string {
	tb.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(tb.Context(), "GET", "/metrics", nil))
	if w.Code != 200 {
		tb.Fatalf("the scrape answers %d: %s", w.Code, w.Body)
	}
	series := map[string]string{}
	for line := range strings.Lines(w.Body.String()) {
		if i := strings.LastIndex(line, " "); strings.HasPrefix(line, "weir_") || strings.HasPrefix(line, "ratelimit_") {
			series[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return series
}

// decisions are the series of limits.
func decisions(tb testing.TB, m *metrics.Metrics) map[string]string {
	tb.Helper()
	series := scrape(tb, m)
	maps.DeleteFunc(series, func(name, _ string) bool {
		return !strings.HasPrefix(name, "weir_decisions_total") && !strings.HasPrefix(name, "weir_hits_")
	})
	return series
}

// A limit shows what was decided by it, under its name or its place in the rule; one that nobody asked shows
// nothing.
func TestDecisions(t *testing.T) {
	m := newMetrics()
	set := compile(t,
		"{key: one, rate_limit: {name: per-client, requests_per_unit: 10, unit: second}}",
		"{key: two, rate_limits: [{requests_per_unit: 1, unit: second}, {requests_per_unit: 1, unit: day}]}",
		rule("plain"), rule("silent"),
	)
	m.Prepare(set)
	one, second, plain := set.Limits()[0], set.Limits()[2], set.Limits()[3]
	m.Decided(one, decide.Allowed, 3, &nearly)
	m.Decided(one, decide.Allowed, 1, &nearly)
	m.Decided(one, decide.Denied, 5, &nearly)
	m.Decided(second, decide.ShadowDenied, 1, &nearly)
	m.Decided(plain, decide.Allowed, 0, &nearly)
	m.Decided(plain, decide.Allowed, -4, &nearly)
	m.Decided(&descriptors.Limit{ID: -1}, decide.Denied, 1, &nearly)

	want := map[string]string{
		`weir_hits_refunded_total{domain="shop",limit="",rule="plain"}`:           "4",
		`weir_hits_near_limit_total{domain="shop",limit="per-client",rule="one"}`: "2", // the tenth hit each
		`weir_hits_near_limit_total{domain="shop",limit="2",rule="two"}`:          "0",
		`weir_hits_near_limit_total{domain="shop",limit="",rule="plain"}`:         "0",
		`weir_hits_near_limit_total{domain="",limit="(request)",rule=""}`:         "0",
	}
	for _, line := range []struct{ domain, rule, limit, outcome, decisions, hits string }{
		{"shop", "one", "per-client", "allowed", "2", "4"},
		{"shop", "one", "per-client", "denied", "1", "5"},
		{"shop", "two", "2", "allowed", "0", "0"},
		{"shop", "two", "2", "denied", "0", "0"},
		{"shop", "two", "2", "shadow_denied", "1", "1"},
		{"shop", "plain", "", "allowed", "2", "0"},
		{"shop", "plain", "", "denied", "0", "0"},
		{"", "", "(request)", "allowed", "0", "0"},
		{"", "", "(request)", "denied", "1", "1"},
	} {
		labels := fmt.Sprintf(`{domain=%q,limit=%q,outcome=%q,rule=%q}`, line.domain, line.limit, line.outcome, line.rule)
		want["weir_decisions_total"+labels], want["weir_hits_total"+labels] = line.decisions, line.hits
	}
	if diff := cmp.Diff(want, decisions(t, m)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

const allowed = `weir_decisions_total{domain="shop",limit="",outcome="allowed",rule=%q}`

// A limit keeps its counts over reloads, wherever its rule has moved to; a request that was matched by the set
// before is counted, too; a limit that is gone takes its series with it, and does not come back by a request that
// is still under way.
func TestReload(t *testing.T) {
	m := newMetrics()
	before := compile(t, rule("gone"), rule("stays"))
	m.Prepare(before)
	gone, stays := before.Limits()[0], before.Limits()[1]
	m.Decided(gone, decide.Allowed, 1, &nearly)
	m.Decided(stays, decide.Allowed, 1, &nearly)

	after := compile(t, rule("stays"), rule("new"))
	m.Prepare(after)
	m.Decided(after.Limits()[0], decide.Allowed, 1, &nearly)
	m.Decided(after.Limits()[1], decide.Allowed, 1, &nearly)
	m.Decided(stays, decide.Allowed, 1, &nearly)
	m.Decided(gone, decide.Allowed, 1, &nearly)

	series := scrape(t, m)
	for rule, want := range map[string]string{"stays": "3", "new": "1", "gone": ""} {
		if got := series[fmt.Sprintf(allowed, rule)]; got != want {
			t.Errorf("rule %s has %q decisions allowed, want %q", rule, got, want)
		}
	}
}

// A limit that a request brings along counts as the limit of the rule that it matched.
func TestOverride(t *testing.T) {
	m := newMetrics()
	set := compile(t, rule("other"), rule("key"))
	m.Prepare(set)
	r := set.Domain("shop").Match([]descriptors.Entry{{Key: "key", Value: "v"}})
	for n := range uint32(100) {
		l, err := r.Override(n, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		m.Decided(l, decide.Allowed, 1, &nearly)
	}
	series := decisions(t, m)
	if got := series[fmt.Sprintf(allowed, "key")]; got != "100" || len(series) != 5 {
		t.Errorf("%s decisions of the rule in %d series, want 100 in 5: %v", got, len(series), series)
	}
}

func TestStoreFailed(t *testing.T) {
	m := newMetrics()
	m.StoreFailed(fmt.Errorf("%w: redis: %w", limiter.ErrUnavailable, context.DeadlineExceeded))
	m.StoreFailed(fmt.Errorf("%w: redis: %w", limiter.ErrUnavailable, redis.ErrPoolTimeout))
	m.StoreFailed(fmt.Errorf("%w: redis: %w",
		limiter.ErrUnavailable, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}))
	m.StoreFailed(fmt.Errorf("%w: the last call: %w", guard.ErrBreakerOpen, context.DeadlineExceeded))
	m.StoreFailed(errors.New("connection refused"))
	m.StoreFailed(&net.OpError{Op: "dial", Err: errors.New("connection refused")})
	m.StoreFailed(fmt.Errorf("%w: redis: %w", limiter.ErrUnavailable, limiter.ErrLate))
	m.StoreFailed(fmt.Errorf("%w: redis: %w", limiter.ErrUnavailable, answered("OOM")))
	s := scrape(t, m)
	for reason, want := range map[string]string{
		"timeout": "3", "breaker_open": "1", "unreachable": "2", "late": "1", "error": "1",
	} {
		if got := s[`weir_store_errors_total{reason="`+reason+`"}`]; got != want {
			t.Errorf("%s errors by %s, want %s", got, reason, want)
		}
	}
}

type slowStore struct{ takes time.Duration }

func (s slowStore) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	time.Sleep(s.takes) // in the virtual time of synctest
	return limiter.ErrUnavailable
}

// inStore is the route of a limit in the named store.
type inStore string

func (s inStore) StoreName() string { return string(s) }

func TestTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics()
		store := take.Of(slowStore{7 * time.Millisecond}).Behind(m.Timed("", "b"))
		first, named := limiter.Hit{}, limiter.Hit{Route: inStore("b")}
		for _, hits := range [][]limiter.Hit{{first}, {first, first}, {named}, {named, first}} {
			if err := store.Take(t.Context(), hits, nil); !errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("Take returns %v, want the store's own error", err)
			}
		}
		m.Requested(3 * time.Millisecond)
		s := scrape(t, m)
		for name, want := range map[string]string{
			`weir_store_take_seconds_bucket{store="(default)",le="0.005"}`: "0",
			`weir_store_take_seconds_bucket{store="(default)",le="0.01"}`:  "2",
			`weir_store_take_seconds_count{store="b"}`:                     "2",
			`weir_request_seconds_bucket{le="0.0025"}`:                     "0", `weir_request_seconds_bucket{le="0.005"}`: "1",
		} {
			if s[name] != want {
				t.Errorf("%s is %s, want %s", name, s[name], want)
			}
		}
	})
}

func TestDecidedAllocatesNothing(t *testing.T) {
	m := newMetrics()
	old, set := compile(t, rule("a")), compile(t, rule("b"), rule("a"))
	m.Prepare(set)
	for name, l := range map[string]*descriptors.Limit{"live": set.Limits()[1], "of the set before": old.Limits()[0]} {
		if n := testing.AllocsPerRun(100, func() { m.Decided(l, decide.Allowed, 1, &nearly) }); n != 0 {
			t.Errorf("a decision of a limit that is %s allocates %v times, want 0", name, n)
		}
	}
}

func BenchmarkDecided(b *testing.B) {
	m := newMetrics()
	set := compile(b, rule("a"))
	m.Prepare(set)
	l := set.Limits()[0]
	for b.Loop() {
		m.Decided(l, decide.Allowed, 1, &nearly)
	}
}

// answered is an error that Redis answers.
type answered string

func (e answered) Error() string { return string(e) }
func (answered) RedisError()     {}
