package middleware_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/middleware"
)

var twoPerMinute = limiter.Params{Algorithm: limiter.Funnel, Limit: 2, Window: time.Minute}

// broken is a store that cannot decide.
type broken struct{}

func (broken) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return limiter.ErrUnavailable
}

// answer is the part of an HTTP response that tests compare.
type answer struct {
	status                              int
	policy, rateLimit, retryAfter, body string
}

func get(t *testing.T, url string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	h := res.Header
	return answer{res.StatusCode, h.Get("RateLimit-Policy"), h.Get("RateLimit"), h.Get("Retry-After"), string(body)}
}

func serve(
	t *testing.T, l *limiter.Limiter, key func(*http.Request) string, o middleware.Options, h http.HandlerFunc,
) string {
	t.Helper()
	server := httptest.NewServer(middleware.HTTP(l, key, o)(h))
	t.Cleanup(server.Close)
	return server.URL
}

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

func TestHTTP(t *testing.T) {
	url := serve(t, casetest.StillLimiter(t, twoPerMinute), middleware.RemoteIP, middleware.Options{}, hello)
	policy := `"test";q=2;w=60`
	for i, want := range []answer{
		{200, policy, `"test";r=1;t=30`, "", "hello"},
		{200, policy, `"test";r=0;t=60`, "", "hello"},
		{429, policy, `"test";r=0;t=30`, "30", "rate limit exceeded\n"},
	} {
		if got := get(t, url); got != want {
			t.Errorf("request %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestHTTPBySeveralPolicies(t *testing.T) {
	daily := limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: 24 * time.Hour}
	url := serve(t, casetest.StillLimiter(t, twoPerMinute, daily), middleware.RemoteIP, middleware.Options{}, hello)
	policies := `"test";q=2;w=60, "test-2";q=1;w=86400`
	for i, want := range []answer{
		{200, policies, `"test-2";r=0;t=86400`, "", "hello"},
		{429, policies, `"test-2";r=0;t=86400`, "86400", "rate limit exceeded\n"},
	} {
		if got := get(t, url); got != want {
			t.Errorf("request %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestHTTPWithoutKeyOrWithoutHope(t *testing.T) {
	never := casetest.StillLimiter(t, limiter.Params{Algorithm: limiter.Funnel, DenyAll: true, Window: time.Second})
	byHeader := func(r *http.Request) string { return r.URL.Query().Get("client") }
	url := serve(t, never, byHeader, middleware.Options{}, hello)
	if got, want := get(t, url), (answer{200, "", "", "", "hello"}); got != want {
		t.Errorf("without a key: %+v, want %+v", got, want)
	}
	want := answer{429, `"test";q=0;w=1`, `"test";r=0;t=0`, "", "rate limit exceeded\n"}
	if got := get(t, url+"?client=ann"); got != want {
		t.Errorf("by a limit of 0: %+v, want %+v and no Retry-After", got, want)
	}
}

func TestHTTPWithoutStore(t *testing.T) {
	for name, tt := range map[string]struct {
		closed bool
		want   answer
	}{
		"open":   {false, answer{200, "", "", "", "hello"}},
		"closed": {true, answer{503, "", "", "", "rate limit not available\n"}},
	} {
		var seen error
		o := middleware.Options{FailClosed: tt.closed, OnError: func(err error) { seen = err }}
		got := get(t, serve(t, casetest.Limiter(t, broken{}, twoPerMinute), middleware.RemoteIP, o, hello))
		if got != tt.want || !errors.Is(seen, limiter.ErrUnavailable) {
			t.Errorf("fail %s: %+v and error %v, want %+v", name, got, seen, tt.want)
		}
	}
}

// A request in flight holds its slot until the handler has returned or panicked.
func TestHTTPInFlight(t *testing.T) {
	l := casetest.StillLimiter(t, limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute})
	var url string
	var inner answer
	url = serve(t, l, middleware.RemoteIP, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/outer" {
			inner = get(t, url+"/inner") //nolint:contextcheck // a request of its own
		}
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
		hello(w, r)
	})
	policy := `"test";q=1;qu="concurrent-requests"`
	for range 2 {
		if got := get(t, url+"/outer"); got.status != 200 || got.policy != policy {
			t.Errorf("%+v, want 200 by %s", got, policy)
		}
		if inner.status != 429 {
			t.Errorf("a second request in flight: %+v, want 429", inner)
		}
		if res, err := http.Get(url + "/panic"); err == nil {
			_ = res.Body.Close()
		}
	}
}

func TestHTTPDelays(t *testing.T) {
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := casetest.Limiter(t, s, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 20, Window: time.Second})
	url := serve(t, l, middleware.RemoteIP, middleware.Options{}, hello)
	start := time.Now()
	for range 5 {
		if got := get(t, url); got.status != 200 {
			t.Errorf("%+v, want 200", got)
		}
	}
	if took := time.Since(start); took < 190*time.Millisecond {
		t.Errorf("5 requests of 20 a second took %s, want at least 200ms", took)
	}
}

// A delayed request whose deadline comes first gets an error response, and is no longer in flight.
func TestDelayOutlastsDeadline(t *testing.T) {
	l := casetest.StillLimiter(t, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: time.Minute, Burst: 9},
		limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute})
	limited := middleware.HTTP(l, middleware.RemoteIP, middleware.Options{})(http.HandlerFunc(hello))
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		limited.ServeHTTP(w, httptest.NewRequestWithContext(soon(), http.MethodGet, "/", nil))
		if w.Code != want {
			t.Errorf("%d %q, want %d", w.Code, w.Body, want)
		}
	}
}

// failing is a store that returns an error after the end of a context, and can refuse refunds.
type failing struct {
	limiter.Store

	refuses bool
}

func (s *failing) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if ctx.Err() != nil || s.refuses && hits[0].N < 0 {
		return limiter.ErrUnavailable
	}
	return s.Store.Take(ctx, hits, out)
}

// A request in flight is released after the client has cancelled the request. An error of the release is reported.
func TestRelease(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		one := limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute}
		l := casetest.Limiter(t, &failing{casetest.StillStore(t), refuses}, one)
		var failed error
		o := middleware.Options{OnError: func(err error) { failed = err }}
		ctx, cancel := context.WithCancel(t.Context())
		leaves := func(http.ResponseWriter, *http.Request) { cancel() }
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		middleware.HTTP(l, middleware.RemoteIP, o)(http.HandlerFunc(leaves)).ServeHTTP(httptest.NewRecorder(), r)
		d, err := l.Allow(t.Context(), "192.0.2.1")
		if err != nil || d.Allowed == refuses || errors.Is(failed, limiter.ErrUnavailable) != refuses {
			t.Errorf("after the release: %+v, %v, reported %v", d, err, failed)
		}
	}
}

func TestRemoteIP(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:1234": "192.0.2.1", "[2001:db8::1]:80": "2001:db8::1", "@": "@", // a Unix socket: not ""
	} {
		if got := middleware.RemoteIP(&http.Request{RemoteAddr: address}); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}

// TestHTTPDoesNotLinkGRPC checks that a program that limits net/http links neither gRPC nor YAML.
func TestHTTPDoesNotLinkGRPC(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(dep, "google.golang.org/") || strings.HasPrefix(dep, "go.yaml.in/") {
			t.Errorf("pkg/middleware links %s", dep)
		}
	}
}

// twoRules returns a rule for the path / with two limits: l, and a limit on requests in flight.
func twoRules(t *testing.T, l *descriptors.RateLimit) func() *descriptors.Set {
	t.Helper()
	set, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {
		{Key: "path", Value: "/", RateLimits: []*descriptors.RateLimit{l, {
			Params: limiter.Params{Algorithm: limiter.Concurrency, Limit: 1}, OnStoreFailure: l.OnStoreFailure,
		}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return func() *descriptors.Set { return set }
}

func byPath(r *http.Request) [][]descriptors.Entry {
	return [][]descriptors.Entry{{{Key: "path", Value: r.URL.Path}}}
}

func status(h http.Handler, path string) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code
}

// TestRules checks that all limits of a rule are charged or none, and that requests in flight are released.
func TestRules(t *testing.T) {
	rules := twoRules(t, &descriptors.RateLimit{Params: limiter.Params{Limit: 2}, Unit: descriptors.Hour})
	limited := middleware.HTTPRules(rules, casetest.StillStore(t), "shop", byPath, middleware.Options{})
	inner, inside := 0, http.Handler(nil)
	inside = limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			inner = status(inside, "/")
		}
		hello(w, r)
	}))
	w := httptest.NewRecorder()
	inside.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	want := `"fixed_window";q=2;w=3600, "concurrency";q=1;qu="concurrent-requests"`
	if w.Code != 200 || inner != 429 || w.Header().Get("RateLimit-Policy") != want {
		t.Errorf("%d %v, and beside it %d; want 200 by %s, and 429", w.Code, w.Header(), inner, want)
	}
	for path, want := range map[string][]int{"/other": {200, 200, 200}, "/": {200, 429}} {
		for i, want := range want {
			if got := status(inside, path); got != want {
				t.Errorf("request %d to %s: %d, want %d", i, path, got, want)
			}
		}
	}
}

// TestRulesWithReservation checks that costs are final, since a caller reports no real cost at the end.
func TestRulesWithReservation(t *testing.T) {
	l := &descriptors.RateLimit{Params: limiter.Params{Limit: 2}, Unit: descriptors.Hour}
	l.Reservation = &descriptors.Reservation{Estimate: 1}
	limited := middleware.HTTPRules(twoRules(t, l), casetest.StillStore(t), "shop", byPath, middleware.Options{})
	for i, want := range []int{200, 200, 429} {
		if got := status(limited(http.HandlerFunc(hello)), "/"); got != want {
			t.Errorf("request %d: %d, want %d", i, got, want)
		}
	}
}

// TestRulesWithoutStore checks that the limits' OnStoreFailure applies without a store, and Options in place of Local.
func TestRulesWithoutStore(t *testing.T) {
	for onFailure, want := range map[descriptors.OnStoreFailure][2]int{
		descriptors.Local: {200, 503}, descriptors.Allow: {200, 200},
		descriptors.Deny: {429, 429}, descriptors.Fail: {503, 503},
	} {
		rules := twoRules(t, &descriptors.RateLimit{
			Params: limiter.Params{Limit: 2}, Unit: descriptors.Hour, OnStoreFailure: &onFailure,
		})
		for i, closed := range []bool{false, true} {
			var seen error
			o := middleware.Options{FailClosed: closed, OnError: func(err error) { seen = err }}
			got := status(middleware.HTTPRules(rules, broken{}, "shop", byPath, o)(http.HandlerFunc(hello)), "/")
			if got != want[i] || !errors.Is(seen, limiter.ErrUnavailable) {
				t.Errorf("%s, fail closed %t: %d and error %v, want %d", onFailure, closed, got, seen, want[i])
			}
		}
	}
}
