package rls

import (
	"context"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/mem"
)

// Measures from the bytes of a request to the bytes of its response.
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
  - key: tokens
    rate_limit: {name: tokens, requests_per_unit: 4294967295, unit: hour, reservation: {estimate: 1}}
`
	one := descriptor("remote_address=10.0.0.1")
	four := []string{"api_key=k1", "path=/checkout", "all=1"}
	for name, req := range map[string]*pb.RateLimitRequest{
		"descriptors=1": request(one),
		"descriptors=4": request(one, descriptor(four[0]), descriptor(four[:2]...), descriptor(four[2])),
		"start":         request(descriptor("tokens=a client of the API")),
	} {
		b.Run(name, func(b *testing.B) {
			s, _ := service(b, rules, func(o *options) { o.Store = memory(b, nil) })
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
