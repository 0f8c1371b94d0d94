//go:build e2e

package rlqs

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// quotaServer is an RLQS server that keeps what Envoy sends, and sends what the test says.
type quotaServer struct {
	rlqsv3.UnimplementedRateLimitQuotaServiceServer

	addr string // host:port

	grpc   *grpc.Server
	served chan struct{} // closed when grpc has ended

	mu       sync.Mutex
	streams  []*stream
	messages []message // in the order in which they came
	conns    int       // open connections
}

// stream is a stream of one Envoy and domain.
type stream struct {
	grpc.BidiStreamingServer[rlqsv3.RateLimitQuotaUsageReports, rlqsv3.RateLimitQuotaResponse]

	domain  string // of the first message
	headers metadata.MD
	opened  time.Time
	end     chan error // what the server shall end the stream with
	// received is the error of the last Recv; nil while the stream lasts.
	received error
}

// message is one message of reports.
type message struct {
	domain string
	stream *stream
	at     time.Time
	usages map[string]usage // by bucketName
}

// usage is the report of a bucket.
type usage struct {
	allowed, denied uint64
	elapsed         time.Duration
}

// startQuotaServer starts a server that ends with the test. An empty addr is a free port.
func startQuotaServer(t *testing.T, addr string) *quotaServer {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &quotaServer{addr: l.Addr().String(), served: make(chan struct{})}
	s.grpc = grpc.NewServer(grpc.StatsHandler(connections{s}))
	rlqsv3.RegisterRateLimitQuotaServiceServer(s.grpc, s)
	go func() {
		defer close(s.served)
		_ = s.grpc.Serve(l)
	}()
	t.Cleanup(s.stop)
	return s
}

// connections counts open connections.
type connections struct{ *quotaServer }

// HandleConn implements stats.Handler, as do the others.
func (c connections) HandleConn(_ context.Context, s stats.ConnStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s.(type) {
	case *stats.ConnBegin:
		c.conns++
	case *stats.ConnEnd:
		c.conns--
	}
}

func (connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (connections) HandleRPC(context.Context, stats.RPCStats)                         {}

// openConns returns the number of open connections.
func (s *quotaServer) openConns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// stop ends the server and its streams.
func (s *quotaServer) stop() {
	s.grpc.Stop()
	<-s.served
}

// StreamRateLimitQuotas implements the service.
func (s *quotaServer) StreamRateLimitQuotas(
	g grpc.BidiStreamingServer[rlqsv3.RateLimitQuotaUsageReports, rlqsv3.RateLimitQuotaResponse],
) error {
	headers, _ := metadata.FromIncomingContext(g.Context())
	st := &stream{BidiStreamingServer: g, headers: headers, opened: time.Now(), end: make(chan error, 1)}
	s.mu.Lock()
	s.streams = append(s.streams, st)
	s.mu.Unlock()
	received := make(chan struct{})
	go func() { // it ends with the stream
		defer close(received)
		s.receive(st)
	}()
	select {
	case err := <-st.end:
		return err
	case <-received:
		return nil
	}
}

// receive keeps what Envoy sends until the stream ends.
func (s *quotaServer) receive(st *stream) {
	for {
		reports, err := st.Recv()
		now := time.Now()
		s.mu.Lock()
		if err != nil {
			st.received = err
			s.mu.Unlock()
			return
		}
		if st.domain == "" {
			st.domain = reports.GetDomain()
		}
		m := message{domain: reports.GetDomain(), stream: st, at: now, usages: map[string]usage{}}
		for _, u := range reports.GetBucketQuotaUsages() {
			m.usages[bucketName(u.GetBucketId())] = usage{
				u.GetNumRequestsAllowed(), u.GetNumRequestsDenied(), u.GetTimeElapsed().AsDuration(),
			}
		}
		s.messages = append(s.messages, m)
		s.mu.Unlock()
	}
}

// bucketName is the text of a bucket's entries: key=value, sorted, with commas between them.
func bucketName(id *rlqsv3.BucketId) string {
	var pairs []string
	for k, v := range id.GetBucket() {
		pairs = append(pairs, k+"="+v)
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// bucketID is the reverse of bucketName.
func bucketID(name string) *rlqsv3.BucketId {
	id := &rlqsv3.BucketId{Bucket: map[string]string{}}
	for pair := range strings.SplitSeq(name, ",") {
		k, v, _ := strings.Cut(pair, "=")
		id.Bucket[k] = v
	}
	return id
}

// ofDomain returns the messages of a domain so far.
func (s *quotaServer) ofDomain(domain string) []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []message
	for _, m := range s.messages {
		if m.domain == domain {
			all = append(all, m)
		}
	}
	return all
}

// streamsOf returns the streams of a domain so far.
func (s *quotaServer) streamsOf(domain string) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*stream
	for _, st := range s.streams {
		if st.domain == domain {
			all = append(all, st)
		}
	}
	return all
}

// receivedError returns how a stream ended; nil while it lasts.
func (s *quotaServer) receivedError(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return st.received
}

// isTick reports whether the message has all buckets, and is not the first report of one. There are always two buckets
// at least: one of the test and its marker.
func (m message) isTick() bool { return len(m.usages) > 1 }

// names returns the buckets in a message, sorted.
func (m message) names() []string { return slices.Sorted(maps.Keys(m.usages)) }

// ticksOf returns the messages of a domain that are ticks.
func (s *quotaServer) ticksOf(domain string) []message {
	return slices.DeleteFunc(s.ofDomain(domain), func(m message) bool { return !m.isTick() })
}

// awaitTick returns the next tick of a domain.
func (s *quotaServer) awaitTick(t *testing.T, domain string) message {
	t.Helper()
	before := len(s.ticksOf(domain))
	await(t, "a tick of "+domain, func() bool { return len(s.ticksOf(domain)) > before })
	return s.ticksOf(domain)[before]
}

// send sends one response on the newest stream of a domain.
func (s *quotaServer) send(t *testing.T, domain string, actions ...*rlqsv3.RateLimitQuotaResponse_BucketAction) {
	t.Helper()
	streams := s.streamsOf(domain)
	if len(streams) == 0 {
		t.Fatalf("no stream of %s", domain)
	}
	s.mu.Lock() // one Send at a time
	defer s.mu.Unlock()
	err := streams[len(streams)-1].Send(&rlqsv3.RateLimitQuotaResponse{BucketAction: actions})
	if err != nil && context.Cause(t.Context()) == nil {
		t.Fatal(err)
	}
}

// assign is an assignment; no strategy and a TTL below 0 are left out.
func assign(bucket string, s *typev3.RateLimitStrategy, ttl time.Duration) *rlqsv3.RateLimitQuotaResponse_BucketAction {
	a := &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{RateLimitStrategy: s}
	if ttl >= 0 {
		a.AssignmentTimeToLive = durationpb.New(ttl)
	}
	return &rlqsv3.RateLimitQuotaResponse_BucketAction{
		BucketId:     bucketID(bucket),
		BucketAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{QuotaAssignmentAction: a},
	}
}

// abandon has Envoy forget a bucket.
func abandon(bucket string) *rlqsv3.RateLimitQuotaResponse_BucketAction {
	return &rlqsv3.RateLimitQuotaResponse_BucketAction{
		BucketId: bucketID(bucket),
		BucketAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction{},
		},
	}
}

func allowAll() *typev3.RateLimitStrategy { return blanket(typev3.RateLimitStrategy_ALLOW_ALL) }
func denyAll() *typev3.RateLimitStrategy  { return blanket(typev3.RateLimitStrategy_DENY_ALL) }

func blanket(rule typev3.RateLimitStrategy_BlanketRule) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule}}
}

// tokens is a token bucket.
func tokens(size, perFill uint32, fill time.Duration) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: size, TokensPerFill: wrapperspb.UInt32(perFill), FillInterval: durationpb.New(fill),
	}}}
}

// full is a token bucket that gets no token within the test.
func full(size uint32) *typev3.RateLimitStrategy { return tokens(size, 1, time.Hour) }

// perUnit is requests_per_time_unit.
func perUnit(n uint64) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_RequestsPerTimeUnit_{
		RequestsPerTimeUnit: &typev3.RateLimitStrategy_RequestsPerTimeUnit{
			RequestsPerTimeUnit: n, TimeUnit: typev3.RateLimitUnit_SECOND,
		},
	}}
}
