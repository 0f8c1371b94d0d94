package grpcmiddleware_test

import (
	"context"
	"net"
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

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/middleware"
	"github.com/weir-ratelimit/weir/pkg/middleware/grpcmiddleware"
)

var twoPerMinute = limiter.NewFunnel(2, time.Minute, 0)

// broken is a store that cannot decide.
type broken struct{}

func (broken) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return limiter.ErrUnavailable
}

func TestDelayOutlastsDeadline(t *testing.T) {
	l := casetest.StillLimiter(t, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: time.Minute, Burst: 9})
	limits := grpcmiddleware.UnaryServerInterceptor(l, func(context.Context, string) string { return "ann" },
		middleware.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	passes := func(context.Context, any) (any, error) { return "", nil }
	for _, want := range []codes.Code{codes.OK, codes.DeadlineExceeded} {
		if _, err := limits(ctx, nil, &grpc.UnaryServerInfo{}, passes); status.Code(err) != want {
			t.Errorf("a call: %v, want %s", err, want)
		}
	}
}

// A request that is in flight for longer than the window does not release the slot of another request.
func TestReleaseAfterTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l := casetest.Limiter(t, s, limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute})
		limits := grpcmiddleware.UnaryServerInterceptor(l, func(context.Context, string) string { return "ann" },
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

// health returns a client of a gRPC server that limits calls with l.
func health(t *testing.T, l *limiter.Limiter, o middleware.Options) grpc_health_v1.HealthClient {
	t.Helper()
	byMethod := func(_ context.Context, method string) string { return method }
	return serve(t, grpcmiddleware.UnaryServerInterceptor(l, byMethod, o),
		grpcmiddleware.StreamServerInterceptor(l, byMethod, o))
}

func serve(t *testing.T, u grpc.UnaryServerInterceptor, s grpc.StreamServerInterceptor) grpc_health_v1.HealthClient {
	t.Helper()
	server := grpc.NewServer(grpc.UnaryInterceptor(u), grpc.StreamInterceptor(s))
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
	if joined(md, "retry-after") != "30" || joined(md, "ratelimit") != `"test";r=0;t=30` ||
		joined(md, "ratelimit-policy") != `"test";q=2;w=60` {
		t.Errorf("metadata %v", md)
	}
}

func TestUnaryCalls(t *testing.T) {
	client := health(t, casetest.StillLimiter(t, twoPerMinute), middleware.Options{})
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
	client := health(t, casetest.StillLimiter(t, twoPerMinute), middleware.Options{})
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

// Calls and streams no longer count as in flight when they end.
func TestCallsInFlight(t *testing.T) {
	l := casetest.StillLimiter(t, limiter.Params{Algorithm: limiter.Concurrency, Limit: 1, Window: time.Minute})
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
	l := casetest.Limiter(t, broken{}, twoPerMinute)
	if _, err := health(t, l, middleware.Options{}).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("fail open: %v", err)
	}
	_, err := health(t, l, middleware.Options{FailClosed: true}).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "rate limit not available") {
		t.Errorf("fail closed: %v, want Unavailable", err)
	}
}

// TestRules: calls and streams are limited by rules together; a rule's response is metadata and the status's message.
func TestRules(t *testing.T) {
	set, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {{
		Key: "service", Value: "health", Response: &descriptors.Response{
			Headers: []descriptors.Header{{Name: "X-Plan", Value: "free"}}, Body: "too many checks",
		},
		RateLimit: &descriptors.RateLimit{Params: limiter.Params{Limit: 2}, Unit: descriptors.Hour},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	rules, store := func() *descriptors.Set { return set }, casetest.StillStore(t)
	entries := func(context.Context, string) [][]descriptors.Entry {
		return [][]descriptors.Entry{{{Key: "service", Value: "health"}}}
	}
	client := serve(t, grpcmiddleware.UnaryServerRules(rules, store, "shop", entries, middleware.Options{}),
		grpcmiddleware.StreamServerRules(rules, store, "shop", entries, middleware.Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		var md metadata.MD
		_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&md))
		denied := want == codes.ResourceExhausted
		if status.Code(err) != want || denied != (status.Convert(err).Message() == "too many checks") ||
			denied != (joined(md, "x-plan") == "free") || joined(md, "ratelimit-policy") != `"fixed_window";q=2;w=3600` {
			t.Errorf("%v, metadata %v; want %s", err, md, want)
		}
	}
}
