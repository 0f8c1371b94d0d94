package rls

import (
	"fmt"
	"strings"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// manyLimits has a rule with key a and n limits, each of which replaces a name that no limit has.
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

// descriptorsOf returns n descriptors of the rule a.
func descriptorsOf(n int) []*commonpb.RateLimitDescriptor {
	var all []*commonpb.RateLimitDescriptor
	for i := range n {
		all = append(all, descriptor(fmt.Sprintf("a=value %d", i)))
	}
	return all
}

// Sixteen times the counters cost less than 64 times the time. Once it was 256 times.
func TestRequestsTakeLinearTime(t *testing.T) {
	s, _ := service(t, manyLimits(64), func(o *options) { o.MaxCounters = 1 << 20 })
	took := func(req *pb.RateLimitRequest) time.Duration {
		start := proctest.CPU(t)
		ask(t, s, req)
		return proctest.CPU(t) - start
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
