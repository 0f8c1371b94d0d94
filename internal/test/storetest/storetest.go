// Package storetest connects tests to a Redis as internal/store does for a process that serves.
package storetest

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/store"
)

// Connect returns the connections of a Redis, which are closed when the test ends.
func Connect(tb testing.TB, o store.RedisOptions) *store.Redis {
	tb.Helper()
	r, err := store.Connect(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}
