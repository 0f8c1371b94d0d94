package memstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// keyNames are made before a benchmark's time begins.
func keyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("shop|remote_address=10.0.%d.%d", i/256, i%256)
	}
	return names
}

// BenchmarkTake decides requests of 1 and 4 hits over 10,000 keys, on one goroutine and on all.
func BenchmarkTake(b *testing.B) {
	names := keyNames(10_000)
	for _, p := range benchPolicies(b) {
		for _, n := range []int{1, 4} {
			take := func(s *memstore.Store, rng *rand.Rand, hits []limiter.Hit, out []limiter.Decision) error {
				for i := range hits {
					hits[i] = limiter.Hit{Key: names[rng.IntN(len(names))], Policy: p, N: 1}
				}
				return s.Take(context.Background(), hits, out)
			}
			b.Run(fmt.Sprintf("%s/hits=%d", p.Algorithm(), n), func(b *testing.B) {
				s := start(b, memstore.Options{})
				hits, out, rng := make([]limiter.Hit, n), make([]limiter.Decision, n), rand.New(rand.NewPCG(1, 2))
				b.ReportAllocs()
				for b.Loop() {
					if err := take(s, rng, hits, out); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("%s/hits=%d/parallel", p.Algorithm(), n), func(b *testing.B) {
				s := start(b, memstore.Options{})
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					hits, out, rng := make([]limiter.Hit, n), make([]limiter.Decision, n), rand.New(rand.NewPCG(rand.Uint64(), 2))
					for pb.Next() {
						if err := take(s, rng, hits, out); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

// benchPolicies are policies under which most hits pass.
func benchPolicies(b *testing.B) []*limiter.Policy {
	b.Helper()
	var all []*limiter.Policy
	for _, a := range []limiter.Algorithm{
		limiter.Funnel, limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindow, limiter.SlidingLog,
	} {
		all = append(all, policy(b, limiter.Params{Algorithm: a, Limit: 100, Window: time.Minute}))
	}
	return all
}

// BenchmarkTakeFullStore adds a key to a store that is full with every hit.
func BenchmarkTakeFullStore(b *testing.B) {
	s := start(b, memstore.Options{MaxCounters: 100_000})
	p := benchPolicies(b)[0]
	names := keyNames(1_000_000)
	hits, out := make([]limiter.Hit, 1), make([]limiter.Decision, 1)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		hits[0] = limiter.Hit{Key: names[i%len(names)], Policy: p, N: 1}
		if err := s.Take(context.Background(), hits, out); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBytesPerKey fills 100,000 keys with 1 hit and with 10, and reports what one takes on the heap.
func BenchmarkBytesPerKey(b *testing.B) {
	names := keyNames(100_000)
	for _, p := range benchPolicies(b) {
		for _, n := range []int{1, 10} {
			b.Run(fmt.Sprintf("%s/hits=%d", p.Algorithm(), n), func(b *testing.B) {
				for b.Loop() {
					before := heap()
					s := start(b, memstore.Options{Now: limitertest.NewClock().Now})
					for range n {
						for _, name := range names {
							hit(b, s, name, p, 1)
						}
					}
					b.ReportMetric(float64(heap()-before)/float64(len(names)), "bytes/key")
					runtime.KeepAlive(s)
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
