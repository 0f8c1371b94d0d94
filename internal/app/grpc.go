package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/internal/rls"
)

const (
	handshakeTimeout = 10 * time.Second
	// maxAgeGrace is how long the requests of a connection that has reached its age have to end.
	maxAgeGrace = 30 * time.Second
	// workersPerCPU are goroutines that are kept for requests. A new one for each request has to grow its stack
	// first, which costs 3 of 19 us (docs/performance.md). Requests beyond them get a goroutine of their own.
	workersPerCPU = 64
	// connWindow is how much may be on its way on a connection, in bytes. A window that does not change saves a ping to
	// the client, and its answer, for nearly every request that comes alone: gRPC measures by them how large it should be.
	connWindow = 1 << 20
	// maxHeaderList is the most that a request's headers may have, in bytes. Envoy sends a few hundred; gRPC would take 16
	// MB.
	maxHeaderList = 16 << 10
	// unreadFor is how long a client may leave unread what it was sent.
	unreadFor = 30 * time.Second
	// A client that is silent for keepaliveTime is pinged, and has keepaliveTimeout to answer.
	keepaliveTime, keepaliveTimeout = time.Minute, 10 * time.Second
	// minPing is the shortest pause between a client's pings; faster ones are cut off.
	minPing = 5 * time.Second
)

// openGRPC makes the service, and unless this Weir is embedded its gRPC server, with health and reflection. It listens
// later.
func (a *App) openGRPC(ctx context.Context) (err error) {
	a.service, err = rls.New(rls.Options{
		Decider: a.decider, Rejected: a.metrics.Rejected, DynamicMetadata: a.o.DynamicMetadata,
	})
	if err != nil {
		return err
	}
	if a.o.Embedded {
		return nil
	}
	config, err := a.openTLS(ctx, a.o.grpcTLS())
	if err != nil {
		return err
	}
	a.grpc = a.newGRPC(config)
	if k := a.quotas.Load(); k != nil {
		quotapb.RegisterRateLimitQuotaServiceServer(a.grpc, k)
	}
	a.add("gRPC server", func(context.Context) error { return a.grpc.Serve(a.grpcListener) }, func() error {
		a.grpc.Stop() // perhaps again; it has workers before it serves
		return nil
	})
	return nil
}

// newGRPC is a gRPC server of the service, its health and reflection. It does not listen. Without config it speaks
// plain text.
func (a *App) newGRPC(config *tls.Config) *grpc.Server {
	o, opts := &a.o, a.telemetry.ServerOptions()
	if config != nil {
		opts = append(opts, grpc.Creds(watchedTLS{credentials.NewTLS(config), a.grpcHandshakes}))
	}
	s := grpc.NewServer(append(opts,
		grpc.ForceServerCodecV2(o.codec()),
		grpc.UnaryInterceptor(a.unary),
		grpc.StreamInterceptor(a.stream),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.NumStreamWorkers(uint32(workersPerCPU*runtime.GOMAXPROCS(0))), //nolint:gosec // small
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxConcurrentStreams(o.Bounds.Streams),
		grpc.MaxRecvMsgSize(o.Bounds.Message),
		grpc.RPCDecompressor(uncompressed{}), //nolint:staticcheck // nothing else stands before the registered gzip
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     o.Bounds.IdleConnection,
			MaxConnectionAge:      o.GRPCMaxConnectionAge,
			MaxConnectionAgeGrace: maxAgeGrace,
			Time:                  keepaliveTime,
			Timeout:               keepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), // the store is closed after Stop
	)...)
	a.service.Register(s)
	healthpb.RegisterHealthServer(s, a.health)
	reflection.Register(s)
	return s
}

// uncompressed refuses messages that are compressed by gzip, which a library registers for all servers of the process.
// Envoy does not compress, and a client could have Weir make a megabyte of each kilobyte.
type uncompressed struct{}

// Type implements grpc.Decompressor.
func (uncompressed) Type() string { return gzip.Name }

// Do implements grpc.Decompressor.
func (uncompressed) Do(io.Reader) ([]byte, error) {
	return nil, errors.New("no compressed messages are taken: send them without grpc-encoding")
}

// unary measures requests, and makes a panic an Internal error of that request alone.
func (a *App) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (res any, err error) {
	if info.FullMethod == pb.RateLimitService_ShouldRateLimit_FullMethodName {
		start := time.Now()
		defer func() {
			took := time.Since(start)
			a.metrics.Requested(took)
			// Envoy also gives up a request whose client has gone, and nothing passes: mostly before the end of its timeout.
			if end, ok := ctx.Deadline(); ok && end.Sub(start)-took < took/10 && ctx.Err() != nil {
				a.metrics.Abandoned()
			}
		}()
	}
	defer func() {
		if p := recover(); p != nil {
			res, err = nil, a.panicked(ctx, info.FullMethod, p)
		}
	}()
	if res, err = handler(ctx, req); err == nil && !rls.IsSmall(res) {
		res = conns.Answer(ctx, res)
	}
	return res, err
}

// stream makes a panic an Internal error of that stream alone.
func (a *App) stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = a.panicked(stream.Context(), info.FullMethod, p)
		}
	}()
	var turn chan struct{}
	if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") { // a short question has an answer of 100 KB
		turn = a.reflecting
	}
	return conns.Stream(stream, turn, func(s grpc.ServerStream) error { return handler(srv, s) })
}

// panicked counts and logs a panic, and returns the error of its request.
func (a *App) panicked(ctx context.Context, method string, p any) error {
	a.metrics.Panicked()
	a.o.Log.LogAttrs(ctx, slog.LevelError, "request panicked", slog.String("method", method),
		slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
	return status.Error(codes.Internal, "internal error, see the log of the rate limit service")
}

// codec reads and writes the messages of all services.
func (o *Options) codec() encoding.CodecV2 {
	if o.Quota {
		return conns.Codec(rlqs.Codec(rls.Codec()))
	}
	return conns.Codec(rls.Codec())
}
