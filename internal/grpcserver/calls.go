package grpcserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/rls"
)

// Calls measures requests, and converts their panics to errors.
type Calls struct {
	metrics    *metrics.Metrics
	log        *slog.Logger
	reflecting chan struct{} // held while a response of gRPC reflection is built
}

// NewCalls returns a Calls.
func NewCalls(m *metrics.Metrics, log *slog.Logger) *Calls {
	return &Calls{metrics: m, log: log, reflecting: make(chan struct{}, 1)}
}

// Unary measures requests, and converts a panic to an Internal error of that request.
func (c *Calls) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (res any, err error) {
	if info.FullMethod == pb.RateLimitService_ShouldRateLimit_FullMethodName {
		start, isOver := time.Now(), ctx.Err() != nil
		defer func() {
			took := time.Since(start)
			c.metrics.Requested(took)
			// Envoy also cancels requests whose client has disconnected; these do not count as abandoned. Envoy cancels most of
			// them before their timeout ends and after the request was read, unless this process is late.
			if end, ok := ctx.Deadline(); isOver || ok && end.Sub(start)-took < took/10 && ctx.Err() != nil {
				c.metrics.Abandoned()
			}
		}()
	}
	defer func() {
		if p := recover(); p != nil {
			res, err = nil, c.panicked(ctx, info.FullMethod, p)
		}
	}()
	if res, err = handler(ctx, req); err == nil && !rls.IsSmall(res) {
		res = conns.Answer(ctx, res)
	}
	return res, err
}

// stream converts a panic to an Internal error of that stream.
func (c *Calls) stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.panicked(stream.Context(), info.FullMethod, p)
		}
	}()
	var turn chan struct{}
	if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") { // a short request has a response of 100 KB
		turn = c.reflecting
	}
	return conns.Stream(stream, turn, func(s grpc.ServerStream) error { return handler(srv, s) })
}

// panicked counts and logs a panic, and returns the error of its request.
func (c *Calls) panicked(ctx context.Context, method string, p any) error {
	c.metrics.Panicked()
	c.log.LogAttrs(ctx, slog.LevelError, "request panicked", slog.String("method", method),
		slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
	return status.Error(codes.Internal, "internal error, see the log of the rate limit service")
}
