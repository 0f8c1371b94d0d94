package rlqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/logging"
)

// Bounds of a Service.
const (
	// NodeHeader is the gRPC metadata by which an Envoy may say who it is (GrpcService.initial_metadata).
	NodeHeader = "x-weir-node"

	maxStreams = 2000
	maxNode    = 200              // bytes of a node's name
	maxDomain  = 200              // bytes of a domain's name
	firstIn    = 10 * time.Second // for the first message of a stream
	lastIn     = time.Second      // for the last response of a stream, if the client does not read it

	// An Envoy sends a usage of each bucket every 5 s, and one at once for each new bucket: a flood of invented ones
	// must not delay the reports behind them. Beyond so many usages a second, and so many at once, Weir reads the stream
	// more slowly.
	usagesPerSecond, usagesAtOnce = 20_000, 100_000

	oddLines = 10 * time.Second // between two log lines that clients can cause
)

// ServiceOptions are the parts of a Service.
type ServiceOptions struct {
	Keeper *Keeper
	// Panicked counts a panic that a message caused. Nil: panics are not counted.
	Panicked func()
	// Reported counts requests that Envoys decided, of all buckets. Nil: they are not counted.
	Reported func(allowed, denied uint64)
	Log      *slog.Logger
}

// ServiceStats say what a Service does. Counts are since NewService.
type ServiceStats struct {
	Reports      uint64 // messages of Envoys
	Allowed      uint64 // requests that Envoys reported as admitted
	Denied       uint64 // requests that Envoys reported as denied
	BadIDs       uint64 // usages without an assignment, since their entries are not usable
	InvalidEnded uint64 // streams ended since a message was wrong
	TooMany      uint64 // streams refused
}

// Service is Envoy's RateLimitQuotaService. It is safe for concurrent use.
type Service struct {
	o       ServiceOptions
	stop    chan struct{}
	stopped sync.Once
	odd     logging.Every // lines about unusable buckets

	mu      sync.Mutex
	streams places

	reports, allowed, denied, badIDs, invalid, tooMany atomic.Uint64
}

// NewService checks the options.
func NewService(o ServiceOptions) (*Service, error) {
	if o.Keeper == nil || o.Log == nil {
		return nil, errors.New("rlqs: ServiceOptions: Keeper and Log must be set")
	}
	if o.Panicked == nil {
		o.Panicked = func() {}
	}
	if o.Reported == nil {
		o.Reported = func(uint64, uint64) {}
	}
	return &Service{
		o: o, stop: make(chan struct{}), odd: logging.Every{Interval: oddLines},
		streams: places{most: maxStreams, hosts: map[string]int{}},
	}, nil
}

// Register makes the service answer StreamRateLimitQuotas on a server that has Codec.
func (s *Service) Register(on grpc.ServiceRegistrar) {
	name := strings.TrimPrefix(pb.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName, "/")
	service, method, _ := strings.Cut(name, "/")
	on.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: method, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
		Metadata: pb.File_envoy_service_rate_limit_quota_v3_rlqs_proto.Path(), // what reflection finds the messages by
	}, s)
}

// Stop ends all streams, and each that begins later: Envoys keep what is assigned to them until it expires, and open
// another stream with their next report. Call Keeper.Stop before.
func (s *Service) Stop() { s.stopped.Do(func() { close(s.stop) }) }

// Stats returns what the service did.
func (s *Service) Stats() ServiceStats {
	return ServiceStats{
		Reports: s.reports.Load(), Allowed: s.allowed.Load(), Denied: s.denied.Load(), BadIDs: s.badIDs.Load(),
		InvalidEnded: s.invalid.Load(), TooMany: s.tooMany.Load(),
	}
}

// serve serves one stream: a reader receives, a writer sends.
func (s *Service) serve(stream grpc.ServerStream) error {
	host := hostOf(stream.Context())
	s.mu.Lock()
	ok := s.streams.take(host)
	s.mu.Unlock()
	if !ok {
		s.tooMany.Add(1)
		return status.Errorf(codes.ResourceExhausted, "your host has as many quota streams as are free of %d: "+
			"run more replicas of the rate limit service", s.streams.most)
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.streams.leave(host)
	}()
	r := &reader{s: s, stream: stream, host: host, box: newOutbox(), first: make(chan struct{})}
	defer r.close()
	last := make(chan struct{}) // closed for the last response
	read := s.do(stream, "report", r.run)
	written := s.do(stream, "response", func() error { return s.write(stream, r.box, last) })
	first := time.NewTimer(firstIn)
	defer first.Stop()
	for seen, isStopping := r.first, false; !isStopping; {
		select {
		case err := <-read:
			return err
		case err := <-written:
			return err
		case <-first.C:
			return status.Errorf(codes.DeadlineExceeded, "no message came in %s; begin the stream with a "+
				"RateLimitQuotaUsageReports that has a domain", firstIn)
		case <-seen:
			first.Stop()
			seen = nil
		case <-s.stop:
			isStopping = true
		}
	}
	close(last)
	select {
	case err := <-written:
		return err
	case <-time.After(lastIn):
		return nil
	}
}

// do runs f, whose panic ends only this stream. The channel gets the result.
func (s *Service) do(stream grpc.ServerStream, what string, f func() error) <-chan error {
	result := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				s.o.Panicked()
				s.o.Log.LogAttrs(stream.Context(), slog.LevelError, "a quota stream panicked", slog.String("at", what),
					slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
				result <- status.Error(codes.Internal, "internal error, see the log of the rate limit service")
			}
		}()
		result <- f()
	}()
	return result
}

// write sends what comes into the outbox, until last is closed or the stream ends.
func (s *Service) write(stream grpc.ServerStream, box *outbox, last <-chan struct{}) error {
	for isLast := false; !isLast; {
		select {
		case <-box.full:
		case <-last:
			isLast = true
		case <-stream.Context().Done():
			return nil
		}
		if all := box.take(); len(all) > 0 {
			if err := stream.SendMsg(responseOf(all)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hostOf returns the host that a stream comes from.
func hostOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
		return host
	}
	return p.Addr.Network() // clients of a Unix socket have no names
}

// reader receives the messages of one stream.
type reader struct {
	s      *Service
	stream grpc.ServerStream
	box    *outbox
	host   string
	first  chan struct{} // closed with the first message

	domain string
	tokens float64 // usages that may come now
	filled time.Time

	mu       sync.Mutex
	to       *Stream // nil until the first message
	isClosed bool
}

// run reads until the stream ends.
func (r *reader) run() error {
	r.tokens, r.filled = usagesAtOnce, time.Now()
	var m reports
	for {
		if err := r.stream.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r.s.reports.Add(1)
		if err := r.report(&m); err != nil {
			r.s.invalid.Add(1)
			return status.Error(codes.InvalidArgument, err.Error())
		}
		r.pace(len(m.usages))
	}
}

// report hands a message to the keeper. The error says what is wrong with it, and what to send.
func (r *reader) report(m *reports) error {
	switch {
	case m.wrong != nil:
		return m.wrong
	case r.domain == "" && m.domain == "":
		return errors.New("domain: must not be empty in the first message; set the domain of Envoy's quota filter")
	case len(m.domain) > maxDomain:
		return fmt.Errorf("domain: must be at most %d bytes, got %d", maxDomain, len(m.domain))
	case r.domain != "" && m.domain != "" && m.domain != r.domain:
		return fmt.Errorf("domain: this stream is of %q, got %q; open another stream for another domain", r.domain,
			m.domain)
	}
	if r.domain == "" {
		r.domain = m.domain
		close(r.first)
	}
	usable := m.usages[:0]
	for _, u := range m.usages {
		r.s.allowed.Add(u.Allowed)
		r.s.denied.Add(u.Denied)
		r.s.o.Reported(u.Allowed, u.Denied)
		if _, err := entriesOf(u.ID); err != nil {
			r.s.unusable(r.domain, err)
			continue
		}
		usable = append(usable, u)
	}
	m.usages = usable
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed {
		return nil
	}
	if r.to == nil {
		r.to = r.s.o.Keeper.Open(r.host, r.domain, nodeOf(r.stream.Context()), r.box)
	}
	r.to.Report(usable)
	return nil
}

// unusable counts a bucket without an assignment, and logs some. Values of requests are not logged.
func (s *Service) unusable(domain string, why error) {
	s.badIDs.Add(1)
	if skipped, ok := s.odd.Allow(time.Now()); ok {
		s.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "a bucket gets no quota, since its entries are not usable",
			slog.String("domain", domain), slog.String("why", why.Error()), slog.Uint64("skipped", skipped))
	}
}

// pace waits if usages come faster than an Envoy sends them.
func (r *reader) pace(usages int) {
	now := time.Now()
	r.tokens = min(usagesAtOnce, r.tokens+now.Sub(r.filled).Seconds()*usagesPerSecond) - float64(max(usages, 1))
	if r.filled = now; r.tokens >= 0 {
		return
	}
	timer := time.NewTimer(time.Duration(-r.tokens / usagesPerSecond * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.stream.Context().Done():
	}
}

// close ends the keeper's stream.
func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isClosed = true
	if r.to != nil {
		r.to.Close()
	}
}

// nodeOf returns who the Envoy says it is.
func nodeOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if of := md.Get(NodeHeader); len(of) > 0 {
		return logging.Shorten(of[0], maxNode)
	}
	return ""
}
