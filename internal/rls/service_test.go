package rls

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// step is one request of a scenario and its answer as show has it.
type step struct {
	after time.Duration // the clock is advanced by this first
	req   *pb.RateLimitRequest
	want  string
}

func play(t *testing.T, rules string, steps []step) {
	t.Helper()
	s, c := service(t, rules)
	for i, st := range steps {
		c.advance(st.after)
		if got := show(ask(t, s, st.req)); got != st.want {
			t.Errorf("step %d:\n got %s\nwant %s", i, got, st.want)
		}
	}
}

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

func TestFixedWindowAnswersAsEnvoyproxyDoes(t *testing.T) {
	play(t, parityRules, []step{
		{req: request(descriptor("user=a")), want: "OK | OK per-user 2/minute left 1 reset 1m0s"},
		{req: request(descriptor("user=a")), want: "OK | OK per-user 2/minute left 0 reset 1m0s"},
		{
			req:  request(descriptor("user=a")),
			want: "OVER_LIMIT | OVER_LIMIT per-user 2/minute left 0 reset 1m0s | Retry-After: 60",
		},
		{req: request(descriptor("user=b")), want: "OK | OK per-user 2/minute left 1 reset 1m0s"},
		{
			after: 58*time.Second + time.Microsecond, // 1.999999 s are left: up, not down
			req:   request(descriptor("user=a")),
			want:  "OVER_LIMIT | OVER_LIMIT per-user 2/minute left 0 reset 2s | Retry-After: 2",
		},
		{after: 2 * time.Second, req: request(descriptor("user=a")), want: "OK | OK per-user 2/minute left 1 reset 1m0s"},
	})
}

func TestStatusesAreOneToOne(t *testing.T) {
	play(t, parityRules, []step{
		{
			req: request(
				descriptor("nobody=knows"),
				descriptor("path=/checkout"),
				descriptor("free=1"),
				descriptor("known=1"),
				descriptor("path=/checkout", "method=POST"),
				descriptor("path=/checkout", "method=GET"),
				descriptor("parent=p"),
				descriptor("parent=p", "child=c"),
				descriptor("parent=p", "child=c", "deeper=d"),
			),
			want: "OK | OK | OK 1/second left 0 reset 1s | OK left 4294967295 | OK | OK 5/hour left 4 reset 1h0m0s" +
				" | OK | OK | OK 7/day left 6 reset 16h0m0s | OK",
		},
		{
			req: &pb.RateLimitRequest{
				Domain:      "unknown",
				Descriptors: request(descriptor("user=a"), descriptor("free=1")).Descriptors,
			},
			want: "OK | OK | OK",
		},
	})
}

func TestResponseExactly(t *testing.T) {
	s, c := service(t, `
domain: shop
descriptors:
  - key: user
    rate_limit: {name: per-user, algorithm: funnel, requests_per_unit: 1, window: 90s, burst: 1}
`)
	req := request(descriptor("user=a"))
	limit := &pb.RateLimitResponse_RateLimit{
		Name:            "per-user",
		RequestsPerUnit: 1,
		Unit:            pb.RateLimitResponse_RateLimit_SECOND,
		UnitMultiplier:  wrapperspb.UInt32(90),
	}
	want := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
			Code: pb.RateLimitResponse_OK, CurrentLimit: limit, DurationUntilReset: durationpb.New(90 * time.Second),
		}},
	}
	if diff := cmp.Diff(want, ask(t, s, req), protocmp.Transform()); diff != "" {
		t.Errorf("first request (-want +got):\n%s", diff)
	}
	c.advance(500 * time.Millisecond)
	want = &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OVER_LIMIT,
		Statuses: []*pb.RateLimitResponse_DescriptorStatus{{
			Code: pb.RateLimitResponse_OVER_LIMIT, CurrentLimit: limit, DurationUntilReset: durationpb.New(90 * time.Second),
		}},
		ResponseHeadersToAdd: []*corepb.HeaderValue{{Key: "Retry-After", Value: "90"}},
	}
	if diff := cmp.Diff(want, ask(t, s, req), protocmp.Transform()); diff != "" {
		t.Errorf("second request (-want +got):\n%s", diff)
	}
}

const funnelRules = `
domain: shop
descriptors:
  - key: client
    rate_limit: {name: slow, algorithm: funnel, requests_per_unit: 1, window: 2s, burst: 3}
  - key: wide
    rate_limit: {name: wide, algorithm: funnel, requests_per_unit: 1, unit: minute, burst: 10}
  - key: both
    rate_limits:
      - {name: burst, algorithm: token_bucket, requests_per_unit: 2, unit: second}
      - {name: daily, algorithm: sliding_window, requests_per_unit: 3, window: 24h}
`

func TestReset(t *testing.T) {
	play(t, funnelRules, []step{
		{req: request(costing(3, descriptor("client=a"))), want: "OK | OK slow 1/secondx2 left 0 reset 6s"},
		// Denied: when the same request would pass, not when the funnel is empty.
		{
			after: 100 * time.Millisecond, req: request(descriptor("client=a")),
			want: "OVER_LIMIT | OVER_LIMIT slow 1/secondx2 left 0 reset 2s | Retry-After: 2",
		},
		{
			req:  request(costing(2, descriptor("client=a"))),
			want: "OVER_LIMIT | OVER_LIMIT slow 1/secondx2 left 0 reset 4s | Retry-After: 4",
		},
		// No wait helps a cost above the burst: until the funnel is empty, and no Retry-After.
		{
			req:  request(costing(4, descriptor("client=a"))),
			want: "OVER_LIMIT | OVER_LIMIT slow 1/secondx2 left 0 reset 6s",
		},
		// The longest wait of what denied, not of what fits.
		{
			req: request(descriptor("client=a"), costing(9, descriptor("wide=a"))),
			want: "OVER_LIMIT | OVER_LIMIT slow 1/secondx2 left 0 reset 2s | OK wide 1/minute left 10 reset 0s" +
				" | Retry-After: 2",
		},
		{req: request(costing(10, descriptor("wide=a"))), want: "OK | OK wide 1/minute left 0 reset 10m0s"},
		{
			req: request(descriptor("client=a"), descriptor("wide=a")),
			want: "OVER_LIMIT | OVER_LIMIT slow 1/secondx2 left 0 reset 2s | OVER_LIMIT wide 1/minute left 0 reset 1m0s" +
				" | Retry-After: 60",
		},
	})
	play(t, parityRules, []step{
		{req: request(descriptor("banned=x")), want: "OVER_LIMIT | OVER_LIMIT 0/minute left 0 reset 1m0s"},
	})
}

func TestTightestLimitOfADescriptor(t *testing.T) {
	play(t, funnelRules, []step{
		{req: request(descriptor("both=a")), want: "OK | OK burst 2/second left 1 reset 1s"},
		{req: request(descriptor("both=a")), want: "OK | OK burst 2/second left 0 reset 1s"},
		{req: request(descriptor("both=a")), want: "OVER_LIMIT | OVER_LIMIT burst 2/second left 0 reset 1s | Retry-After: 1"},
		{after: time.Second, req: request(descriptor("both=a")), want: "OK | OK daily 3/day left 0 reset 25h35m59s"},
		// One of the two has room and is not charged.
		{
			req:  request(descriptor("both=a")),
			want: "OVER_LIMIT | OVER_LIMIT daily 3/day left 0 reset 23h59m59s | Retry-After: 86399",
		},
	})
}

func TestHits(t *testing.T) {
	ten := func(ds ...*commonpb.RateLimitDescriptor) *pb.RateLimitRequest {
		r := request(ds...)
		r.HitsAddend = 10
		return r
	}
	play(t, `
domain: shop
descriptors:
  - {key: tokens, rate_limit: {unit: minute, requests_per_unit: 100}}
`, []step{
		{req: request(descriptor("tokens=a")), want: "OK | OK 100/minute left 99 reset 1m0s"},
		{req: ten(descriptor("tokens=a")), want: "OK | OK 100/minute left 89 reset 1m0s"},
		{
			req:  ten(costing(4, descriptor("tokens=a")), descriptor("tokens=a")), // its own beats the request's
			want: "OK | OK 100/minute left 85 reset 1m0s | OK 100/minute left 75 reset 1m0s",
		},
		{req: ten(costing(0, descriptor("tokens=a"))), want: "OK | OK 100/minute left 75 reset 1m0s"},
		{req: request(costing(75, descriptor("tokens=a"))), want: "OK | OK 100/minute left 0 reset 1m0s"},
		{ // a look where nothing is left
			req:  request(costing(0, descriptor("tokens=a"))),
			want: "OVER_LIMIT | OVER_LIMIT 100/minute left 0 reset 1m0s | Retry-After: 60",
		},
		{req: request(negative(costing(5, descriptor("tokens=a")))), want: "OK | OK 100/minute left 5 reset 1m0s"},
		{req: request(negative(descriptor("tokens=a"))), want: "OK | OK 100/minute left 6 reset 1m0s"},
		{req: ten(negative(descriptor("tokens=a"))), want: "OK | OK 100/minute left 16 reset 1m0s"},
		{req: request(negative(costing(0, descriptor("tokens=a")))), want: "OK | OK 100/minute left 16 reset 1m0s"},
		{
			req:  request(negative(costing(math.MaxUint32, descriptor("tokens=a")))),
			want: "OK | OK 100/minute left 100 reset 1m0s",
		},
		{ // the largest cost there is, and what it leaves behind in a fixed window
			req:  request(costing(math.MaxUint32, descriptor("tokens=a"))),
			want: "OVER_LIMIT | OVER_LIMIT 100/minute left 0 reset 1m0s",
		},
	})
}

func TestTheRequestIsDecidedAsAWhole(t *testing.T) {
	const small, large = "small=s", "large=l"
	play(t, `
domain: shop
descriptors:
  - {key: small, rate_limit: {name: small, algorithm: sliding_log, unit: minute, requests_per_unit: 1}}
  - {key: large, rate_limit: {name: large, algorithm: sliding_log, unit: minute, requests_per_unit: 3}}
  - {key: window, rate_limit: {unit: minute, requests_per_unit: 4}}
`, []step{
		{
			req:  request(descriptor(large), descriptor(small)),
			want: "OK | OK large 3/minute left 2 reset 1m0s | OK small 1/minute left 0 reset 1m0s",
		},
		{ // denied: the sibling is OK with what it has left, and not charged
			req: request(descriptor(large), descriptor(small)),
			want: "OVER_LIMIT | OK large 3/minute left 2 reset 1m0s | OVER_LIMIT small 1/minute left 0 reset 1m0s" +
				" | Retry-After: 60",
		},
		{ // the same key twice counts twice
			req:  request(descriptor(large), descriptor(large)),
			want: "OK | OK large 3/minute left 1 reset 1m0s | OK large 3/minute left 0 reset 1m0s",
		},
		{ // the hit that denied takes what charge_denied says: fixed_window takes all of it
			req:  request(costing(5, descriptor("window=w"))),
			want: "OVER_LIMIT | OVER_LIMIT 4/minute left 0 reset 1m0s",
		},
		{
			req:  request(descriptor("window=w")),
			want: "OVER_LIMIT | OVER_LIMIT 4/minute left 0 reset 1m0s | Retry-After: 60",
		},
	})
}

func TestShadowMode(t *testing.T) {
	play(t, `
domain: shop
descriptors:
  - {key: trial, shadow_mode: true, rate_limit: {name: trial, algorithm: funnel, unit: minute, requests_per_unit: 1}}
  - {key: real, rate_limit: {name: real, algorithm: funnel, unit: minute, requests_per_unit: 1}}
`, []step{
		{req: request(descriptor("trial=a")), want: "OK | OK trial 1/minute left 0 reset 1m0s"},
		{req: request(descriptor("trial=a")), want: "OK | OK trial 1/minute left 0 reset 1m0s"},
		{
			req:  request(descriptor("trial=a"), descriptor("real=a")),
			want: "OK | OK trial 1/minute left 0 reset 1m0s | OK real 1/minute left 0 reset 1m0s",
		},
		{ // decided and charged by itself, whatever becomes of the request
			req: request(descriptor("trial=b"), descriptor("real=a")),
			want: "OVER_LIMIT | OK trial 1/minute left 0 reset 1m0s | OVER_LIMIT real 1/minute left 0 reset 1m0s" +
				" | Retry-After: 60",
		},
	})
}

const quotaRules = `
domain: shop
descriptors:
  - {key: east, quota_mode: true, rate_limit: {name: east, algorithm: funnel, unit: minute, requests_per_unit: 1}}
  - {key: west, quota_mode: true, rate_limit: {name: west, algorithm: funnel, unit: hour, requests_per_unit: 2}}
  - {key: hard, rate_limit: {name: hard, algorithm: funnel, unit: second, requests_per_unit: 3}}
`

func TestQuotaMode(t *testing.T) {
	all := func() *pb.RateLimitRequest {
		return request(descriptor("east=e"), descriptor("west=w"), descriptor("hard=h"))
	}
	play(t, quotaRules, []step{
		{
			req: all(),
			want: "OK | OK east 1/minute left 0 reset 1m0s | OK west 2/hour left 1 reset 30m0s" +
				" | OK hard 3/second left 2 reset 1s",
		},
		{ // one of the two is over: the request passes, and the status says which
			req: all(),
			want: "OK | OVER_LIMIT east 1/minute left 0 reset 1m0s | OK west 2/hour left 0 reset 1h0m0s" +
				" | OK hard 3/second left 1 reset 1s",
		},
		{ // both are over; nothing is charged
			req: all(),
			want: "OVER_LIMIT | OVER_LIMIT east 1/minute left 0 reset 1m0s | OVER_LIMIT west 2/hour left 0 reset 30m0s" +
				" | OK hard 3/second left 1 reset 1s | Retry-After: 1800",
		},
		{req: request(costing(1, descriptor("hard=h"))), want: "OK | OK hard 3/second left 0 reset 1s"},
		{ // a hard limit denies with a quota left, and the quota that is over has no part in Retry-After
			req: request(descriptor("east=e"), descriptor("west=x"), descriptor("hard=h")),
			want: "OVER_LIMIT | OVER_LIMIT east 1/minute left 0 reset 1m0s | OK west 2/hour left 2 reset 0s" +
				" | OVER_LIMIT hard 3/second left 0 reset 1s | Retry-After: 1",
		},
	})
}

// A quota descriptor with several limits is over when one of them is.
func TestQuotaModeOfSeveralLimits(t *testing.T) {
	play(t, `
domain: shop
descriptors:
  - key: east
    quota_mode: true
    rate_limits:
      - {name: short, algorithm: funnel, unit: minute, requests_per_unit: 1}
      - {name: long, algorithm: funnel, unit: hour, requests_per_unit: 9}
`, []step{
		{req: request(descriptor("east=e")), want: "OK | OK short 1/minute left 0 reset 1m0s"},
		{
			req:  request(descriptor("east=e")),
			want: "OVER_LIMIT | OVER_LIMIT short 1/minute left 0 reset 1m0s | Retry-After: 60",
		},
	})
}

func TestReplaces(t *testing.T) {
	play(t, `
domain: shop
descriptors:
  - {key: everyone, rate_limit: {name: base, unit: minute, requests_per_unit: 1}}
  - {key: partner, rate_limit: {name: partner, unit: minute, requests_per_unit: 5, replaces: [{name: base}]}}
  - {key: staff, rate_limit: {unlimited: true, replaces: [{name: base}]}}
  - {key: gold, rate_limit: {name: gold, unit: minute, requests_per_unit: 9, replaces: [{name: partner}]}}
`, []step{
		{ // replaced: no limit in the answer, and not taken
			req:  request(descriptor("everyone=1"), descriptor("partner=p")),
			want: "OK | OK | OK partner 5/minute left 4 reset 1m0s",
		},
		{ // who is replaced still replaces
			req:  request(descriptor("everyone=1"), descriptor("gold=g"), descriptor("partner=p")),
			want: "OK | OK | OK gold 9/minute left 8 reset 1m0s | OK",
		},
		{
			req:  request(descriptor("everyone=1"), descriptor("staff=s")),
			want: "OK | OK | OK left 4294967295",
		},
		{req: request(descriptor("everyone=1")), want: "OK | OK base 1/minute left 0 reset 1m0s"},
		{req: request(descriptor("partner=p")), want: "OK | OK partner 5/minute left 3 reset 1m0s"},
	})
}

func TestOverride(t *testing.T) {
	const day, month, year = typepb.RateLimitUnit_DAY, typepb.RateLimitUnit_MONTH, typepb.RateLimitUnit_YEAR
	play(t, parityRules, []step{
		{req: request(descriptor("user=a")), want: "OK | OK per-user 2/minute left 1 reset 1m0s"},
		{ // its own rate, and its own counter
			req:  request(limited(7, typepb.RateLimitUnit_HOUR, descriptor("user=a"))),
			want: "OK | OK per-user 7/hour left 6 reset 1h0m0s",
		},
		{req: request(descriptor("user=a")), want: "OK | OK per-user 2/minute left 0 reset 1m0s"},
		{
			req:  request(multiplied(30, limited(7, typepb.RateLimitUnit_SECOND, descriptor("user=a")))),
			want: "OK | OK per-user 7/secondx30 left 6 reset 30s",
		},
		{ // where no rule matches, a limit of its own
			req:  request(limited(3, typepb.RateLimitUnit_MINUTE, descriptor("new=1"))),
			want: "OK | OK 3/minute left 2 reset 1m0s",
		},
		{req: request(limited(3, day, descriptor("free=1"))), want: "OK | OK 3/day left 2 reset 16h0m0s"},
		{req: request(limited(3, month, descriptor("known=1"))), want: "OK | OK 3/month left 2 reset 400h0m0s"},
		{req: request(limited(3, year, descriptor("user=y"))), want: "OK | OK per-user 3/year left 2 reset 8080h0m0s"},
		{
			req:  request(limited(0, year, descriptor("user=y"))),
			want: "OVER_LIMIT | OVER_LIMIT per-user 0/year left 0 reset 8080h0m0s",
		},
	})
}

func TestUnits(t *testing.T) {
	play(t, `
domain: shop
descriptors:
  - {key: week, rate_limit: {algorithm: funnel, unit: week, requests_per_unit: 7}}
  - {key: month, rate_limit: {algorithm: funnel, unit: month, requests_per_unit: 30}}
  - {key: three, rate_limit: {algorithm: funnel, unit: minute, unit_multiplier: 3, requests_per_unit: 3}}
  - {key: odd, rate_limit: {algorithm: funnel, window: 1500ms, requests_per_unit: 1}}
`, []step{
		{req: request(descriptor("week=a")), want: "OK | OK 7/week left 6 reset 24h0m0s"},
		{req: request(descriptor("month=a")), want: "OK | OK 30/month left 29 reset 24h0m0s"},
		{req: request(descriptor("three=a")), want: "OK | OK 3/minutex3 left 2 reset 1m0s"},
		{req: request(descriptor("odd=a")), want: "OK | OK 1/unknown left 0 reset 2s"},
	})
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
		{"entries", request(descriptor(make([]string, 33)...)), "descriptors[0].entries: must be at most 32, got 33"},
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

func TestConcurrentRequestsGetExactlyTheLimit(t *testing.T) {
	s, _ := service(t, `
domain: shop
descriptors:
  - {key: user, rate_limit: {algorithm: funnel, unit: hour, requests_per_unit: 100}}
  - {key: other, rate_limit: {algorithm: funnel, unit: hour, requests_per_unit: 1000000}}
`)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				req := request(descriptor(fmt.Sprintf("other=%d.%d", g, i)), descriptor("user=a"))
				if g%2 == 0 {
					req = request(descriptor("user=a"))
				}
				res, err := send(context.Background(), s, req)
				switch {
				case err != nil:
					t.Error(err)
				case len(res.GetStatuses()) != len(req.GetDescriptors()):
					t.Errorf("%d statuses for %d descriptors", len(res.GetStatuses()), len(req.GetDescriptors()))
				case res.GetOverallCode() == pb.RateLimitResponse_OK:
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() != 100 {
		t.Errorf("%d passed, want 100", passed.Load())
	}
}

func TestOptions(t *testing.T) {
	_, err := New(Options{})
	if want := "rls: Options.Decider: must be set"; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// A panic while a request is decoded reaches the interceptor, which answers, counts and logs panics, with its own
// stack.
func TestDecodingThatPanics(t *testing.T) {
	s, _ := service(t, "{domain: d, descriptors: [{key: k}]}")
	receive := func(any) error { panic("broken") }
	seen := ""
	catch := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (res any, err error) {
		defer func() {
			seen = fmt.Sprint(recover())
			err = errors.New("caught")
		}()
		return next(ctx, req)
	}
	if _, err := s.handler(nil)(s, t.Context(), receive, catch); err == nil || err.Error() != "caught" {
		t.Errorf("the interceptor's answer is %v", err)
	}
	if !strings.HasPrefix(seen, "decoding: broken\n") || !strings.Contains(seen, "TestDecodingThatPanics") {
		t.Errorf("the interceptor sees %q, want the panic and its stack", seen)
	}
	if _, err := s.handler(nil)(s, t.Context(), receive, nil); status.Code(err) != codes.Internal {
		t.Errorf("without an interceptor: %v, want Internal", err)
	}
}
