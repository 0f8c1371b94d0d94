package rls

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

func TestMain(m *testing.M) { casetest.Main(m, 100) }

// epoch is the start of a minute and an hour, in microseconds.
const epoch = 1_800_000_000 * int64(time.Second/time.Microsecond)

// clock is a virtual clock.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.us.Store(epoch)
	return c
}

func (c *clock) now() int64              { return c.us.Load() }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

func compile(tb testing.TB, yaml string) *descriptors.Set {
	tb.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(yaml)}})
	if err != nil {
		tb.Fatalf("rules do not compile: %v", err)
	}
	return set
}

func memory(tb testing.TB, c *clock) limiter.Store {
	tb.Helper()
	o := memstore.Options{}
	if c != nil {
		o.Now = c.now
	}
	s, err := memstore.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// options has the options of a service's decider.
type options = decide.Options

// service is a Service over rules; change may alter its options.
func service(tb testing.TB, rules string, change ...func(*options)) (*Service, *clock) {
	tb.Helper()
	set, c := compile(tb, rules), newClock()
	o := options{
		Config: decide.Config{RetryAfter: true}, Rules: func() *descriptors.Set { return set },
	}
	for _, f := range change {
		f(&o)
	}
	if o.Store == nil {
		o.Store = memory(tb, c)
	}
	d, err := decide.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	of := Options{Decider: d}
	if rec, ok := o.Observer.(*recorder); ok {
		of.Rejected = rec.Rejected
	}
	s, err := New(of)
	if err != nil {
		tb.Fatal(err)
	}
	return s, c
}

// descriptor is a descriptor of pairs such as "key=value".
func descriptor(pairs ...string) *commonpb.RateLimitDescriptor {
	d := &commonpb.RateLimitDescriptor{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: k, Value: v})
	}
	return d
}

func costing(n uint64, d *commonpb.RateLimitDescriptor) *commonpb.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func negative(d *commonpb.RateLimitDescriptor) *commonpb.RateLimitDescriptor {
	d.IsNegativeHits = true
	return d
}

func limited(n uint32, unit typepb.RateLimitUnit, d *commonpb.RateLimitDescriptor) *commonpb.RateLimitDescriptor {
	d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
	return d
}

func multiplied(m uint32, d *commonpb.RateLimitDescriptor) *commonpb.RateLimitDescriptor {
	d.Limit.UnitMultiplier = wrapperspb.UInt32(m)
	return d
}

// request returns a request in domain "shop".
func request(ds ...*commonpb.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "shop", Descriptors: ds}
}

// show returns a response in one line: the overall code, each status, and the headers. A status has a code and, with a
// limit, name requests/unit, remaining hits and seconds until reset.
func show(res *pb.RateLimitResponse) string {
	var b strings.Builder
	b.WriteString(res.GetOverallCode().String())
	for _, st := range res.GetStatuses() {
		fmt.Fprintf(&b, " | %s", st.GetCode())
		if l := st.GetCurrentLimit(); l != nil {
			name := l.GetName()
			if name != "" {
				name += " "
			}
			fmt.Fprintf(&b, " %s%d/%s", name, l.GetRequestsPerUnit(), strings.ToLower(l.GetUnit().String()))
			if m := l.GetUnitMultiplier(); m != nil {
				fmt.Fprintf(&b, "x%d", m.GetValue())
			}
		}
		if st.GetCurrentLimit() != nil || st.GetLimitRemaining() != 0 {
			fmt.Fprintf(&b, " left %d", st.GetLimitRemaining())
		}
		if r := st.GetDurationUntilReset(); r != nil {
			fmt.Fprintf(&b, " reset %s", r.AsDuration())
		}
	}
	for _, h := range res.GetResponseHeadersToAdd() {
		fmt.Fprintf(&b, " | %s: %s", h.GetKey(), h.GetValue())
	}
	return b.String()
}

// send sends a request as gRPC does: as bytes, through the codec.
func send(ctx context.Context, s *Service, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	wire, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	return sendWire(ctx, s, wire)
}

func sendWire(ctx context.Context, s *Service, wire []byte) (*pb.RateLimitResponse, error) {
	half := len(wire) / 2
	data := mem.BufferSlice{mem.SliceBuffer(wire[:half]), mem.SliceBuffer(wire[half:])}
	receive := func(v any) error { return Codec().Unmarshal(data, v) }
	answer, err := s.handler(nil)(s, ctx, receive, nil)
	if err != nil {
		return nil, err
	}
	encoded, err := Codec().Marshal(answer)
	if err != nil {
		return nil, err
	}
	res := &pb.RateLimitResponse{}
	return res, proto.Unmarshal(encoded.Materialize(), res)
}

func ask(tb testing.TB, s *Service, req *pb.RateLimitRequest) *pb.RateLimitResponse {
	tb.Helper()
	res, err := send(context.Background(), s, req)
	if err != nil {
		tb.Fatalf("send(%v): %v", req, err)
	}
	return res
}

// recorder is an Observer that records its calls.
type recorder struct {
	mu   sync.Mutex
	said []string
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Decided(l *descriptors.Limit, o decide.Outcome, hits int64, _ *limiter.Decision) {
	r.add("%s %s %d", l.Name, o, hits)
}
func (r *recorder) Answered(*descriptors.Domain, bool) {}
func (r *recorder) Ended(l *descriptors.Limit, charged, spent int64) {
	r.add("%s ended: charged %d, real %d", l.Name, charged, spent)
}
func (r *recorder) NotEnded(l *descriptors.Limit) { r.add("%s: an end is lost", l.Name) }
func (r *recorder) StoreFailed(err error)         { r.add("store failed: %v", err) }
func (r *recorder) Rejected(code codes.Code)      { r.add("rejected %s", code) }

// take returns the calls since the last take.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := slices.Clone(r.said)
	r.said = nil
	return said
}

// storeFunc is a Store whose Take is a function.
type storeFunc func(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error

func (f storeFunc) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	return f(ctx, hits, out)
}

// down is a store that does not answer.
func down(context.Context, []limiter.Hit, []limiter.Decision) error {
	return fmt.Errorf("%w: connection refused", limiter.ErrUnavailable)
}
