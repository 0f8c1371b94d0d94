package decide_test

import (
	"context"
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// newDecider decides by the rules in memory, at a fixed time.
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

// decided lets d decide r with this context.
func decided(ctx context.Context, d *decide.Decider, r *decide.Request) (*decide.Verdict, error) {
	r.Ctx = ctx
	if d.Decide(r); r.Err != nil {
		return nil, r.Err
	}
	return &r.Verdict, nil
}

// release ends what the request holds.
func release(v *decide.Verdict) {
	held := v.TakeHeld()
	held.Release(context.Background())
}
