package memstore_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func TestHistories(t *testing.T) { limitertest.Histories(t, fresh, 10_000) }

func TestLinearizable(t *testing.T) {
	limitertest.Linearizable(t, 1, func(t *testing.T, clocks []*limitertest.Clock) []limiter.Store {
		// Its clock steps back, so nothing may be swept that has expired meanwhile.
		return []limiter.Store{start(t, memstore.Options{Now: clocks[0].Now, SweepEvery: time.Hour})}
	})
}
