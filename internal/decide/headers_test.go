package decide_test

import (
	"context"
	"slices"
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// none is a store in which no hit fits.
type none struct{}

func (none) Take(context.Context, []limiter.Hit, []limiter.Decision) error { return nil }

// A reader of the headers may stop at any header.
func TestHeadersEndWhereTheReaderStops(t *testing.T) {
	set := casetest.Compile(t, `
domain: shop
descriptors:
  - key: ban
    rate_limit: {requests_per_unit: 0, unit: hour}
    response: {headers: {x-why: ban, x-who: shop}}
`)
	d, err := decide.New(decide.Options{
		Rules: func() *descriptors.Set { return set }, Store: take.Memory(none{}),
		Config: decide.Config{
			RatelimitHeaders: true, RetryAfter: true,
			LimitHeaders: decide.LimitHeaders{Limit: "limit", Remaining: "remaining", Reset: "reset"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := d.NewRequest()
	r.Domain = "shop"
	r.Add(decide.Descriptor{Cost: 1, Entries: []descriptors.Entry{{Key: "ban", Value: "a"}}})
	if d.Decide(r); r.Err != nil {
		t.Fatal(r.Err)
	}
	v := &r.Verdict
	all := []string{"limit", "remaining", "reset", "Retry-After", "x-why", "x-who"}
	for n := 1; n <= len(all); n++ {
		var names []string
		for h := range v.Headers {
			if names = append(names, h.Name); len(names) == n {
				break
			}
		}
		if !slices.Equal(names, all[:n]) {
			t.Errorf("headers %q, want %q", names, all[:n])
		}
	}
}
