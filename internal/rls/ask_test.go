package rls

import (
	"testing"
	"time"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Ask decides as ShouldRateLimit does: watchers see the same of the same questions.
func TestAskIsShouldRateLimit(t *testing.T) {
	const rules = `
domain: shop
descriptors:
- {key: user, rate_limit: {name: each, unit: hour, requests_per_unit: 5}}
- {key: vip, rate_limit: {unit: hour, requests_per_unit: 6, replaces: [{name: each}]}}
- {key: path, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
`
	entry := func(key, value string) []descriptors.Entry { return []descriptors.Entry{{Key: key, Value: value}} }
	var wired, asked lines
	s, _ := service(t, rules, func(o *Options) { o.Watchers = []Watcher{&wired} })
	same, _ := service(t, rules, func(o *Options) { o.Watchers = []Watcher{&asked} })
	for range 3 {
		ask(t, s, request(costing(2, descriptor("user=ann")), descriptor("path=/"), descriptor("none=x")))
		ask(t, s, request(costing(3, descriptor("vip=ann")), descriptor("user=ann")))
		ask(t, s, request(negative(descriptor("user=ann")), limited(2, typepb.RateLimitUnit_MINUTE, descriptor("none=y"))))
		for _, q := range [][]Asked{
			{{Entries: entry("user", "ann"), Cost: 2}, {Entries: entry("path", "/"), Cost: 1}, {Entries: entry("none", "x"), Cost: 1}},
			{{Entries: entry("vip", "ann"), Cost: 3}, {Entries: entry("user", "ann"), Cost: 1}},
			{{Entries: entry("user", "ann"), Cost: -1}, {Entries: entry("none", "y"), Cost: 1, Requests: 2, Window: time.Minute}},
		} {
			if err := same.Ask(t.Context(), "shop", q); err != nil {
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
