package rls

import (
	"fmt"
	"strings"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// manyLimits are rules whose key a has n limits, of which each replaces a name that nothing has.
func manyLimits(n int) string {
	var b strings.Builder
	b.WriteString("domain: shop\ndescriptors:\n- key: a\n  rate_limits:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: l%d, requests_per_unit: 1000000, window: %ds, replaces: [{name: other%d}]}\n", i, i+1, i)
	}
	b.WriteString("- key: b\n  rate_limits:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: other%d, requests_per_unit: 1, window: %ds}\n", i, i+1)
	}
	return b.String()
}

// descriptorsOf are n descriptors of the rule a.
func descriptorsOf(n int) []*commonpb.RateLimitDescriptor {
	var all []*commonpb.RateLimitDescriptor
	for i := range n {
		all = append(all, descriptor(fmt.Sprintf("a=value %d", i)))
	}
	return all
}

// A request asks a bounded number of counters, and one that asks more is refused before any is charged.
func TestCountersOfARequestAreBounded(t *testing.T) {
	s, _ := service(t, manyLimits(32))
	if res := ask(
		t,
		s,
		request(descriptorsOf(32)...),
	); res.GetOverallCode() != pb.RateLimitResponse_OK ||
		len(res.GetStatuses()) != 32 {
		t.Errorf("32 descriptors of 32 limits: %s", show(res))
	}
	const want = "descriptors: their rules have more than 1024 limits together; give these rules fewer limits, send fewer descriptors, or raise --max-counters"
	for _, n := range []int{33, 128} {
		_, err := send(t.Context(), s, request(descriptorsOf(n)...))
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != want {
			t.Errorf("%d descriptors of 32 limits: %v, want InvalidArgument: %s", n, err, want)
		}
	}
	if res := ask(t, s, request(descriptorsOf(1)...)); res.GetStatuses()[0].GetLimitRemaining() != 1_000_000-2 {
		t.Errorf("a refused request was charged: %s", show(res))
	}
	// What is replaced does not count.
	with := append(descriptorsOf(32), descriptor("b=x"))
	if res := ask(t, s, request(with...)); res.GetOverallCode() != pb.RateLimitResponse_OK {
		t.Errorf("with 32 that are replaced: %s", show(res))
	}

	few, _ := service(t, manyLimits(3), func(o *options) { o.MaxCounters = 5 })
	if _, err := send(t.Context(), few, request(descriptorsOf(2)...)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("6 limits of 5: %v", err)
	}
	if res := ask(t, few, request(descriptorsOf(1)...)); res.GetOverallCode() != pb.RateLimitResponse_OK {
		t.Errorf("3 limits of 5: %s", show(res))
	}
}

// Sixteen times the counters cost less than 64 times as much; it was 256 times.
func TestRequestsTakeLinearTime(t *testing.T) {
	s, _ := service(t, manyLimits(64), func(o *options) { o.MaxCounters = 1 << 20 })
	took := func(req *pb.RateLimitRequest) time.Duration {
		start := time.Now()
		ask(t, s, req)
		return time.Since(start)
	}
	few, many := request(descriptorsOf(8)...), request(descriptorsOf(128)...)
	small, large := took(few), took(many)
	for range 50 {
		if large < 64*small {
			return
		}
		small, large = min(small, took(few)), min(large, took(many))
	}
	t.Errorf("512 counters take %s, 8,192 %s", small, large)
}
