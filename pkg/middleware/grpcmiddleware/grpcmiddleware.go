// Package grpcmiddleware limits the calls of a gRPC server: by a limiter with [UnaryServerInterceptor] and
// [StreamServerInterceptor], or by the rules of Weir with [UnaryServerRules] and [StreamServerRules].
//
// The first two take a [limiter.Limiter] and a function that returns the key of a call, such as its method or its user:
//
//	perUser, err := limiter.New(store, "user", limiter.NewTokenBucket(100, time.Minute, 10))
//	...
//	grpc.NewServer(grpc.UnaryInterceptor(grpcmiddleware.UnaryServerInterceptor(perUser, user, middleware.Options{})))
//
// The status of a denied call is ResourceExhausted, with a RetryInfo if waiting helps. If a limit decided a call, its
// header metadata has ratelimit-policy, ratelimit and, after a denial, retry-after. If the context of a delayed call
// ends, the call ends with the context's status. See package middleware for calls that the store cannot decide.
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
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/middleware"
)

// UnaryServerInterceptor charges one hit of l for each unary call, under the key that key returns for the call's
// context and full method name, such as "/pkg.Service/Method". A call with an empty key is not limited.
func UnaryServerInterceptor(
	l *limiter.Limiter, key func(ctx context.Context, method string) string, o middleware.Options,
) grpc.UnaryServerInterceptor {
	return byKey(l, key, o).unary
}

// StreamServerInterceptor is UnaryServerInterceptor for streams: a stream is one hit, however many messages it has.
func StreamServerInterceptor(
	l *limiter.Limiter, key func(ctx context.Context, method string) string, o middleware.Options,
) grpc.StreamServerInterceptor {
	return byKey(l, key, o).stream
}

// UnaryServerRules limits unary calls with the rules of a domain, as [middleware.HTTPRules] limits requests. entries
// returns the descriptors of a call. If a rule with a `response` denies a call, the response's headers are added to
// the call's header metadata, and its body is the message of the status.
func UnaryServerRules(
	set func() *descriptors.Set, store limiter.Store, domain string,
	entries func(ctx context.Context, method string) [][]descriptors.Entry, o middleware.Options,
) grpc.UnaryServerInterceptor {
	return byRules(set, store, domain, entries, o).unary
}

// StreamServerRules is UnaryServerRules for streams: a stream is one hit, however many messages it has.
func StreamServerRules(
	set func() *descriptors.Set, store limiter.Store, domain string,
	entries func(ctx context.Context, method string) [][]descriptors.Entry, o middleware.Options,
) grpc.StreamServerInterceptor {
	return byRules(set, store, domain, entries, o).stream
}

// caller decides calls with enter.
type caller struct {
	*gate.Gate

	enter func(ctx context.Context, method string) (gate.Verdict, error)
}

func byKey(l *limiter.Limiter, key func(context.Context, string) string, o middleware.Options) *caller {
	g := (&gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}).Limit(l)
	return &caller{g.Gate, func(ctx context.Context, method string) (gate.Verdict, error) {
		return g.Enter(ctx, key(ctx, method))
	}}
}

func byRules(
	set func() *descriptors.Set, store limiter.Store, domain string,
	entries func(context.Context, string) [][]descriptors.Entry, o middleware.Options,
) *caller {
	g := &gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}
	rules := &gate.Rules{Gate: g, Set: set, Store: store, Domain: domain}
	return &caller{g, func(ctx context.Context, method string) (gate.Verdict, error) {
		return rules.Enter(ctx, entries(ctx, method))
	}}
}

func (c *caller) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	end, err := c.call(ctx, info.FullMethod, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
	if err != nil {
		return nil, err
	}
	defer end()
	return next(ctx, req)
}

func (c *caller) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	end, err := c.call(stream.Context(), info.FullMethod, stream.SetHeader)
	if err != nil {
		return err
	}
	defer end()
	return next(srv, stream)
}

// call decides a call and sets its metadata. The error is a gRPC status.
func (c *caller) call(
	ctx context.Context, method string, setHeader func(metadata.MD) error,
) (end func(), err error) {
	v, err := c.enter(ctx, method)
	if err != nil {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, status.Error(codes.Unavailable, "rate limit not available")
	}
	md := metadata.MD{}
	v.Headers(func(name, value string) { md.Set(name, value) })
	_ = setHeader(md) // fails if the headers were already sent; the call continues without the metadata
	if !v.Allowed {
		return nil, denied(&v)
	}
	return func() { c.End(ctx, &v) }, nil
}

func denied(v *gate.Verdict) error {
	s := status.New(codes.ResourceExhausted, v.Body("rate limit exceeded"))
	if v.RetryAfter == limiter.Never {
		return s.Err()
	}
	detailed, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(v.RetryAfter)})
	if err != nil {
		return s.Err()
	}
	return detailed.Err()
}
