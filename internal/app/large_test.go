package app

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// largeRequest has so many descriptors, with a value of so many bytes each.
func largeRequest(descriptors, size int) *pb.RateLimitRequest {
	q := &pb.RateLimitRequest{Domain: "shop"}
	for i := range descriptors {
		q.Descriptors = append(q.Descriptors, &commonpb.RateLimitDescriptor{Entries: []*commonpb.RateLimitDescriptor_Entry{
			{Key: "client", Value: strconv.Itoa(i) + strings.Repeat("x", size)},
		}})
	}
	return q
}

// Clients may have as many requests at once as Envoy sends: large and many ones take turns, and none is refused.
func TestRequestsTakeTurns(t *testing.T) {
	for _, tc := range []struct{ requests, descriptors, size, conns int }{
		{300, 2, 60 << 10, 1},
		{8, 60, 60 << 10, 1},
		{300, 1, 5 << 10, 1},
		{300, 2, 60 << 10, 8},
		{1000, 1, 100, 1},
		{1500, 24, 10, 8},
	} {
		t.Run(fmt.Sprintf("%d of %d bytes on %d", tc.requests, tc.descriptors*tc.size, tc.conns), func(t *testing.T) {
			o := options(t, rulesOf("1000000"))
			o.MaxDescriptors = 100
			p := start(t, o)
			clients := make([]pb.RateLimitServiceClient, tc.conns)
			for i := range clients {
				clients[i] = pb.NewRateLimitServiceClient(p.dial())
			}
			q := largeRequest(tc.descriptors, tc.size)
			var all sync.WaitGroup
			failed := make(chan error, tc.requests)
			for i := range tc.requests {
				all.Go(func() {
					if _, err := clients[i%tc.conns].ShouldRateLimit(t.Context(), q, grpc.WaitForReady(true)); err != nil {
						failed <- err
					}
				})
			}
			all.Wait()
			if len(failed) > 0 {
				t.Errorf("%d of %d requests fail: %v", len(failed), tc.requests, <-failed)
			}
			if n := p.refused("grpc", "memory"); n != "0" {
				t.Errorf("%s connections were cut off", n)
			}
			want(t, "memory after the last answer", "0", func() string { return p.metric("weir_client_memory_bytes") })
		})
	}
}

// Delayed requests do not keep a connection's other requests waiting, however small the budget is.
func TestDelayedRequestsDelayNoOthers(t *testing.T) {
	o := options(t, inFlight)
	o.Clients.Budget = 128 << 10
	p := start(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for delayed := 9; delayed < 80; delayed += 10 { // gRPC may send the headers of all first, which the budget bounds, too
		for range 10 {
			all.Go(func() { _, _ = p.client.ShouldRateLimit(ctx, inFlightOf("queue")) })
		}
		want(t, "delayed requests", strconv.Itoa(delayed), func() string { return p.metric("weir_delayed_requests") })
	}
	if _, err := p.client.ShouldRateLimit(t.Context(), inFlightOf("client")); err != nil {
		t.Fatal(err)
	}
	want(t, "memory of delayed requests", "true", func() string {
		used, _ := strconv.Atoi(p.metric("weir_client_memory_bytes"))
		return strconv.FormatBool(used < 79*100)
	})
	cancel()
	all.Wait()
	if _, err := p.client.ShouldRateLimit(t.Context(), inFlightOf("client")); err != nil {
		t.Fatal(err)
	}
	want(t, "memory after the delay", "0", func() string { return p.metric("weir_client_memory_bytes") })
}

// A stream of reflection names the service, and may stay open, as its connection, while its client asks nothing.
func TestReflectionStaysOpen(t *testing.T) {
	o := options(t, rulesOf("1000"))
	o.Clients.ReceiveTimeout = 100 * time.Millisecond
	p := start(t, o)
	conn := p.dial()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := &grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}
	for range 2 {
		if err := stream.Send(list); err != nil {
			t.Fatal(err)
		}
		if res, err := stream.Recv(); err != nil || !strings.Contains(res.String(), "envoy.service.ratelimit.v3.RateLimitService") {
			t.Fatal(res, err)
		}
		c := p.connect() // whoever begins later and stops within a request is cut off
		if _, err := c.half(4000, 500); err != nil {
			t.Fatal(err)
		}
		c.closed()
	}
}
