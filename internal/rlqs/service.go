package rlqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
)

// Bounds of a Service.
const (
	DefaultMaxStreams = 1000
	// NodeHeader is the gRPC metadata by which an Envoy may say who it is (GrpcService.initial_metadata).
	NodeHeader = "x-weir-node"

	maxNode   = 200              // bytes of a node's name
	maxDomain = 200              // bytes of a domain's name
	firstIn   = 10 * time.Second // for the first message of a stream
	reportIn  = 5 * time.Second  // between two messages of an Envoy
	lastIn    = time.Second      // for the last response of a stream, if the client does not read it

	// An Envoy sends a usage of each bucket every 5 s, and one at once for each new bucket. Beyond so many usages a
	// second, and so many at once, Weir reads the stream more slowly.
	usagesPerSecond, usagesAtOnce = 2_000, 10_000

	// oddLines is the pause between two log lines that clients can cause.
	oddLines = 10 * time.Second
)

// ServiceOptions are the parts of a Service.
type ServiceOptions struct {
	Keeper *Keeper
	// MaxStreams is the most streams at once. Beyond them, a host or connection with fewer gets a stream of the one that
	// has the most. 0 is DefaultMaxStreams.
	MaxStreams int
	// MaxEntries is the most entries of a bucket. 0 is decide.DefaultMaxEntries.
	MaxEntries int
	// MaxAge ends a stream when its connection is so old, between two reports, so that Envoys spread over the replicas
	// again. 0 is never.
	MaxAge time.Duration
	// Opened returns since when the connection from an address is open, if it still is. By it a stream that Envoy ended is
	// told from a connection that broke. Nil: every stream counts as broken, and begins with its connection.
	Opened func(remote net.Addr) (since time.Time, ok bool)
	// Panicked counts a panic that a message caused. Nil: nobody does.
	Panicked func()
	// Reported counts requests that Envoys decided, of all buckets, also of those without an assignment. Nil: nobody does.
	Reported func(allowed, denied uint64)
	Log      *slog.Logger
}

// ServiceStats say what a Service does. Counts are since NewService.
type ServiceStats struct {
	Streams       int64  // open
	Reports       uint64 // messages of Envoys
	Allowed       uint64 // requests that Envoys reported to have let pass
	Denied        uint64 // requests that Envoys reported to have denied
	BadIDs        uint64 // usages without an assignment, since their entries are not usable
	InvalidEnded  uint64 // streams ended since a message was wrong
	TooMany       uint64 // streams refused, or ended for others, beyond ServiceOptions.MaxStreams
	Unread        uint64 // streams ended since the client did not read
	ResponsesSent uint64
}

// Service is Envoy's RateLimitQuotaService. It is safe for concurrent use.
type Service struct {
	o           ServiceOptions
	mostPending int // buckets of a stream with something to be sent: the stream's, and as many that it left
	stop        chan struct{}
	stopped     sync.Once
	odd         logging.Every // lines about unusable buckets

	peers *peers

	reports, allowed, denied, badIDs, invalid, tooMany, unread, sent atomic.Uint64
}

// NewService checks the options.
func NewService(o ServiceOptions) (*Service, error) {
	if o.Keeper == nil || o.Log == nil {
		return nil, errors.New("rlqs: ServiceOptions: Keeper and Log must be set")
	}
	o.MaxStreams = cmp.Or(o.MaxStreams, DefaultMaxStreams)
	o.MaxEntries = cmp.Or(o.MaxEntries, decide.DefaultMaxEntries)
	if o.Panicked == nil {
		o.Panicked = func() {}
	}
	if o.Reported == nil {
		o.Reported = func(uint64, uint64) {}
	}
	if o.Opened == nil {
		o.Opened = func(net.Addr) (time.Time, bool) { return time.Now(), false }
	}
	return &Service{
		o: o, mostPending: 2 * o.Keeper.o.MaxBuckets, peers: newPeers(o.MaxStreams), stop: make(chan struct{}),
		odd: logging.Every{Interval: oddLines},
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

// Stats returns what the service has and did.
func (s *Service) Stats() ServiceStats {
	return ServiceStats{
		Streams: int64(s.peers.count()), Reports: s.reports.Load(), Allowed: s.allowed.Load(), Denied: s.denied.Load(),
		BadIDs: s.badIDs.Load(), InvalidEnded: s.invalid.Load(), TooMany: s.tooMany.Load(),
		Unread: s.unread.Load(), ResponsesSent: s.sent.Load(),
	}
}

// serve serves one stream: a reader receives, a writer sends.
func (s *Service) serve(stream grpc.ServerStream) error {
	remote, since := s.connection(stream.Context())
	by := s.peers.enter(remote)
	if by == nil {
		return s.refuse("")
	}
	defer s.peers.leave(by)
	box := newOutbox(s.mostPending)
	r := &reader{
		s: s, stream: stream, box: box, host: by.host, ended: make(chan struct{}), reported: make(chan struct{}, 1),
	}
	w := &writer{s: s, stream: stream, box: box, last: make(chan struct{}), ended: make(chan struct{})}
	go r.run()
	go w.run() // a send that the client does not read ends with the stream only
	endedByClient, err := s.await(r, w, since, by.lost)
	if endedByClient { // if the connection is gone, too, Envoy may live on, with what is assigned to it
		_, endedByClient = s.o.Opened(remote)
	}
	r.close(endedByClient)
	return err
}

// refuse counts a stream that is one too many. It returns what the client gets.
func (s *Service) refuse(why string) error {
	s.tooMany.Add(1)
	return status.Errorf(codes.ResourceExhausted, "this replica serves %d quota streams, and no more; %s"+
		"run more replicas, or raise --quota-max-streams", s.o.MaxStreams, why)
}

// connection returns where the stream comes from, and since when that is connected.
func (s *Service) connection(ctx context.Context) (remote net.Addr, since time.Time) {
	if p, ok := peer.FromContext(ctx); ok {
		if since, ok := s.o.Opened(p.Addr); ok {
			return p.Addr, since
		}
		return p.Addr, time.Now()
	}
	return nil, time.Now()
}

// await returns when the stream is to end, and why.
func (s *Service) await(
	r *reader, w *writer, since time.Time, lost <-chan struct{},
) (endedByClient bool, err error) {
	var isOld, last <-chan time.Time // last is when a stream whose connection is old ends without a report
	if s.o.MaxAge > 0 {
		timer := time.NewTimer(time.Until(since.Add(s.o.MaxAge)))
		defer timer.Stop()
		isOld = timer.C
	}
	first := time.NewTimer(firstIn)
	defer first.Stop()
	var reported <-chan struct{}
	for {
		select {
		case <-w.ended:
			return r.endedByClient(), w.err
		case <-r.box.tooMany:
			s.unread.Add(1)
			return false, status.Errorf(codes.ResourceExhausted, "assignments of %d buckets wait to be read; "+
				"read the responses of the stream", r.box.most)
		case <-r.ended:
			return r.endedByClient(), r.err
		case <-s.stop:
			return false, w.finish()
		case <-lost:
			return false, s.refuse("your host or connection has the most of them; ")
		case <-isOld:
			timer := time.NewTimer(reportIn)
			defer timer.Stop()
			last, reported = timer.C, r.reported
			select {
			case <-r.reported: // of a report before
			default:
			}
		case <-reported:
			return false, nil
		case <-last:
			return false, nil
		case <-first.C:
			if r.messages.Load() == 0 {
				return false, status.Errorf(codes.DeadlineExceeded, "no message came in %s; begin the stream with a "+
					"RateLimitQuotaUsageReports that has a domain", firstIn)
			}
		}
	}
}

// panicked counts and logs a panic. It returns what the client gets.
func (s *Service) panicked(ctx context.Context, what string, why any) error {
	s.o.Panicked()
	s.o.Log.LogAttrs(ctx, slog.LevelError, "a quota stream panicked", slog.String("at", what),
		slog.String("panic", fmt.Sprint(why)), slog.String("stack", string(debug.Stack())))
	return status.Error(codes.Internal, "internal error, see the log of the rate limit service")
}
