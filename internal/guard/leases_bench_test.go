package guard_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// benched returns leases with hot keys k0 and up, and enough permits and time for a benchmark.
func benched(tb testing.TB, keys int) (guard.LeasesStore, []limiter.Hit) {
	tb.Helper()
	s, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	l := guard.Lease(s)
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	p := leased(tb, limiter.Params{Algorithm: limiter.Funnel, Limit: 4_000_000_000, Window: time.Hour})
	hits := make([]limiter.Hit, keys)
	for i := range hits {
		hits[i] = limiter.Hit{
			Key: fmt.Sprintf("funnel|shop|remote_address=10.0.0.%d", i), Policy: p, Route: onLease, N: 1,
			Group: i,
		}
	}
	for range 10_000 {
		for i := range hits {
			take(tb, l, hits[i])
		}
	}
	return l, hits
}

// A decision of a lease allocates nothing. In virtual time no lease ends meanwhile, even on a slow machine.
func TestLeasedAllocatesNothing(t *testing.T) { synctest.Test(t, leasedAllocatesNothing) }

func leasedAllocatesNothing(t *testing.T) {
	l, hits := benched(t, 4)
	for _, n := range []int{1, 4} {
		for _, h := range hits[:n] {
			for permits := int64(0); permits < 2000; permits, _ = l.Permits(h.Key) {
				heat(t, l, 1, h)
			}
		}
		before := l.Stats().Answers
		allocs := guard.StageAllocs(l.Leases, hits[:n], 1000)
		if answers := l.Stats().Answers - before; allocs >= 1 || answers < 900 {
			t.Errorf("a request of %d hits allocates %v times; %d of 1001 were decided by leases", n, allocs, answers)
		}
	}
}

func BenchmarkLeased(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("%d hits", n), func(b *testing.B) {
			l, hits := benched(b, n)
			out := make([]limiter.Decision, n)
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Take(context.Background(), hits, out); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(l.Stats().Answers)/float64(b.N), "leased/op")
		})
	}
	b.Run("64 goroutines, 1 key", func(b *testing.B) {
		l, hits := benched(b, 1)
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			var out [1]limiter.Decision
			for pb.Next() {
				if err := l.Take(context.Background(), hits, out[:]); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
