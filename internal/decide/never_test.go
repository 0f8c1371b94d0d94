package decide_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// If waiting does not help a denied request, Retry-After is the length of the window for every algorithm, so that
// clients do not retry at once. The reset of a fixed window is its end.
func TestDenialThatNoWaitMends(t *testing.T) {
	const now = 1_800_000_000 * int64(time.Second/time.Microsecond) // an hour begins
	for _, name := range step.Names(limiter.Algorithms()) {
		window := "unit: hour"
		if name == limiter.Concurrency.String() {
			window = "lease: 1h"
		}
		set := casetest.Compile(t, fmt.Sprintf(`
domain: shop
descriptors:
  - {key: five, rate_limit: {algorithm: %[1]s, %[2]s, requests_per_unit: 5}}
  - {key: ban, rate_limit: {algorithm: %[1]s, %[2]s, requests_per_unit: 0}}
`, name, window))
		store, err := memstore.New(memstore.Options{Now: func() int64 { return now + 600e6 }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		d, err := decide.New(decide.Options{
			Rules: func() *descriptors.Set { return set }, Store: store,
			Config: decide.Config{
				RatelimitHeaders: true, RetryAfter: true,
				LimitHeaders: decide.LimitHeaders{Limit: "L", Remaining: "R", Reset: "S"},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		for key, cost := range map[string]int64{"five": 1_000_000, "ban": 1} {
			r := d.NewRequest()
			r.Domain = "shop"
			r.Add(decide.Descriptor{Cost: cost, Entries: []descriptors.Entry{{Key: key, Value: "a"}}})
			v, err := decided(t.Context(), d, r)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int64{}
			for h := range v.Headers {
				got[h.Name] = h.Number
			}
			wantReset := int64(3600)
			if name == limiter.FixedWindow.String() {
				wantReset = 3000
			}
			if !v.Denied || got["S"] != wantReset || got["Retry-After"] != 3600 {
				t.Errorf("%s, %s: denied %t, headers %v; want a reset of %d and to retry after 3600", name, key, v.Denied, got,
					wantReset)
			}
		}
	}
}
