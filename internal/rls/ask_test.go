package rls

import (
	"testing"
	"time"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// A request without a wire is decided as ShouldRateLimit does: watchers see the same.
func TestDecideIsShouldRateLimit(t *testing.T) {
	const rules = `
domain: shop
descriptors:
- {key: user, rate_limit: {name: each, unit: hour, requests_per_unit: 5}}
- {key: vip, rate_limit: {unit: hour, requests_per_unit: 6, replaces: [{name: each}]}}
- {key: path, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`
	entry := func(key, value string) []descriptors.Entry { return []descriptors.Entry{{Key: key, Value: value}} }
	var wired, asked lines
	s, _ := service(t, rules, func(o *options) { o.Watchers = []decide.Watcher{&wired} })
	same, _ := service(t, rules, func(o *options) { o.Watchers = []decide.Watcher{&asked} })
	for range 3 {
		ask(t, s, request(costing(2, descriptor("user=ann")), descriptor("path=/"), descriptor("none=x")))
		ask(t, s, request(costing(3, descriptor("vip=ann")), descriptor("user=ann")))
		ask(t, s, request(negative(descriptor("user=ann")), limited(2, typepb.RateLimitUnit_MINUTE, descriptor("none=y"))))
		for _, ds := range [][]decide.Descriptor{
			{
				{Entries: entry("user", "ann"), Cost: 2},
				{Entries: entry("path", "/"), Cost: 1},
				{Entries: entry("none", "x"), Cost: 1},
			},
			{{Entries: entry("vip", "ann"), Cost: 3}, {Entries: entry("user", "ann"), Cost: 1}},
			{{Entries: entry("user", "ann"), Cost: -1}, {
				Entries: entry("none", "y"), Cost: 1,
				Own: decide.OwnLimit{Requests: 2, Window: time.Minute},
			}},
		} {
			r := same.o.Decider.NewRequest()
			r.Domain = "shop"
			for _, d := range ds {
				r.Add(d)
			}
			if _, err := same.o.Decider.Decide(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(wired) != 9 {
		t.Fatalf("%d requests were seen, want 9", len(wired))
	}
	if diff := cmp.Diff(wired, asked); diff != "" {
		t.Error(diff)
	}
}
