// Package grpcserver is the gRPC server of a process: Envoy's service, quotas, health and reflection at one address.
package grpcserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/listen"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/internal/rls"
)

const (
	handshakeTimeout = 10 * time.Second
	// maxAgeGrace is the time for the requests of a connection to end after it has reached its maximum age.
	maxAgeGrace = 30 * time.Second
	// workersPerCPU is the number of goroutines per CPU that wait for requests. A new goroutine per request would first
	// have to grow its stack, which costs 3 of 19 us. Further requests get new goroutines.
	workersPerCPU = 64
	// connWindow is the flow-control window of a connection, in bytes. Without a fixed window, gRPC would measure the
	// bandwidth with a ping to the client for nearly every request that comes alone.
	connWindow = 1 << 20
	// maxHeaderList is the maximum size of a request's headers, in bytes. Envoy sends a few hundred; gRPC allows 16 MB.
	maxHeaderList = 16 << 10
	// keepaliveTime is the time of silence after which a client gets a ping.
	keepaliveTime = time.Minute
	// minPing is the minimum interval between a client's pings. Weir disconnects clients that send more.
	minPing = 5 * time.Second
)

// Config are the flags of the gRPC address.
type Config struct {
	GRPCAddr string `group:"listen" name:"grpc-addr" env:"WEIR_GRPC_ADDR" default:":8081" help:"Address for Envoy (gRPC): host:port, :port or unix:PATH."`

	GRPCTLSCert        string   `group:"tls" name:"grpc-tls-cert" env:"WEIR_GRPC_TLS_CERT" placeholder:"FILE" help:"Certificate of the gRPC address, in PEM; enables TLS. Weir reloads changed certificates, keys and authorities."`
	GRPCTLSKey         string   `group:"tls" name:"grpc-tls-key" env:"WEIR_GRPC_TLS_KEY" placeholder:"FILE" help:"Private key of --grpc-tls-cert, in PEM."`
	GRPCTLSClientCA    string   `group:"tls" name:"grpc-tls-client-ca" env:"WEIR_GRPC_TLS_CLIENT_CA" placeholder:"FILE" help:"Certificate authorities, in PEM; clients need a certificate of one of them."`
	GRPCTLSClientNames []string `group:"tls" name:"grpc-tls-client-names" env:"WEIR_GRPC_TLS_CLIENT_NAMES" placeholder:"NAME" help:"Subject alternative names, one of which a client's certificate must have, such as spiffe://mesh/ns/edge/sa/envoy. Repeatable."`

	GRPCMaxConnectionAge time.Duration `group:"grpc" name:"grpc-max-connection-age" env:"WEIR_GRPC_MAX_CONNECTION_AGE" default:"30m" help:"Make clients reconnect after this time, so that they spread over all replicas; 0 for never."`

	// Bounds on clients in addition to conns.Bounds. Only tests set them; 0 is the default.
	IdleConnection time.Duration `kong:"-"` // after which a connection without requests is closed gracefully
	MaxStreams     uint32        `kong:"-"` // maximum number of concurrent requests per connection
	MaxMessage     int           `kong:"-"` // maximum size of a request in bytes
}

// TLS returns the TLS configuration of the address.
func (c *Config) TLS(log *slog.Logger) *listen.TLS {
	return &listen.TLS{
		Listener: "grpc", Cert: c.GRPCTLSCert, Key: c.GRPCTLSKey, ClientCA: c.GRPCTLSClientCA, Names: c.GRPCTLSClientNames,
		Auth: tls.RequireAndVerifyClientCert, Protocols: []string{"h2"}, Log: log,
	}
}

// Check checks the flags.
func (c *Config) Check(e *flags.Errors) {
	e.Addr("--grpc-addr", c.GRPCAddr)
	c.TLS(nil).Check(e)
	if c.GRPCMaxConnectionAge != 0 {
		flags.Between(e, "--grpc-max-connection-age", c.GRPCMaxConnectionAge, time.Second, 365*24*time.Hour)
	}
}

// Options are the dependencies of a Server, and settings without a flag.
type Options struct {
	Config

	Service *rls.Service
	Quotas  *rlqs.Keeper // nil without --quota
	Calls   *Calls
	Guard   *conns.Guard
	// ServerOptions are for tracing.
	ServerOptions []grpc.ServerOption
	Log           *slog.Logger
}

// Server is the gRPC server. Its methods are safe for concurrent use.
type Server struct {
	Health *Health
	TLS    *listen.TLS

	o        Options
	server   *grpc.Server
	listener net.Listener
}

// New returns a Server with its certificates. It does not listen yet.
func New(ctx context.Context, o Options) (*Server, error) {
	s := &Server{Health: newHealth(), TLS: o.TLS(o.Log), o: o}
	config, err := s.TLS.Load(ctx)
	if err != nil {
		return nil, err
	}
	if config != nil {
		o.ServerOptions = append(o.ServerOptions, grpc.Creds(s.TLS.Credentials(config)))
	}
	codec := conns.Codec(rls.Codec())
	if o.Quotas != nil {
		codec = conns.Codec(rlqs.Codec(rls.Codec()))
	}
	s.server = newServer(&o, codec)
	o.Service.Register(s.server)
	if o.Quotas != nil {
		quotapb.RegisterRateLimitQuotaServiceServer(s.server, o.Quotas)
	}
	healthpb.RegisterHealthServer(s.server, s.Health)
	reflection.Register(s.server)
	return s, nil
}

// newServer returns a gRPC server without services.
func newServer(o *Options, codec encoding.CodecV2) *grpc.Server {
	return grpc.NewServer(append(o.ServerOptions,
		grpc.ForceServerCodecV2(codec),
		grpc.UnaryInterceptor(o.Calls.Unary),
		grpc.StreamInterceptor(o.Calls.stream),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.NumStreamWorkers(uint32(workersPerCPU*runtime.GOMAXPROCS(0))), //nolint:gosec // small
		grpc.StaticConnWindowSize(connWindow),
		grpc.MaxConcurrentStreams(cmp.Or(o.MaxStreams, 1000)),
		// Envoy sends its largest header, up to 60 KiB by default, once per descriptor. This is enough for 68 descriptors.
		grpc.MaxRecvMsgSize(cmp.Or(o.MaxMessage, 4<<20)),
		grpc.RPCDecompressor(uncompressed{}), //nolint:staticcheck // only this option has precedence over the registered gzip
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     cmp.Or(o.IdleConnection, 10*time.Minute),
			MaxConnectionAge:      o.GRPCMaxConnectionAge,
			MaxConnectionAgeGrace: maxAgeGrace,
			Time:                  keepaliveTime,
			Timeout:               conns.KeepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true), // the store is closed after Stop
	)...)
}

// Listen opens the address.
func (s *Server) Listen(ctx context.Context) error {
	l, err := listen.Listen(ctx, "--grpc-addr", s.o.GRPCAddr, listen.SocketMode, false)
	if err != nil {
		return err
	}
	s.listener = s.o.Guard.Listen(l, s.o.GRPCTLSCert != "") //nolint:contextcheck // it outlives ctx
	return nil
}

// Addr returns the server's address: "host:port" or "unix:PATH".
func (s *Server) Addr() string { return listen.Address(s.listener) }

// Run serves until Stop or Close.
func (s *Server) Run(context.Context) error { return s.server.Serve(s.listener) }

// Stop stops the server after its current requests. The caller must first end Health and the streams of quotas.
func (s *Server) Stop() { s.server.GracefulStop() }

// Cut cancels all requests.
func (s *Server) Cut() { s.server.Stop() }

// Close frees the address. It may be called repeatedly, and without Run.
func (s *Server) Close() error {
	s.Health.End()
	s.server.Stop() // its workers start before it serves
	if s.listener == nil {
		return nil
	}
	return listen.Except(net.ErrClosed, s.listener.Close())
}

// uncompressed refuses messages compressed with gzip, which a library registers for all servers of the process. Envoy
// does not compress, and with compression a client could make Weir allocate a megabyte per kilobyte.
type uncompressed struct{}

// Type implements grpc.Decompressor.
func (uncompressed) Type() string { return gzip.Name }

// Do implements grpc.Decompressor.
func (uncompressed) Do(io.Reader) ([]byte, error) {
	return nil, errors.New("compressed messages are not supported; send messages without grpc-encoding")
}
