package rls

import (
	"strconv"
	"strings"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

const overrideCounterRules = `
domain: shop
descriptors:
  - {key: fixed, rate_limit: {unit: month, requests_per_unit: 10}}
  - {key: funnel, rate_limit: {algorithm: funnel, unit: month, requests_per_unit: 10, burst: 10}}
  - {key: log, rate_limit: {algorithm: sliding_log, unit: month, requests_per_unit: 10}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: month, requests_per_unit: 10}}
  - {key: block, cidr: ['::/0'], rate_limit: {unit: month, requests_per_unit: 3}}
`

// eachStore runs the test with a service that counts in memory, and with one that counts in Redis.
func eachStore(t *testing.T, rules string, test func(t *testing.T, s *Service)) {
	t.Run("memory", func(t *testing.T) {
		s, _ := service(t, rules)
		test(t, s)
	})
	t.Run("redis", func(t *testing.T) {
		const timeout = 5 * time.Second
		client := redistest.Client(t, redistest.Start(t).URL(), timeout)
		store, err := redisstore.New(client, redisstore.Options{Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := service(t, rules, func(o *options) { o.Store = store })
		test(t, s)
	})
}

// left is what remains of the request's descriptors, - where it was denied.
func left(t *testing.T, s *Service, d *commonpb.RateLimitDescriptor) string {
	t.Helper()
	var all []string
	for _, status := range ask(t, s, request(d)).GetStatuses() {
		text := strconv.FormatUint(uint64(status.GetLimitRemaining()), 10)
		if status.GetCode() != pb.RateLimitResponse_OK {
			text = "-"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// A client whose requests bring another rate each time has one counter for each window, which is the rule's own if the
// window is.
func TestOverridesShareACounter(t *testing.T) {
	const month, year = typepb.RateLimitUnit_MONTH, typepb.RateLimitUnit_YEAR
	eachStore(t, overrideCounterRules, func(t *testing.T, s *Service) {
		for _, key := range []string{"fixed=c", "log=c", "none=c"} {
			for i, step := range []struct {
				rate uint32
				unit typepb.RateLimitUnit
				want string
			}{
				// varies
				{5, year, "4"},
				{6, year, "4"},
				{5, year, "2"},
				{4, year, "0"},
				{3, year, "-"},
				{2, year, "-"},
				{100, year, "95"},
				{7, month, "6"},
				{5, month, "3"},
				{2, month, "-"}, // another window
			} {
				if key != "log=c" && i == 6 {
					step.want = "93" // a denied request of a fixed window counts
				}
				if got := left(t, s, limited(step.rate, step.unit, descriptor(key))); got != step.want {
					t.Errorf("%s: step %d, %d a %s: %s left, want %s", key, i, step.rate, step.unit, got, step.want)
				}
			}
		}
		for key, want := range map[string]string{"fixed=c": "6", "log=c": "7"} {
			if got := left(t, s, descriptor(key)); got != want {
				t.Errorf("%s: the rule's own limit has %s left after requests with its window, want %s", key, got, want)
			}
		}
		for _, key := range []string{"funnel=c", "bucket=c"} { // whose state is a time, or parts of a hit
			for range 10 {
				left(t, s, limited(10, month, descriptor(key)))
			}
			for _, rate := range map[string][]uint32{"funnel=c": {10, 20, 1000}, "bucket=c": {1, 9, 10}}[key] {
				if got := left(t, s, limited(rate, month, descriptor(key))); got != "-" {
					t.Errorf("%s: used up, and %d a month has %s left", key, rate, got)
				}
			}
			if got := left(t, s, descriptor(key)); got != "-" {
				t.Errorf("%s: used up, and the rule's own limit has %s left", key, got)
			}
		}
	})
}

// A client that spells its address in many ways has one counter.
func TestOneCounterOfAnAddress(t *testing.T) {
	eachStore(t, overrideCounterRules, func(t *testing.T, s *Service) {
		for i, address := range []string{
			"2001:db8::abc", "2001:0DB8:0::0abc", "2001:db8:0:0:0:0:0:abc%eth0",
			"2001:DB8::0:ABC", "2001:db8::0.0.10.188",
		} {
			want := []string{"2", "1", "0", "-", "-"}[i]
			d := &commonpb.RateLimitDescriptor{Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: "block", Value: address}}}
			if got := left(t, s, d); got != want {
				t.Errorf("%s: %s left, want %s", address, got, want)
			}
		}
	})
}

// A value that is too long to match is denied, and makes one counter at most.
func TestValueTooLongIsDenied(t *testing.T) {
	rules := "domain: shop\ndescriptors: [{key: path, regex: '.*admin.*', rate_limit: {unit: month, requests_per_unit: 9}}]\n"
	eachStore(t, rules, func(t *testing.T, s *Service) {
		if got := left(t, s, descriptor("path=/admin/"+strings.Repeat("a", descriptors.MaxPatternValue))); got != "8" {
			t.Errorf("the beginning decides: %s left, want 8", got)
		}
		for _, d := range []*commonpb.RateLimitDescriptor{
			descriptor("path=" + strings.Repeat("a", descriptors.MaxPatternValue) + "/admin/"),
			descriptor("path=" + strings.Repeat("a", descriptors.MaxPatternValue) + "/other/"),
			limited(100, typepb.RateLimitUnit_DAY, descriptor("path="+strings.Repeat("a",
				descriptors.MaxPatternValue)+"/admin/")),
		} {
			if got := left(t, s, d); got != "-" {
				t.Errorf("the beginning does not decide: %s left, want a denial", got)
			}
		}
	})
}
