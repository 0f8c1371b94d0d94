package rls

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// From the bytes of a request to those of its answer.
func BenchmarkShouldRateLimit(b *testing.B) {
	const rules = `
domain: shop
descriptors:
  - key: remote_address
    rate_limit: {name: per-client, algorithm: funnel, requests_per_unit: 1000000, unit: second}
  - key: api_key
    rate_limit: {name: per-key, algorithm: token_bucket, requests_per_unit: 1000000, unit: second}
    descriptors:
      - key: path
        rate_limit: {name: per-path, requests_per_unit: 1000000000, unit: hour}
  - key: all
    rate_limit: {name: all, algorithm: sliding_window, requests_per_unit: 1000000, unit: second}
`
	one := descriptor("remote_address=10.0.0.1")
	four := []string{"api_key=k1", "path=/checkout", "all=1"}
	none := func() *decide.Boosts { return nil }
	other := func() *decide.Boosts { // of other limits and counters than those that are asked
		l := compile(b, rules).Limits()[0]
		return &decide.Boosts{
			Rules: map[*descriptors.Limit]*descriptors.Limit{l: l},
			Keys:  map[string][]decide.Boosted{"k": {{Of: l, By: l}}},
		}
	}
	for _, bm := range []struct {
		name   string
		n      int
		boosts func() *decide.Boosts
	}{
		{"descriptors=1", 1, none},
		{"descriptors=4", 4, none},
		{"descriptors=1/boosts", 1, other},
		{"descriptors=4/boosts", 4, other},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var boosts atomic.Pointer[decide.Boosts]
			s, _ := service(b, rules, func(o *options) { o.Store, o.Boosts = memory(b, nil), boosts.Load })
			boosts.Store(bm.boosts())
			req := request(one)
			if bm.n == 4 {
				req = request(one, descriptor(four[0]), descriptor(four[:2]...), descriptor(four[2]))
			}
			data := mem.BufferSlice{mem.SliceBuffer(marshal(b, req))}
			c, handle := Codec(), s.handler(nil)
			receive := func(v any) error { return c.Unmarshal(data, v) }
			b.ReportAllocs()
			for b.Loop() {
				res, err := handle(s, context.Background(), receive, nil)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := c.Marshal(res); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
