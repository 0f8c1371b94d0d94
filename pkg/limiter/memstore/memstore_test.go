package memstore_test

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

// start makes a store that ends with the test.
func start(tb testing.TB, o memstore.Options) *memstore.Store {
	tb.Helper()
	s, err := memstore.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func fresh(t *testing.T, clock *limitertest.Clock) limiter.Store {
	t.Helper()
	return start(t, memstore.Options{Now: clock.Now})
}

func TestContract(t *testing.T) { limitertest.Run(t, fresh) }

func TestHistories(t *testing.T) { limitertest.Histories(t, fresh, casetest.Pick(2_500, 10_000)) }

func TestLinearizable(t *testing.T) {
	limitertest.Linearizable(t, 1, casetest.Pick(10, 20), func(t *testing.T, clocks []*limitertest.Clock) []limiter.Store {
		// Its clock steps back, so nothing may be swept that has expired meanwhile.
		return []limiter.Store{start(t, memstore.Options{Now: clocks[0].Now, SweepEvery: time.Hour})}
	})
}

// After Reset, a counter of either kind is fully available again, and other counters are not touched. Clear resets all.
func TestReset(t *testing.T) {
	clock := limitertest.NewClock()
	s := start(t, memstore.Options{Now: clock.Now})
	for _, a := range []limiter.Algorithm{limiter.Funnel, limiter.SlidingLog} {
		p, err := limiter.NewPolicy(limiter.Params{Algorithm: a, Limit: 3, Window: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		remaining := func(key string, n int64) int64 {
			t.Helper()
			var out [1]limiter.Decision
			if err := s.Take(t.Context(), []limiter.Hit{{Key: key, Policy: p, N: n, Peek: n == 0}}, out[:]); err != nil {
				t.Fatal(err)
			}
			return out[0].Remaining
		}
		remaining("a", 2)
		remaining("b", 1)
		if !s.Reset("a") || s.Reset("a") || s.Reset("c") {
			t.Errorf("%s: Reset does not say what was there", a)
		}
		if left, other := remaining("a", 0), remaining("b", 0); left != 3 || other != 2 {
			t.Errorf("%s: %d and %d remain, want 3 and 2", a, left, other)
		}
		s.Reset("b")
		remaining("a", 2)
		if s.Clear(); remaining("a", 0) != 3 || s.Stats().Counters != 0 {
			t.Errorf("%s: %d remain and %+v are kept after Clear", a, remaining("a", 0), s.Stats())
		}
	}
}
