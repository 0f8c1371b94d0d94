package store_test

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// BenchmarkTake is redisstore's with the client of a process that serves.
func BenchmarkTake(b *testing.B) {
	r, err := store.Connect(store.RedisOptions{URL: redistest.Start(b).SocketURL(), Timeout: patient})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // the server ends with the benchmark
	s, err := r.Counters(redisstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1_000_000, Window: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	hit := []limiter.Hit{{Key: "k", Policy: p, N: 1}}
	var out [1]limiter.Decision
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Take(b.Context(), hit, out[:]); err != nil {
			b.Fatal(err)
		}
	}
}
