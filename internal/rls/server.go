package rls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// ServiceName is the service as grpc.health.v1 and reflection know it.
const ServiceName = "envoy.service.ratelimit.v3.RateLimitService"

// Defaults of ServerOptions.
const (
	// DefaultMaxConnectionAge moves Envoys to other servers behind a balancer now and then. It has no default
	// in ServerOptions, where 0 is off; it is for whoever offers it to people.
	DefaultMaxConnectionAge = 30 * time.Minute
	// DefaultMaxConnectionAgeGrace is ample for requests, which take milliseconds.
	DefaultMaxConnectionAgeGrace = 10 * time.Second
	// DefaultMaxRecvBytes holds 16 of the largest entries that DefaultMaxEntryBytes admits. What is larger is
	// refused, and by default Envoy lets a request pass when its question is refused.
	DefaultMaxRecvBytes = 1 << 20
	// DefaultMaxConcurrentStreams bounds what one connection can have under way. Envoy has one connection a
	// worker: at 15 ms a request these are 270,000 requests/s.
	DefaultMaxConcurrentStreams = 4096
)

const (
	// keepaliveMinTime is how often a client may ping. grpc-go's own 5 minutes would close the connections of
	// an Envoy with HTTP/2 keepalive, which is set to tens of seconds as a rule.
	keepaliveMinTime = 5 * time.Second
	// keepaliveTime and keepaliveTimeout end connections whose client has vanished without a word.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// handshakeTimeout ends connections that never speak HTTP/2.
	handshakeTimeout = 10 * time.Second
)

// ServerOptions are a Server's parts and bounds. A zero bound stands for its default.
type ServerOptions struct {
	// Service answers. It is a *Service.
	Service pb.RateLimitServiceServer
	// MaxConnectionAge is when a connection is asked to end, give or take 10 %. 0 is never.
	MaxConnectionAge time.Duration
	// MaxConnectionAgeGrace is how long the requests of such a connection may still take.
	MaxConnectionAgeGrace time.Duration
	// MaxRecvBytes is the largest request, in bytes.
	MaxRecvBytes int
	// MaxConcurrentStreams is the most requests of one connection at a time.
	MaxConcurrentStreams int
	// Logger is told of panics. Nil is slog.Default().
	Logger *slog.Logger
	// Panicked is called after a panic was answered with Internal: a counter's place. Nil is none.
	Panicked func()
}

func (o *ServerOptions) validate() error {
	var errs []error
	bad := func(field, must string, got any) {
		errs = append(errs, fmt.Errorf("rls: ServerOptions.%s: must be %s; got %v", field, must, got))
	}
	if o.Service == nil {
		bad("Service", "set", nil)
	}
	if o.MaxConnectionAge != 0 && o.MaxConnectionAge < time.Second {
		bad("MaxConnectionAge", "at least 1s, or 0 for never", o.MaxConnectionAge)
	}
	if o.MaxConnectionAgeGrace < 0 {
		bad("MaxConnectionAgeGrace", "above 0, or 0 for the default", o.MaxConnectionAgeGrace)
	}
	if o.MaxRecvBytes != 0 && (o.MaxRecvBytes < 1<<10 || o.MaxRecvBytes > 64<<20) {
		bad("MaxRecvBytes", "between 1 KiB and 64 MiB, or 0 for the default", o.MaxRecvBytes)
	}
	if o.MaxConcurrentStreams < 0 || int64(o.MaxConcurrentStreams) > math.MaxUint32 {
		bad("MaxConcurrentStreams", "between 1 and 4294967295, or 0 for the default", o.MaxConcurrentStreams)
	}
	if o.MaxConnectionAgeGrace == 0 {
		o.MaxConnectionAgeGrace = DefaultMaxConnectionAgeGrace
	}
	if o.MaxRecvBytes == 0 {
		o.MaxRecvBytes = DefaultMaxRecvBytes
	}
	if o.MaxConcurrentStreams == 0 {
		o.MaxConcurrentStreams = DefaultMaxConcurrentStreams
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Panicked == nil {
		o.Panicked = func() {}
	}
	return errors.Join(errs...)
}

// Server is a gRPC server of RateLimitService, grpc.health.v1 and reflection. It starts out not serving, as
// health has it, and answers all the same.
type Server struct {
	grpc   *grpc.Server
	health *health.Server
}

// NewServer checks the options.
func NewServer(o ServerOptions) (*Server, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	g := guard{log: o.Logger, panicked: o.Panicked}
	s := &Server{
		health: health.NewServer(),
		grpc: grpc.NewServer(
			grpc.ChainUnaryInterceptor(g.unary),
			grpc.ChainStreamInterceptor(g.stream),
			grpc.MaxRecvMsgSize(o.MaxRecvBytes),
			grpc.MaxConcurrentStreams(uint32(o.MaxConcurrentStreams)), //nolint:gosec // validated above
			grpc.ConnectionTimeout(handshakeTimeout),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime, PermitWithoutStream: true}),
			grpc.KeepaliveParams(keepalive.ServerParameters{
				MaxConnectionAge:      o.MaxConnectionAge,
				MaxConnectionAgeGrace: o.MaxConnectionAgeGrace,
				Time:                  keepaliveTime,
				Timeout:               keepaliveTimeout,
			}),
		),
	}
	pb.RegisterRateLimitServiceServer(s.grpc, o.Service)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.SetNotServing()
	return s, nil
}

// Serve answers on the listener, and closes it, until Stop or GracefulStop; its error is then nil. Several
// listeners may be served at once.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// SetServing tells health checks, of the server and of the service, that requests are welcome.
func (s *Server) SetServing() { s.setHealth(healthpb.HealthCheckResponse_SERVING) }

// SetNotServing tells health checks to send requests elsewhere. Those that come are answered.
func (s *Server) SetNotServing() { s.setHealth(healthpb.HealthCheckResponse_NOT_SERVING) }

func (s *Server) setHealth(to healthpb.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", to)
	s.health.SetServingStatus(ServiceName, to)
}

// GracefulStop takes no new requests and returns when those under way are answered. A health watch never ends
// by itself: whoever calls this must call Stop, from elsewhere, when it has taken long enough.
func (s *Server) GracefulStop() { s.grpc.GracefulStop() }

// Stop ends all connections at once. A GracefulStop that waits returns.
func (s *Server) Stop() { s.grpc.Stop() }

// guard answers a panic with Internal, and says where it happened.
type guard struct {
	log      *slog.Logger
	panicked func()
}

func (g guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = g.internal(ctx, info.FullMethod, r)
		}
	}()
	return next(ctx, req)
}

func (g guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = g.internal(ss.Context(), info.FullMethod, r)
		}
	}()
	return next(srv, ss)
}

func (g guard) internal(ctx context.Context, method string, r any) error {
	g.panicked()
	g.log.LogAttrs(ctx, slog.LevelError, "panic in a request",
		slog.String("method", method), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
	return status.Error(codes.Internal, "internal error; the server's log has the details")
}
