package rlqs

import (
	"cmp"
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

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/reload"
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
	// MaxStreams is the most streams at once. 0 is DefaultMaxStreams.
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
	TooMany       uint64 // streams refused beyond ServiceOptions.MaxStreams
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

	streams                                                          atomic.Int64
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
		o: o, mostPending: 2 * o.Keeper.o.MaxBuckets, stop: make(chan struct{}), odd: logging.Every{Interval: oddLines},
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
		Streams: s.streams.Load(), Reports: s.reports.Load(), Allowed: s.allowed.Load(), Denied: s.denied.Load(),
		BadIDs: s.badIDs.Load(), InvalidEnded: s.invalid.Load(), TooMany: s.tooMany.Load(),
		Unread: s.unread.Load(), ResponsesSent: s.sent.Load(),
	}
}

// serve serves one stream: a reader receives, a writer sends.
func (s *Service) serve(stream grpc.ServerStream) error {
	defer s.streams.Add(-1)
	if s.streams.Add(1) > int64(s.o.MaxStreams) {
		s.tooMany.Add(1)
		return status.Errorf(codes.ResourceExhausted, "this replica serves %d quota streams, and no more; "+
			"run more replicas, or raise --quota-max-streams", s.o.MaxStreams)
	}
	remote, since := s.connection(stream.Context())
	box := newOutbox(s.mostPending)
	r := &reader{s: s, stream: stream, box: box, ended: make(chan struct{}), reported: make(chan struct{}, 1)}
	w := &writer{s: s, stream: stream, box: box, last: make(chan struct{}), ended: make(chan struct{})}
	go r.run()
	go w.run() // a send that the client does not read ends with the stream only
	endedByClient, err := s.await(r, w, since)
	if endedByClient { // if the connection is gone, too, Envoy may live on, with what is assigned to it
		_, endedByClient = s.o.Opened(remote)
	}
	r.close(endedByClient)
	return err
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
func (s *Service) await(r *reader, w *writer, since time.Time) (endedByClient bool, err error) {
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

// writer sends what comes into the outbox of one stream.
type writer struct {
	s      *Service
	stream grpc.ServerStream
	box    *outbox

	last  chan struct{} // closed for the last response
	ended chan struct{} // closed when nothing more is sent, because of err
	err   error
}

// run sends until a response cannot be sent, or the last one is.
func (w *writer) run() {
	defer close(w.ended)
	defer func() {
		if p := recover(); p != nil {
			w.err = w.s.panicked(w.stream.Context(), "response", p)
		}
	}()
	for {
		select {
		case <-w.box.full:
			if w.err = w.s.send(w.stream, w.box); w.err != nil {
				return
			}
		case <-w.last:
			w.err = w.s.send(w.stream, w.box)
			return
		case <-w.stream.Context().Done():
			return
		}
	}
}

// finish sends the last response, unless the client does not read.
func (w *writer) finish() error {
	close(w.last)
	timer := time.NewTimer(lastIn)
	defer timer.Stop()
	select {
	case <-w.ended:
		return w.err
	case <-timer.C:
		return nil
	}
}

// send sends all that is in the outbox in one response.
func (s *Service) send(stream grpc.ServerStream, box *outbox) error {
	all := box.take()
	if len(all) == 0 {
		return nil
	}
	if err := stream.SendMsg(responseOf(all)); err != nil {
		return err
	}
	s.sent.Add(1)
	return nil
}

// reader receives the messages of one stream.
type reader struct {
	s      *Service
	stream grpc.ServerStream
	box    *outbox

	ended    chan struct{} // closed when there are no more messages, because of err
	err      error         // nil: the client has said so
	reported chan struct{} // a message has come
	messages atomic.Uint64

	tokens float64 // usages that may come now
	filled time.Time

	mu       sync.Mutex
	to       *Stream // nil until the first message
	domain   string
	isClosed bool
}

// run reads until the stream ends. A panic ends only this stream.
func (r *reader) run() {
	defer close(r.ended)
	defer func() {
		if p := recover(); p != nil {
			r.err = r.s.panicked(r.stream.Context(), "report", p)
		}
	}()
	r.tokens, r.filled = usagesAtOnce, time.Now()
	var m reports
	for {
		if r.err = r.stream.RecvMsg(&m); r.err != nil {
			if errors.Is(r.err, io.EOF) {
				r.err = nil
			}
			return
		}
		r.messages.Add(1)
		r.s.reports.Add(1)
		if err := r.report(&m); err != nil {
			r.s.invalid.Add(1)
			r.err = status.Error(codes.InvalidArgument, err.Error())
			return
		}
		reload.Hint(r.reported)
		r.pace(len(m.usages))
	}
}

// panicked counts and logs a panic. It returns what the client gets.
func (s *Service) panicked(ctx context.Context, what string, why any) error {
	s.o.Panicked()
	s.o.Log.LogAttrs(ctx, slog.LevelError, "a quota stream panicked", slog.String("at", what),
		slog.String("panic", fmt.Sprint(why)), slog.String("stack", string(debug.Stack())))
	return status.Error(codes.Internal, "internal error, see the log of the rate limit service")
}

// endedByClient reports whether the client has ended the stream, or the connection broke.
func (r *reader) endedByClient() bool {
	select {
	case <-r.ended:
		return r.err == nil || status.Code(r.err) == codes.Canceled
	default:
		return r.stream.Context().Err() != nil
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
	usable := m.usages[:0]
	for _, u := range m.usages {
		r.s.allowed.Add(u.Allowed)
		r.s.denied.Add(u.Denied)
		r.s.o.Reported(u.Allowed, u.Denied)
		if _, err := entriesOf(u.ID, r.s.o.MaxEntries); err != nil {
			r.s.unusable(cmp.Or(r.domain, m.domain), err)
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
		r.domain = m.domain
		r.to = r.s.o.Keeper.Open(r.domain, nodeOf(r.stream.Context()), r.box)
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
func (r *reader) close(endedByEnvoy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isClosed = true
	if r.to != nil {
		r.to.Close(endedByEnvoy)
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

// outbox has what is to be sent on a stream: for each bucket the assignments that came last, so that a slow stream
// keeps no more than one moment's, of so many buckets at most. It is safe for concurrent use.
type outbox struct {
	full    chan struct{} // has one element if something is pending
	tooMany chan struct{} // has one element once something was dropped
	most    int           // buckets

	mu      sync.Mutex
	pending map[BucketID][]Assignment
	order   []BucketID // in which the buckets came
}

var _ Sender = (*outbox)(nil)

func newOutbox(most int) *outbox {
	return &outbox{
		full: make(chan struct{}, 1), tooMany: make(chan struct{}, 1), most: most, pending: map[BucketID][]Assignment{},
	}
}

// Send implements Sender.
func (m *outbox) Send(all []Assignment) {
	if len(all) == 0 {
		return
	}
	m.mu.Lock()
	isNew := make(map[BucketID]bool, len(all)) // those of which this call has sent something
	for _, a := range all {
		of, ok := m.pending[a.ID]
		if !ok && len(m.order) >= m.most {
			reload.Hint(m.tooMany)
			continue
		}
		if !ok {
			m.order = append(m.order, a.ID)
		}
		if !isNew[a.ID] {
			isNew[a.ID], of = true, nil
		}
		m.pending[a.ID] = append(of, a)
	}
	m.mu.Unlock()
	reload.Hint(m.full)
}

// take empties the outbox.
func (m *outbox) take() []Assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Assignment, 0, len(m.order))
	for _, id := range m.order {
		all = append(all, m.pending[id]...)
	}
	clear(m.pending)
	m.order = m.order[:0]
	return all
}
