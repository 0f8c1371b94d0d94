package offline

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

// As in the service, a denied request holds no place of a limit on requests in flight that is in shadow mode.
func TestDeniedRequestHoldsNoPlace(t *testing.T) {
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules", Data: []byte(`
domain: shop
descriptors:
  - {key: tried, shadow_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 1h}}
  - {key: ban, rate_limit: {requests_per_unit: 0, unit: hour}}
`)}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := NewEngine(set)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, request := range []struct {
		keys         []string
		denied, fits bool
	}{{[]string{"tried", "ban"}, true, true}, {[]string{"tried"}, false, true}, {[]string{"tried"}, false, false}} {
		r := &Request{At: 1<<50 + int64(i), Domain: "shop"}
		for _, key := range request.keys {
			r.Descriptors = append(r.Descriptors, decide.Descriptor{
				Cost: 1, Entries: []descriptors.Entry{{Key: key, Value: "a"}},
			})
		}
		v, err := e.Decide(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if v.Denied != request.denied || v.Decisions[0].Allowed != request.fits {
			t.Errorf("request %d, %v: denied is %t, the limit in shadow mode fits is %t; want %t and %t",
				i, request.keys, v.Denied, v.Decisions[0].Allowed, request.denied, request.fits)
		}
	}
}
