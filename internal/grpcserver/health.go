package grpcserver

import (
	"context"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Health is grpc.health.v1 for the server as a whole, "", and for the service, by both of its names. Unlike a
// health.Server it can end the streams of those who watch it, which a graceful stop would otherwise wait for in vain.
type Health struct {
	*health.Server
	watched context.Context //nolint:containedctx // ends all watches, which have contexts of their own
	cancel  context.CancelFunc
}

// ratelimitService is what envoyproxy/ratelimit calls the service in health checks.
const ratelimitService = "ratelimit"

// newHealth returns a Health that says NOT_SERVING.
func newHealth() *Health {
	h := &Health{Server: health.NewServer()}
	h.watched, h.cancel = context.WithCancel(context.Background())
	h.set(healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// set changes the answer, unless Shutdown was called.
func (h *Health) set(to healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", pb.RateLimitService_ServiceDesc.ServiceName, ratelimitService} {
		h.SetServingStatus(name, to)
	}
}

// Serving says that there are rules, unless Shutdown was called.
func (h *Health) Serving() { h.set(healthpb.HealthCheckResponse_SERVING) }

// End ends all watches.
func (h *Health) End() { h.cancel() }

// Watch implements grpc.health.v1.
func (h *Health) Watch(
	req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse],
) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(h.watched, cancel)()
	err := h.Server.Watch(req, endingStream{stream, ctx})
	if h.watched.Err() != nil {
		return status.Error(codes.Unavailable, "stopping")
	}
	return err
}

// endingStream is a stream that ends with a context of its own.
type endingStream struct {
	grpc.ServerStreamingServer[healthpb.HealthCheckResponse]
	ctx context.Context //nolint:containedctx // what a stream's Context is for
}

func (s endingStream) Context() context.Context { return s.ctx }
