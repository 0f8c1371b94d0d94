package middleware_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthsrv "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/middleware"
)

// store returns a memory store whose clock stands still.
func store(t *testing.T) *memstore.Store {
	t.Helper()
	s, err := memstore.New(memstore.Options{Now: func() int64 { return 1_700_000_000_000_000 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func limit(t *testing.T, s limiter.Store, params ...limiter.Params) *limiter.Limiter {
	t.Helper()
	var policies []*limiter.Policy
	for _, p := range params {
		policy, err := limiter.NewPolicy(p)
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, policy)
	}
	return limiter.New(s, policies[0], policies[1:]...)
}

var twoPerMinute = limiter.Params{Algorithm: limiter.Funnel, Limit: 2, Window: time.Minute}

// broken is a store that cannot decide.
type broken struct{}

func (broken) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return limiter.ErrUnavailable
}

// answer is what a test wants of an HTTP response.
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
	url := serve(t, limit(t, store(t), twoPerMinute), middleware.RemoteIP, middleware.Options{}, hello)
	policy := `"funnel";q=2;w=60`
	for i, want := range []answer{
		{200, policy, `"funnel";r=1;t=30`, "", "hello"},
		{200, policy, `"funnel";r=0;t=60`, "", "hello"},
		{429, policy, `"funnel";r=0;t=30`, "30", "rate limit exceeded\n"},
	} {
		if got := get(t, url); got != want {
			t.Errorf("request %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestHTTPBySeveralPolicies(t *testing.T) {
	daily := limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: 24 * time.Hour}
	url := serve(t, limit(t, store(t), twoPerMinute, daily), middleware.RemoteIP, middleware.Options{}, hello)
	policies := `"funnel";q=2;w=60, "funnel-2";q=1;w=86400`
	for i, want := range []answer{
		{200, policies, `"funnel-2";r=0;t=86400`, "", "hello"},
		{429, policies, `"funnel-2";r=0;t=86400`, "86400", "rate limit exceeded\n"},
	} {
		if got := get(t, url); got != want {
			t.Errorf("request %d: %+v, want %+v", i, got, want)
		}
	}
}

func TestHTTPWithoutKeyOrWithoutHope(t *testing.T) {
	never := limit(t, store(t), limiter.Params{Algorithm: limiter.Funnel, Window: time.Second})
	byHeader := func(r *http.Request) string { return r.URL.Query().Get("client") }
	url := serve(t, never, byHeader, middleware.Options{}, hello)
	if got, want := get(t, url), (answer{200, "", "", "", "hello"}); got != want {
		t.Errorf("without a key: %+v, want %+v", got, want)
	}
	want := answer{429, `"funnel";q=0;w=1`, `"funnel";r=0;t=0`, "", "rate limit exceeded\n"}
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
		got := get(t, serve(t, limit(t, broken{}, twoPerMinute), middleware.RemoteIP, o, hello))
		if got != tt.want || !errors.Is(seen, limiter.ErrUnavailable) {
			t.Errorf("fail %s: %+v and error %v, want %+v", name, got, seen, tt.want)
		}
	}
}

// A request in flight holds its place until the handler has returned, also when it panics.
func TestHTTPInFlight(t *testing.T) {
	l := limit(t, store(t), limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute})
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
	policy := `"concurrency";q=1;qu="concurrent-requests"`
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
	l := limit(t, s, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 20, Window: time.Second})
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

// A request whose deadline is before its turn gets an error, and no empty answer, and is in flight no more.
func TestDelayOutlastsDeadline(t *testing.T) {
	l := limit(t, store(t), limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: time.Minute, Burst: 9},
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
	byAddress := func(context.Context, string) string { return "192.0.2.1" } // httptest's
	limits := middleware.UnaryServerInterceptor(l, byAddress, middleware.Options{})
	_, err := limits(soon(), nil, &grpc.UnaryServerInfo{}, nil)
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call: %v, want DeadlineExceeded", err)
	}
}

// failing is a store that decides nothing after the end of a context, and may refuse what is given back.
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

// A place in flight is released after the client has gone, and an error of that is reported.
func TestRelease(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		one := limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute}
		l := limit(t, &failing{store(t), refuses}, one)
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

// A request that is in flight for longer than the window does not release the place of another one.
func TestReleaseAfterTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l := limit(t, s, limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute})
		limits := middleware.UnaryServerInterceptor(l, func(context.Context, string) string { return "ann" },
			middleware.Options{})
		lasts := func(d time.Duration) error {
			_, err := limits(t.Context(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) {
				time.Sleep(d)
				return nil, nil //nolint:nilnil // an answer
			})
			return err
		}
		done := make(chan error, 2)
		go func() { done <- lasts(90 * time.Second) }()
		time.Sleep(time.Minute)
		go func() { done <- lasts(50 * time.Second) }()
		time.Sleep(40 * time.Second)
		if err := lasts(0); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("beside a request in flight: %v, want ResourceExhausted", err)
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := lasts(0); err != nil {
			t.Errorf("after the end of all requests: %v", err)
		}
	})
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

// health is a gRPC server's client whose calls are limited.
func health(t *testing.T, l *limiter.Limiter, o middleware.Options) grpc_health_v1.HealthClient {
	t.Helper()
	byMethod := func(_ context.Context, method string) string { return method }
	server := grpc.NewServer(grpc.UnaryInterceptor(middleware.UnaryServerInterceptor(l, byMethod, o)),
		grpc.StreamInterceptor(middleware.StreamServerInterceptor(l, byMethod, o)))
	grpc_health_v1.RegisterHealthServer(server, healthsrv.NewServer())
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func joined(md metadata.MD, name string) string { return strings.Join(md.Get(name), "|") }

func wantDenied(t *testing.T, err error, md metadata.MD) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted || s.Message() != "rate limit exceeded" || len(s.Details()) != 1 {
		t.Fatalf("%v, want ResourceExhausted with a RetryInfo", err)
	}
	info, ok := s.Details()[0].(*errdetails.RetryInfo)
	if !ok || info.GetRetryDelay().AsDuration() != 30*time.Second {
		t.Errorf("details %v, want a delay of 30s", s.Details())
	}
	if joined(md, "retry-after") != "30" || joined(md, "ratelimit") != `"funnel";r=0;t=30` ||
		joined(md, "ratelimit-policy") != `"funnel";q=2;w=60` {
		t.Errorf("metadata %v", md)
	}
}

func TestUnaryCalls(t *testing.T) {
	client := health(t, limit(t, store(t), twoPerMinute), middleware.Options{})
	for i := range 3 {
		var md metadata.MD
		_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&md))
		if i == 2 {
			wantDenied(t, err, md)
		} else if err != nil || joined(md, "retry-after") != "" {
			t.Errorf("call %d: %v, metadata %v", i, err, md)
		}
	}
}

func TestStreams(t *testing.T) {
	client := health(t, limit(t, store(t), twoPerMinute), middleware.Options{})
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if i == 2 {
			md, headerErr := stream.Header()
			if headerErr != nil {
				t.Fatal(headerErr)
			}
			wantDenied(t, err, md)
		} else if err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
		cancel()
	}
}

// Calls and streams give back their place in flight when they end.
func TestCallsInFlight(t *testing.T) {
	l := limit(t, store(t), limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute})
	client := health(t, l, middleware.Options{})
	for range 2 {
		if _, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("a call after one that has ended: %v", err)
		}
	}
	for i := range 2 {
		for deadline := time.Now().Add(10 * time.Second); ; {
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			cancel()
			if err == nil {
				break
			}
			if time.Now().After(deadline) { // the server notices a moment later that the one before has ended
				t.Fatalf("stream %d: %v", i, err)
			}
		}
	}
}

func TestCallsWithoutStore(t *testing.T) {
	l := limit(t, broken{}, twoPerMinute)
	if _, err := health(t, l, middleware.Options{}).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("fail open: %v", err)
	}
	_, err := health(t, l, middleware.Options{FailClosed: true}).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "rate limit not available") {
		t.Errorf("fail closed: %v, want Unavailable", err)
	}
}
