// Package rls implements Envoy's RateLimitService v3: it decodes a request for internal/decide, and encodes the verdict
// as a response with headers and metadata.
package rls

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/grpcerr"
)

// Options are the settings of a Service.
type Options struct {
	Decider *decide.Decider
	// Rejected is called for each request that gets an error, even if it could not be received or decoded. It may be nil.
	// It must be quick and safe for concurrent use.
	Rejected func(code codes.Code)
}

// Service implements RateLimitService. It is safe for concurrent use.
type Service struct {
	o     Options
	calls sync.Pool     // elements are *call
	large chan struct{} // one element per large request that is being decided
	json  chan struct{} // one element per JSON request that is being decoded
}

// maxLarge is the maximum number of large requests that are decided at once. Further large requests wait, because a
// descriptor of 10 bytes takes 500 bytes of memory until its request is decided.
const maxLarge = 16

// New returns a Service. Options.Decider must be set.
func New(o Options) (*Service, error) {
	if o.Decider == nil {
		return nil, errors.New("rls: Options.Decider: must be set")
	}
	if o.Rejected == nil {
		o.Rejected = func(codes.Code) {}
	}
	return &Service{
		o: o, large: make(chan struct{}, maxLarge), json: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}, nil
}

// Register registers ShouldRateLimit on a server that uses Codec, which decodes requests into the service's own memory.
func (s *Service) Register(on grpc.ServiceRegistrar) {
	file := pb.File_envoy_service_ratelimit_v3_rls_proto
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
	on.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: method, Handler: s.handler(info)}},
		Metadata:    file.Path(), // reflection finds the service's messages by this path
	}, s)
}

// handler receives a request and answers it, through the server's interceptor if there is one.
func (s *Service) handler(info *grpc.UnaryServerInfo) grpc.MethodHandler {
	answer := func(ctx context.Context, req any) (any, error) {
		c, ok := req.(*call)
		if !ok {
			return nil, status.Errorf(codes.Internal, "the request is a %T", req)
		}
		return s.shouldRateLimit(ctx, c)
	}
	type interceptors = grpc.UnaryServerInterceptor
	return func(_ any, ctx context.Context, receive func(any) error, interceptor interceptors) (any, error) {
		c := s.get()
		c.ctx = ctx
		if err := receive(c); err != nil {
			s.release(c)
			failed := func(context.Context, any) (any, error) { return nil, s.reject(err) }
			if interceptor != nil && ctx.Err() != nil { // it counts callers that leave
				return interceptor(ctx, nil, info, failed)
			}
			return failed(ctx, nil)
		}
		if interceptor == nil {
			return answer(ctx, c)
		}
		return interceptor(ctx, c, info, answer)
	}
}

// shouldRateLimit decides a request and returns a response with one status per descriptor, in order.
//
// A descriptor has no limit if its domain is unknown, no rule matches, its rule has no limit, or its limit was
// replaced. Its status is then OK without current_limit; if its rule is `unlimited`, limit_remaining is at its maximum.
// All other statuses show the descriptor's tightest limit (see decide.Status). Their code is OVER_LIMIT if that limit
// does not fit, even if the request is admitted; in shadow mode it stays OK. The overall code is OVER_LIMIT if a limit
// that is neither shadow nor quota does not fit, or if no quota limit of the request fits.
//
// duration_until_reset is the time until the limit is fully available again; with OVER_LIMIT, the time until the same
// request would be admitted. Envoy sends this time as X-RateLimit-Reset, which therefore agrees with the Retry-After of
// a denial. If waiting does not help, Retry-After is the window; if a failure policy denies, there is no Retry-After.
// Both headers are rounded up to whole seconds. While the store fails, a limit that is not counted locally has neither
// current_limit, limit_remaining nor duration_until_reset, so that Envoy sends no headers for it.
//
// current_limit.unit is the largest unit of which the window is a multiple, and unit_multiplier is the factor, left out
// if it is 1. For a window that is a multiple of no unit, such as 1500ms, unit is UNKNOWN.
//
// Errors are InvalidArgument, naming the field, for an invalid request; Unavailable if no rules are loaded, or if the
// store fails a limit with on_store_failure: error; ResourceExhausted if too many requests wait for the store; and
// Canceled or DeadlineExceeded if the caller no longer waits.
func (s *Service) shouldRateLimit(ctx context.Context, c *call) (any, error) {
	isMine, size := true, c.message.Len()
	release := func() {
		isMine = false
		s.release(c)
	}
	defer func() { // only after a panic; the call is not reused then
		if isMine && c.leave != nil {
			c.leave()
		}
	}()
	err := c.decode(c.message)
	if c.leave != nil && !c.isLarge() {
		c.leave()
		c.leave = nil
	}
	if err != nil {
		release()
		return nil, s.reject(err)
	}
	c.Ctx = ctx
	s.o.Decider.Decide(c.Request)
	if err := c.Err; err != nil {
		release()
		return nil, s.reject(grpcerr.Status(err))
	}
	held := c.Verdict.TakeHeld()
	defer held.Release(ctx) // also if report panics
	res := c.report(&c.Verdict)
	release() // the pool gets the call back before the wait
	if held.For() > 0 {
		conns.Work(ctx, -1, size)
		defer conns.Work(ctx, 1, size)
	}
	if err := held.Wait(ctx); err != nil {
		return nil, s.reject(grpcerr.Status(err))
	}
	held.Keep()
	return res, nil
}

// reject counts a request that gets an error.
func (s *Service) reject(err error) error {
	s.o.Rejected(status.Code(err))
	return err
}
