package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// compile makes a set of the rules of domain shop.
func compile(tb testing.TB, rules ...string) *descriptors.Set {
	tb.Helper()
	return casetest.Compile(tb, "domain: shop\ndescriptors:\n  - "+strings.Join(rules, "\n  - "))
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
	if n := testing.AllocsPerRun(100, func() { m.Answered(set.Domain("shop"), true) }); n != 0 {
		t.Errorf("a response allocates %v times, want 0", n)
	}
	for name, l := range map[string]*descriptors.Limit{"live": set.Limits()[1], "of the set before": old.Limits()[0]} {
		if n := testing.AllocsPerRun(100, func() { m.Decided(l, decide.Allowed, 1, &nearly) }); n != 0 {
			t.Errorf("a decision of a limit that is %s allocates %v times, want 0", name, n)
		}
	}
}

// answered is an error that Redis answers.
type answered string

func (e answered) Error() string { return string(e) }
func (answered) RedisError()     {}
