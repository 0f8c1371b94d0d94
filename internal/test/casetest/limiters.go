package casetest

import (
	"testing"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// StillStore returns a memory store whose clock does not move. It is closed when the test ends.
func StillStore(tb testing.TB) *memstore.Store {
	tb.Helper()
	s, err := memstore.New(memstore.Options{Now: func() int64 { return 1_700_000_000_000_000 }})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// Limiter returns a limiter with the name "test".
func Limiter(tb testing.TB, s limiter.Store, params ...limiter.Params) *limiter.Limiter {
	tb.Helper()
	l, err := limiter.New(s, "test", params[0], params[1:]...)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// StillLimiter returns a Limiter with its own StillStore.
func StillLimiter(tb testing.TB, params ...limiter.Params) *limiter.Limiter {
	tb.Helper()
	return Limiter(tb, StillStore(tb), params...)
}
