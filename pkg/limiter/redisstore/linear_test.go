package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestLinearTime checks that a request with eight times as many hits takes less than 32 times as long in Redis, whether
// the hits pass or are denied, and have different keys or the same key. A quadratic script takes 64 times as long. Each
// time is the minimum of several.
func TestLinearTime(t *testing.T) {
	server := redistest.Start(t)
	one, second := open(t, server.URL(), redisstore.Options{Timeout: time.Minute}),
		open(t, server.URL(), redisstore.Options{Timeout: time.Minute, KeyPrefix: "second:"})
	stores := map[string]limiter.Store{
		"one store":  one,
		"two stores": scattered{redisstore.NewGroup(one, map[string]*redisstore.Store{"second": second})},
	}
	p, ban := funnel(t, 1<<30, time.Hour), funnel(t, 0, time.Hour)
	for name, s := range stores {
		for _, keys := range []int{1, 1 << 20} {
			for _, last := range []*limiter.Policy{p, ban} {
				took := func(n int) time.Duration {
					hits := make([]limiter.Hit, n)
					for i := range hits {
						hits[i] = limiter.Hit{Key: fmt.Sprint("linear ", i%keys), Policy: p, N: 1, Group: i}
					}
					hits[n-1] = limiter.Hit{Key: "last", Policy: last, N: 1}
					out := make([]limiter.Decision, n)
					start := time.Now()
					if err := s.Take(t.Context(), hits, out); err != nil {
						t.Fatal(err)
					}
					return time.Since(start)
				}
				small, large := took(500), took(4_000)
				for range 20 {
					if large < 32*small {
						break
					}
					small, large = min(small, took(500)), min(large, took(4_000))
				}
				if large >= 32*small {
					t.Errorf("%s, %d keys, denied %t: 500 hits take %s, 4,000 %s", name, keys, last == ban, small, large)
				}
				t.Logf("%s, %d keys, denied %t: 500 hits take %s, 4,000 %s", name, keys, last == ban, small, large)
			}
		}
	}
}
