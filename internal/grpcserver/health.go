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

// Health implements grpc.health.v1 for the server, "", and for both names of the service. Unlike a health.Server, it
// can end the streams of watches, for which a graceful stop would otherwise wait forever.
type Health struct {
	*health.Server
	watched context.Context //nolint:containedctx // ends all watches
	cancel  context.CancelFunc
}

// ratelimitService is the service's name in envoyproxy/ratelimit's health checks.
const ratelimitService = "ratelimit"

// newHealth returns a Health with the status NOT_SERVING.
func newHealth() *Health {
	h := &Health{Server: health.NewServer()}
	h.watched, h.cancel = context.WithCancel(context.Background())
	h.set(healthpb.HealthCheckResponse_NOT_SERVING)
	return h
}

// set sets the status, unless Shutdown was called.
func (h *Health) set(to healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", pb.RateLimitService_ServiceDesc.ServiceName, ratelimitService} {
		h.SetServingStatus(name, to)
	}
}

// Serving sets the status SERVING, unless Shutdown was called.
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

// endingStream is a stream with another context.
type endingStream struct {
	grpc.ServerStreamingServer[healthpb.HealthCheckResponse]
	ctx context.Context //nolint:containedctx // returned by Context
}

func (s endingStream) Context() context.Context { return s.ctx }
