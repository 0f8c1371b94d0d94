package decide_test

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// newDecider decides by the rules in memory, at a time that stands still.
func newDecider(t *testing.T, set *descriptors.Set, watchers ...decide.Watcher) *decide.Decider {
	t.Helper()
	store, err := memstore.New(memstore.Options{Now: func() int64 { return 1 << 50 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	d, err := decide.New(decide.Options{
		Rules: func() *descriptors.Set { return set }, Store: store, Watchers: watchers,
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}
