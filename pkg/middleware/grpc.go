package middleware

import (
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// UnaryServerInterceptor charges one hit of l for each unary call, under the key that key returns for the call's
// context and full method name, such as "/pkg.Service/Method". A call with an empty key is not limited.
func UnaryServerInterceptor(
	l *limiter.Limiter, key func(ctx context.Context, method string) string, o Options,
) grpc.UnaryServerInterceptor {
	g := newGate(l, o)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		release, err := g.call(ctx, key(ctx, info.FullMethod), func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
		if err != nil {
			return nil, err
		}
		defer release()
		return next(ctx, req)
	}
}

// StreamServerInterceptor is UnaryServerInterceptor for streams: a stream is one hit, whatever its messages.
func StreamServerInterceptor(
	l *limiter.Limiter, key func(ctx context.Context, method string) string, o Options,
) grpc.StreamServerInterceptor {
	g := newGate(l, o)
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		release, err := g.call(stream.Context(), key(stream.Context(), info.FullMethod), stream.SetHeader)
		if err != nil {
			return err
		}
		defer release()
		return next(srv, stream)
	}
}

// call decides a call and sets its metadata. The error is a status.
func (g *gate) call(ctx context.Context, key string, setHeader func(metadata.MD) error) (release func(), err error) {
	v, err := g.enter(ctx, key)
	if err != nil {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, status.Error(codes.Unavailable, "rate limit not available")
	}
	md := metadata.MD{}
	g.headers(&v, func(name, value string) { md.Set(name, value) })
	_ = setHeader(md) // it fails where headers were sent already: the call goes on without
	if !v.allowed {
		return nil, denied(&v)
	}
	return v.release, nil
}

// denied is the status of a denied call.
func denied(v *verdict) error {
	s := status.New(codes.ResourceExhausted, "rate limit exceeded")
	if v.retryAfter == limiter.Never {
		return s.Err()
	}
	detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(v.retryAfter)})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}
