package app

import (
	"context"
	"fmt"

	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/counters"
	"github.com/weir-ratelimit/weir/internal/metrics"
)

// openBoosts makes the board, which follows Redis if that has the counters.
func (a *App) openBoosts() (*boosts.Board, error) {
	o := boosts.Options{
		Log: a.o.Log,
		Changed: func() {
			if a.store != nil { // else the process starts, and knows no denial
				a.store.dropDenials()
			}
		},
		Reachable: func(ctx context.Context) bool { return a.store == nil || a.store.remotes[0].reach(ctx) },
	}
	if a.o.Store != storeMemory {
		redis, err := boosts.OpenRedis(a.o.Store, a.o.StoreKeyPrefix)
		if err != nil {
			return nil, fmt.Errorf("--store: %w", err)
		}
		o.Store = redis
	}
	board := boosts.New(o)
	a.metrics.Boosts.From(func() metrics.BoostStats {
		inForce, reachable := board.InForce()
		return metrics.BoostStats{InForce: inForce, Reachable: reachable}
	})
	return board, nil
}

// counters looks at those of the store.
func (a *App) counters() *counters.Counters {
	o := counters.Options{
		Rules: a.rules.Set, Store: a.store.truth, Boosted: a.boosts.Of, Reset: a.store.reset, KeyOf: a.store.keyOf,
	}
	if a.store.denials != nil {
		o.Denied = a.store.denials.Known
	}
	if a.store.leases != nil {
		o.Leased = a.store.leases.Permits
	}
	return counters.New(o)
}
