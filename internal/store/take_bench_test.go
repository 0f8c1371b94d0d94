package store_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// BenchmarkTake is redisstore's with the client of a process that serves.
func BenchmarkTake(b *testing.B) {
	r, err := store.Connect(b.Context(), redistest.Start(b).SocketURL(), redisstore.Options{Timeout: patient})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // the server ends with the benchmark
	s, err := r.Counters("")
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

// BenchmarkTakeBusy has 16 requests in flight to the store of a serving process. cpu-us/op is the CPU time of this
// process per request, from the kernel's clock.
func BenchmarkTakeBusy(b *testing.B) {
	for _, hits := range []int{1, 4} {
		b.Run(fmt.Sprintf("hits=%d", hits), func(b *testing.B) {
			r, err := store.Connect(b.Context(), redistest.Start(b).SocketURL(), redisstore.Options{Timeout: patient})
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close() //nolint:errcheck // the server ends with the benchmark
			s, err := store.Open(b.Context(), &store.Options{
				Redis: r, CachedDenials: true, Requests: func() uint64 { return 0 }, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()         //nolint:errcheck // nothing is on lease
			s.Denials.Believe(true) // nothing is released
			const keys, atOnce = 10_000, 16
			policies, names := make([]*limiter.Policy, hits), make([][]string, hits)
			for i := range policies {
				policies[i], err = limiter.NewPolicy(limiter.Params{
					Algorithm: limiter.Funnel, Limit: 1_000_000_000, Window: time.Minute, Burst: int64(1000 + i),
				})
				if err != nil {
					b.Fatal(err)
				}
				for j := range keys {
					names[i] = append(names[i], fmt.Sprintf("f:m|shop|remote_address=10.%d.%d.%d", i, j/250, j%250))
				}
			}
			b.SetParallelism(atOnce / 2) // two CPUs
			b.ReportAllocs()
			before := proctest.CPU(b)
			b.RunParallel(func(pb *testing.PB) {
				all, out := make([]limiter.Hit, hits), make([]limiter.Decision, hits)
				for n := 0; pb.Next(); n++ {
					for i := range all {
						all[i] = limiter.Hit{Key: names[i][n*7919%keys], Policy: policies[i], N: 1, Group: i}
					}
					if err := s.Take(b.Context(), all, out); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64((proctest.CPU(b)-before).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
		})
	}
}
