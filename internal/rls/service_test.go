package rls

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const parityRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: minute, requests_per_unit: 2}
  - key: path
    value: /checkout
    rate_limit: {unit: second, requests_per_unit: 1}
    descriptors:
      - key: method
        value: POST
        rate_limit: {unit: hour, requests_per_unit: 5}
  - key: parent
    descriptors:
      - key: child
        rate_limit: {unit: day, requests_per_unit: 7}
  - key: free
    rate_limit: {unlimited: true}
  - key: known
  - key: banned
    rate_limit: {unit: minute, requests_per_unit: 0}
`

func TestResponseExactly(t *testing.T) {
	s, c := service(t, `
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, algorithm: funnel, requests_per_unit: 1, unit: minute, unit_multiplier: 2, burst: 1}
`)
	req := request(descriptor("user=a"))
	limit := &pb.RateLimitResponse_RateLimit{
		Name:            "per-user",
		RequestsPerUnit: 1,
		Unit:            pb.RateLimitResponse_RateLimit_MINUTE,
		UnitMultiplier:  wrapperspb.UInt32(2),
	}
	want := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
			Code: pb.RateLimitResponse_OK, CurrentLimit: limit, DurationUntilReset: durationpb.New(120 * time.Second),
		}},
	}
	if diff := cmp.Diff(want, ask(t, s, req), protocmp.Transform()); diff != "" {
		t.Errorf("first request (-want +got):\n%s", diff)
	}
	c.advance(500 * time.Millisecond)
	want = &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OVER_LIMIT,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
			Code: pb.RateLimitResponse_OVER_LIMIT, CurrentLimit: limit, DurationUntilReset: durationpb.New(120 * time.Second),
		}},
		ResponseHeadersToAdd: []*corepb.HeaderValue{{Key: "Retry-After", Value: "120"}},
	}
	if diff := cmp.Diff(want, ask(t, s, req), protocmp.Transform()); diff != "" {
		t.Errorf("second request (-want +got):\n%s", diff)
	}
}

// A descriptor's own hits_addend goes before the request's, also with is_negative_hits; 0 in the request is 1.
func TestHitsAddend(t *testing.T) {
	s, _ := service(t, "domain: shop\ndescriptors: [{key: tokens, rate_limit: {unit: minute, requests_per_unit: 100}}]\n")
	tokens := func() *commonpb.RateLimitDescriptor { return descriptor("tokens=a") }
	for _, tt := range []struct {
		addend uint32
		of     *commonpb.RateLimitDescriptor
		left   uint32
	}{
		{0, tokens(), 99},
		{10, tokens(), 89},
		{10, costing(4, tokens()), 85},
		{10, costing(0, tokens()), 85},
		{10, negative(tokens()), 95},
		{10, negative(costing(2, tokens())), 97},
		{10, negative(costing(0, tokens())), 97},
	} {
		req := request(tt.of)
		req.HitsAddend = tt.addend
		if got := ask(t, s, req).GetStatuses()[0].GetLimitRemaining(); got != tt.left {
			t.Errorf("hits_addend %d, %v: %d left, want %d", tt.addend, tt.of, got, tt.left)
		}
	}
}

// A request's own limit has units and a multiplier.
func TestOwnLimitOfARequest(t *testing.T) {
	s, _ := service(t, parityRules)
	req := request(multiplied(30, limited(7, typepb.RateLimitUnit_SECOND, descriptor("user=a"))))
	if got, want := show(ask(t, s, req)), "OK | OK per-user 7/secondx30 left 6 reset 30s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// registrar is a gRPC server that only remembers.
type registrar struct{ desc *grpc.ServiceDesc }

func (r *registrar) RegisterService(desc *grpc.ServiceDesc, _ any) { r.desc = desc }

// Reflection, health and clients see the service as protoc has generated it.
func TestRegistered(t *testing.T) {
	s, _ := service(t, parityRules)
	var ours, generated registrar
	s.Register(&ours)
	pb.RegisterRateLimitServiceServer(&generated, pb.UnimplementedRateLimitServiceServer{})
	got, want := ours.desc, generated.desc
	if got.ServiceName != want.ServiceName || got.Metadata != want.Metadata || len(got.Methods) != 1 ||
		got.Methods[0].MethodName != want.Methods[0].MethodName {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	receive := func(any) error { return nil }
	refuse := func(_ context.Context, _ any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
		return nil, status.Error(codes.Aborted, info.FullMethod)
	}
	_, err := got.Methods[0].Handler(s, t.Context(), receive, refuse)
	if status.Convert(err).Message() != pb.RateLimitService_ShouldRateLimit_FullMethodName {
		t.Errorf("through an interceptor: %v", err)
	}
}

func TestInvalid(t *testing.T) {
	many := func(n int) []*commonpb.RateLimitDescriptor {
		ds := make([]*commonpb.RateLimitDescriptor, n)
		for i := range ds {
			ds[i] = descriptor("user=a")
		}
		return ds
	}
	ok := descriptor("user=a")
	long := strings.Repeat("x", decide.DefaultMaxEntryBytes+1)
	tests := []struct {
		name string
		req  *pb.RateLimitRequest
		want string
	}{
		{"nil", nil, "domain: must not be empty; set the domain of Envoy's rate limit filter"},
		{"no domain", &pb.RateLimitRequest{}, "domain: must not be empty; set the domain of Envoy's rate limit filter"},
		{"no descriptors", request(), "descriptors: must not be empty; send at least one descriptor"},
		{"descriptors", request(many(129)...), "descriptors: must be at most 128, got 129"},
		{"nil descriptor", request(ok, nil), "descriptors[1].entries: must not be empty; send at least one key and value"},
		{
			"no entries",
			request(ok, ok, descriptor()),
			"descriptors[2].entries: must not be empty; send at least one key and value",
		},
		{"entries", request(descriptor(make([]string, 2049)...)), "descriptors[0].entries: must be at most 2048, got 2049"},
		{"no key", request(descriptor("user=a", "=b")), "descriptors[0].entries[1].key: must not be empty"},
		{"long key", request(descriptor(long)), "descriptors[0].entries[0].key: must be at most 65536 bytes, got 65537"},
		{
			"long value",
			request(descriptor("a=" + long)),
			"descriptors[0].entries[0].value: must be at most 65536 bytes, got 65537",
		},
		{
			"absurd cost", request(ok, costing(math.MaxUint64, descriptor("user=a"))),
			"descriptors[1].hits_addend: must be at most 4294967295, got 18446744073709551615",
		},
		{
			"absurd refund", request(negative(costing(1<<32, descriptor("user=a")))),
			"descriptors[0].hits_addend: must be at most 4294967295, got 4294967296",
		},
		{
			"unit 0", request(limited(1, 0, descriptor("user=a"))),
			"descriptors[0].limit.unit: UNKNOWN is not known; use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
		},
		{
			"unit 99", request(limited(1, 99, descriptor("user=a"))),
			"descriptors[0].limit.unit: 99 is not known; use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
		},
		{
			"unit -1", request(limited(1, -1, descriptor("user=a"))),
			"descriptors[0].limit.unit: -1 is not known; use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
		},
		{
			"multiplier 0", request(multiplied(0, limited(1, 1, descriptor("user=a")))),
			"descriptors[0].limit.unit_multiplier: must be between 1 and 315360000 for unit SECOND, got 0",
		},
		{
			"multiplier", request(multiplied(math.MaxUint32, limited(1, typepb.RateLimitUnit_YEAR, descriptor("user=a")))),
			"descriptors[0].limit.unit_multiplier: must be between 1 and 10 for unit YEAR, got 4294967295",
		},
	}
	rec := &recorder{}
	s, _ := service(t, parityRules, func(o *options) { o.Observer = rec })
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := send(context.Background(), s, tt.req)
			if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != tt.want {
				t.Errorf("got %v\nwant InvalidArgument: %s", err, tt.want)
			}
			if diff := cmp.Diff([]string{"rejected InvalidArgument"}, rec.take()); diff != "" {
				t.Errorf("observed (-want +got):\n%s", diff)
			}
		})
	}
}

// An override that does not fit the rule's algorithm is the request's mistake.
func TestOverrideThatDoesNotFit(t *testing.T) {
	s, _ := service(t, `
domain: shop
descriptors:
  - {key: user, rate_limit: {algorithm: sliding_log, unit: second, requests_per_unit: 10}}
`)
	_, err := send(context.Background(), s, request(limited(1_000_000, 1, descriptor("user=a"))))
	message := status.Convert(err).Message()
	for _, want := range []string{"descriptors[0].limit: limit of 1000000 requests per 1s on user", "use sliding_window"} {
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(message, want) {
			t.Errorf("got %v, want InvalidArgument with %q", err, want)
		}
	}
}

func TestNoRulesYet(t *testing.T) {
	rec := &recorder{}
	s, _ := service(t, parityRules, func(o *options) {
		o.Rules = func() *descriptors.Set { return nil }
		o.Observer = rec
	})
	_, err := send(context.Background(), s, request(descriptor("user=a")))
	if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "no rules are loaded yet" {
		t.Errorf("got %v, want Unavailable: no rules are loaded yet", err)
	}
	if diff := cmp.Diff([]string{"rejected Unavailable"}, rec.take()); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
}

// A request is decided by one set of rules, and asks the store once.
func TestOneLoadAndOneTake(t *testing.T) {
	set := compile(t, parityRules)
	var loads, takes int
	mem := memory(t, newClock())
	s, _ := service(t, parityRules, func(o *options) {
		o.Rules = func() *descriptors.Set { loads++; return set }
		o.Store = storeFunc(func(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
			takes++
			if len(hits) != 3 {
				t.Errorf("%d hits, want 3", len(hits))
			}
			return mem.Take(ctx, hits, out)
		})
	})
	ask(t, s, request(descriptor("user=a"), descriptor("user=b"), descriptor("free=1"), descriptor("path=/checkout")))
	if loads != 1 || takes != 1 {
		t.Errorf("%d loads and %d takes, want 1 and 1", loads, takes)
	}
	ask(t, s, request(descriptor("free=1")))
	if takes != 1 {
		t.Error("the store was asked about nothing")
	}
}

func TestOptions(t *testing.T) {
	_, err := New(Options{})
	if want := "rls: Options.Decider: must be set"; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}
