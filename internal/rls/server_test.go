package rls

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// serve runs a server of o for the test and returns it, a client connection, and how often it was dialed.
func serve(t *testing.T, o ServerOptions, dial ...grpc.DialOption) (*Server, *grpc.ClientConn, *atomic.Int64) {
	t.Helper()
	srv, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	var dials atomic.Int64
	dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			return l.DialContext(ctx)
		}))
	conn, err := grpc.NewClient("passthrough:///bufconn", dial...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return srv, conn, &dials
}

func TestServerAnswers(t *testing.T) {
	s, _ := service(t, parityRules)
	_, conn, _ := serve(t, ServerOptions{Service: s})
	client := pb.NewRateLimitServiceClient(conn)

	res, err := client.ShouldRateLimit(t.Context(), request(descriptor("user=a"), descriptor("nobody=knows")))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(res), "OK | OK per-user 2/minute left 1 reset 1m0s | OK"; got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	_, err = client.ShouldRateLimit(t.Context(), request(descriptor("=b")))
	if status.Code(err) != codes.InvalidArgument ||
		status.Convert(err).Message() != "descriptors[0].entries[0].key: must not be empty" {
		t.Errorf("got %v", err)
	}
	big := request(descriptor("user=" + strings.Repeat("x", DefaultMaxRecvBytes)))
	if _, err := client.ShouldRateLimit(t.Context(), big); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want ResourceExhausted", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.ShouldRateLimit(ctx, request(descriptor("user=a"))); status.Code(err) != codes.Canceled {
		t.Errorf("got %v, want Canceled", err)
	}
}

func TestServerWithoutRules(t *testing.T) {
	s, _ := service(t, parityRules, func(o *Options) { o.Rules = func() *descriptors.Set { return nil } })
	_, conn, _ := serve(t, ServerOptions{Service: s})
	_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request(descriptor("user=a")))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
}

func TestHealth(t *testing.T) {
	s, _ := service(t, parityRules)
	srv, conn, _ := serve(t, ServerOptions{Service: s})
	client := healthpb.NewHealthClient(conn)
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "envoy.service.ratelimit.v3.RateLimitService"} {
			res, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || res.GetStatus() != want {
				t.Errorf("health of %q: %v, %v; want %s", name, res, err, want)
			}
		}
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	srv.SetServing()
	check(healthpb.HealthCheckResponse_SERVING)
	srv.SetNotServing()
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	srv.SetServing()
	check(healthpb.HealthCheckResponse_SERVING)
}

func TestReflection(t *testing.T) {
	s, _ := service(t, parityRules)
	_, conn, _ := serve(t, ServerOptions{Service: s})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	v1, err := reflectpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := v1.Send(&reflectpb.ServerReflectionRequest{
		MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	res, err := v1.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, svc := range res.GetListServicesResponse().GetService() {
		names = append(names, svc.GetName())
	}
	for _, want := range []string{ServiceName, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} {
		if !slices.Contains(names, want) {
			t.Errorf("reflection lists %v, want %s too", names, want)
		}
	}
}

func TestPanicIsAnsweredWithInternal(t *testing.T) {
	var logged bytes.Buffer
	var panics int
	mem := memory(t, newClock())
	s, _ := service(t, parityRules, func(o *Options) {
		o.Store = storeFunc(func(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
			if strings.Contains(hits[0].Key, "boom") {
				panic("the store is on fire")
			}
			return mem.Take(ctx, hits, out)
		})
	})
	_, conn, _ := serve(t, ServerOptions{
		Service:  s,
		Logger:   slog.New(slog.NewJSONHandler(&logged, nil)),
		Panicked: func() { panics++ },
	})
	client := pb.NewRateLimitServiceClient(conn)
	_, err := client.ShouldRateLimit(t.Context(), request(descriptor("user=boom")))
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "fire") {
		t.Errorf("got %v, want Internal without the panic's text", err)
	}
	line := logged.String()
	for _, want := range []string{
		`"method":"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"`, `"panic":"the store is on fire"`, "server_test.go",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("log %s\nlacks %s", line, want)
		}
	}
	if strings.Count(line, "\n") != 1 || panics != 1 {
		t.Errorf("%d panics counted in %d lines, want 1 in 1", panics, strings.Count(line, "\n"))
	}
	if _, err := client.ShouldRateLimit(t.Context(), request(descriptor("user=a"))); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

func TestPanicInAStream(t *testing.T) {
	g := guard{log: slog.New(slog.DiscardHandler), panicked: func() {}}
	err := g.stream(nil, contextStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/x/Y"}, func(any, grpc.ServerStream) error {
		panic(errors.New("boom"))
	})
	if status.Code(err) != codes.Internal {
		t.Errorf("got %v, want Internal", err)
	}
}

type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s contextStream) Context() context.Context { return s.ctx }

// An old connection is asked to end, and the client's next request goes over a new one.
func TestMaxConnectionAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := service(t, parityRules)
		_, conn, dials := serve(t, ServerOptions{Service: s, MaxConnectionAge: time.Minute})
		client := pb.NewRateLimitServiceClient(conn)
		for want := int64(1); want <= 3; want++ {
			if _, err := client.ShouldRateLimit(t.Context(), request(descriptor("free=1"))); err != nil {
				t.Fatal(err)
			}
			if got := dials.Load(); got != want {
				t.Errorf("%d connections, want %d", got, want)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// An Envoy with HTTP/2 keepalive pings an idle connection, and keeps it.
func TestKeepaliveOfAnIdleClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := service(t, parityRules)
		_, conn, dials := serve(t, ServerOptions{Service: s},
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}))
		client := pb.NewRateLimitServiceClient(conn)
		for range 2 {
			if _, err := client.ShouldRateLimit(t.Context(), request(descriptor("free=1"))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Minute)
		}
		if got := dials.Load(); got != 1 {
			t.Errorf("%d connections, want 1", got)
		}
	})
}

func TestGracefulStopAnswersWhatIsUnderWay(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	mem := memory(t, newClock())
	s, _ := service(t, parityRules, func(o *Options) {
		o.StoreTimeout = -1
		o.Store = storeFunc(func(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
			close(asked)
			<-answer
			return mem.Take(ctx, hits, out)
		})
	})
	srv, conn, _ := serve(t, ServerOptions{Service: s})
	result := make(chan error, 1)
	go func() {
		_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(context.Background(), request(descriptor("user=a")))
		result <- err
	}()
	<-asked
	stopped := make(chan struct{})
	go func() { srv.GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
		t.Error("stopped before the answer")
	case <-time.After(20 * time.Millisecond):
	}
	close(answer)
	if err := <-result; err != nil {
		t.Errorf("the request under way: %v", err)
	}
	<-stopped
}

func TestServerOptions(t *testing.T) {
	_, err := NewServer(ServerOptions{
		MaxConnectionAge: time.Millisecond, MaxConnectionAgeGrace: -1, MaxRecvBytes: 1, MaxConcurrentStreams: -1,
	})
	want := `rls: ServerOptions.Service: must be set; got <nil>
rls: ServerOptions.MaxConnectionAge: must be at least 1s, or 0 for never; got 1ms
rls: ServerOptions.MaxConnectionAgeGrace: must be above 0, or 0 for the default; got -1ns
rls: ServerOptions.MaxRecvBytes: must be between 1 KiB and 64 MiB, or 0 for the default; got 1
rls: ServerOptions.MaxConcurrentStreams: must be between 1 and 4294967295, or 0 for the default; got -1`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}
