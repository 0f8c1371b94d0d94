// Package rls is Envoy's RateLimitService v3 on the wire: it translates a request's bytes for internal/decide and
// reports the verdict as the bytes of a response, its headers and its metadata.
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

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/grpcerr"
)

// Options are a Service's parts.
type Options struct {
	Decider *decide.Decider
	// Rejected is called for a request that is answered by an error, also one that could not be received or decoded. Nil
	// is none. It must be quick and safe for concurrent use.
	Rejected func(code codes.Code)
}

// Service answers Envoy. It is safe for concurrent use.
type Service struct {
	o     Options
	calls sync.Pool     // of *call
	large chan struct{} // has an element for each large request that is being decided
	json  chan struct{} // has an element for each request in JSON that is being decoded
}

// maxLarge bounds how many large requests are decided at once: a descriptor of 10 bytes takes 500 until it is decided.
// The others wait.
const maxLarge = 16

// New checks the options.
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

// Register makes the service answer ShouldRateLimit on a server that has Codec, which decodes requests into the
// service's own memory.
func (s *Service) Register(on grpc.ServiceRegistrar) {
	file := pb.File_envoy_service_ratelimit_v3_rls_proto
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
	on.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: method, Handler: s.handler(info)}},
		Metadata:    file.Path(), // what reflection finds the service's messages by
	}, s)
}

// handler receives a request and answers it through the server's interceptor.
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
			return nil, s.reject(err)
		}
		if interceptor == nil {
			return answer(ctx, c)
		}
		return interceptor(ctx, c, info, answer)
	}
}

// shouldRateLimit decides a request and reports a status for each of its descriptors, in order.
//
// A descriptor without a limit (its domain is unknown, no rule matches, its rule has no limit, or its limit was
// replaced) is OK without current_limit; one that is `unlimited` has limit_remaining at its maximum as well.
// Otherwise its status shows its tightest limit (see decide.Status). The code is OVER_LIMIT if that limit does not
// fit, whatever becomes of the request; only shadow mode keeps it OK. The overall code is OVER_LIMIT if a limit that is
// neither shadow nor quota does not fit, or if none of the request's quota limits does.
//
// duration_until_reset is the time until the limit is fully available again, and for a status of OVER_LIMIT the time
// after which the same request would be admitted: it becomes X-RateLimit-Reset, which should name the same moment as
// the Retry-After of a denied response. In a fixed window the two are one. Where no wait helps, there is no
// Retry-After. Both are rounded up to whole seconds. While the store fails, a limit that is not counted locally has
// neither current_limit, limit_remaining nor duration_until_reset: Envoy makes no headers of it.
//
// current_limit.unit is the largest unit that the window is a multiple of, and unit_multiplier says how many of
// it, left out if 1. A window that is a multiple of no unit, as 1500ms, has unit UNKNOWN.
//
// Errors are InvalidArgument for a request that cannot be decided, naming the field, Unavailable while no rules
// are loaded or while the store fails a limit with on_store_failure: error, ResourceExhausted if too many requests wait
// for the store, and Canceled or DeadlineExceeded if the caller has gone.
func (s *Service) shouldRateLimit(ctx context.Context, c *call) (any, error) {
	isMine := true
	release := func() {
		isMine = false
		s.release(c)
	}
	defer func() { // after a panic, of a call that is not used again
		if isMine && c.leave != nil {
			c.leave()
		}
	}()
	err := c.decode(c.text)
	if c.leave != nil && !c.isLarge() {
		c.leave()
		c.leave = nil
	}
	if err == nil {
		err = c.translate()
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
	release() // before it waits
	if err := held.Wait(ctx); err != nil {
		return nil, s.reject(grpcerr.Status(err))
	}
	held.Keep()
	return res, nil
}

// reject counts a request that is answered by an error.
func (s *Service) reject(err error) error {
	s.o.Rejected(status.Code(err))
	return err
}
