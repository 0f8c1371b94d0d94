package app

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/admin"
)

// counters reads and resets the counters of the store.
func (a *App) counters() *admin.Counters {
	return &admin.Counters{Rules: a.rules.Set, Store: a.store.Counters, Forget: a.reset, KeyOf: a.store.KeyOf}
}

// reset removes a counter, with what was charged ahead to it.
func (a *App) reset(ctx context.Context, key string) (existed bool, err error) {
	existed, err = a.store.Reset(ctx, key)
	a.quotasChanged()
	return existed, err
}
