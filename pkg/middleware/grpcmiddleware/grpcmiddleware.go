// Package grpcmiddleware limits the calls of a gRPC server: [UnaryServerInterceptor] and [StreamServerInterceptor].
//
// Each takes a [limiter.Limiter] and a function that returns the key of a call, such as its method or its user:
//
//	perUser, err := limiter.New(store, "user", limiter.NewTokenBucket(100, time.Minute, 10))
//	...
//	grpc.NewServer(grpc.UnaryInterceptor(grpcmiddleware.UnaryServerInterceptor(perUser, user, middleware.Options{})))
//
// A denied call is answered ResourceExhausted with a RetryInfo. A call that a limit decided has ratelimit-policy,
// ratelimit and retry-after as metadata. If the context of a delayed call ends earlier, the answer is its status. Of
// stores that fail, package middleware says what becomes of a call.
package grpcmiddleware

import (
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-ratelimit/weir/internal/gate"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/middleware"
)

// UnaryServerInterceptor charges one hit of l for each unary call, under the key that key returns for the call's
// context and full method name, such as "/pkg.Service/Method". A call with an empty key is not limited.
func UnaryServerInterceptor(
	l *limiter.Limiter, key func(ctx context.Context, method string) string, o middleware.Options,
) grpc.UnaryServerInterceptor {
	c := newCaller(l, key, o)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		end, err := c.call(ctx, info.FullMethod, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
		if err != nil {
			return nil, err
		}
		defer end()
		return next(ctx, req)
	}
}

// StreamServerInterceptor is UnaryServerInterceptor for streams: a stream is one hit, whatever its messages.
func StreamServerInterceptor(
	l *limiter.Limiter, key func(ctx context.Context, method string) string, o middleware.Options,
) grpc.StreamServerInterceptor {
	c := newCaller(l, key, o)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		end, err := c.call(stream.Context(), info.FullMethod, stream.SetHeader)
		if err != nil {
			return err
		}
		defer end()
		return next(srv, stream)
	}
}

// caller decides calls.
type caller struct {
	*gate.Limited

	key func(ctx context.Context, method string) string
}

func newCaller(
	l *limiter.Limiter, key func(ctx context.Context, method string) string, o middleware.Options,
) *caller {
	g := &gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}
	return &caller{g.Limit(l), key}
}

// call decides a call and sets its metadata. The error is a status.
func (c *caller) call(
	ctx context.Context, method string, setHeader func(metadata.MD) error,
) (end func(), err error) {
	v, err := c.Enter(ctx, c.key(ctx, method))
	if err != nil {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, status.Error(codes.Unavailable, "rate limit not available")
	}
	md := metadata.MD{}
	v.Headers(func(name, value string) { md.Set(name, value) })
	_ = setHeader(md) // it fails where headers were sent already: the call goes on without
	if !v.Allowed {
		return nil, denied(&v)
	}
	return func() { c.End(ctx, &v) }, nil
}

// denied is the status of a denied call.
func denied(v *gate.Verdict) error {
	s := status.New(codes.ResourceExhausted, "rate limit exceeded")
	if v.RetryAfter == limiter.Never {
		return s.Err()
	}
	detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(v.RetryAfter)})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}
