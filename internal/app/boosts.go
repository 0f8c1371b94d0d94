package app

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/metrics"
)

// openBoosts makes the board of boosts, which follows Redis if the counters are there.
func (a *App) openBoosts(context.Context) error {
	o := boosts.Options{
		Log: a.o.Log,
		Changed: func() {
			if a.store != nil { // else the process starts, and has no cached denial
				a.store.DropDenials()
			}
			a.quotasChanged()
		},
		Reachable: func(ctx context.Context) bool { return a.store == nil || a.store.FirstReachable(ctx) },
	}
	if a.redis != nil && !a.redis.Proxied() { // else they are of this process alone
		o.Store = boosts.NewRedis(a.redis)
	}
	a.boosts = boosts.New(o)
	a.metrics.Boosts.From(func() metrics.BoostStats {
		inForce, reachable := a.boosts.InForce()
		return metrics.BoostStats{InForce: inForce, Reachable: reachable}
	})
	a.add("boosts", always(a.boosts.Run), nil)
	return nil
}

// counters reads and resets the counters of the store.
func (a *App) counters() *admin.Counters {
	c := &admin.Counters{
		Rules: a.rules.Set, Store: a.store.Counters, Boosted: a.boosts.Of, Forget: a.reset, KeyOf: a.store.KeyOf,
	}
	if q := a.quotas.Load(); q != nil {
		c.Quotas = q.of
	}
	return c
}

// reset removes a counter, with what was charged ahead to it.
func (a *App) reset(ctx context.Context, key string) (existed bool, err error) {
	existed, err = a.store.Reset(ctx, key)
	a.quotasChanged()
	return existed, err
}
