package app

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// openRedis makes the client of --store, which the counters and the published rules share.
func (a *App) openRedis(context.Context) (err error) {
	if a.o.Store == store.Memory {
		return nil
	}
	a.redis, err = a.o.Connect(a.o.Store) //nolint:contextcheck // it does not connect yet
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	a.add("Redis", nil, a.redis.Close)
	return nil
}

// openStore opens the store that the options name, and shows it in the metrics.
func (a *App) openStore(context.Context) error {
	o, m := &a.o, a.metrics
	o.Redis, o.Requests, o.Effects, o.StoreOptions.Log = a.redis, m.Requests, a.effects, o.Log
	o.Instrument = func(s limiter.Store, names []string) limiter.Store { return m.Timed(a.telemetry.Store(s), names...) }
	s, err := store.Open(&o.StoreOptions) //nolint:contextcheck // the store outlives ctx
	if err != nil {
		return err
	}
	watchStore(m, s, o)
	a.store = s
	a.add("store", always(s.Run), s.Close)
	return nil
}

// effects says what the limits of a store do while it fails.
func (a *App) effects(store string) string {
	var limits [descriptors.Fail + 1]int
	if set := a.rules.Set(); set != nil {
		for _, l := range set.Limits() {
			if at := l.Placement(); at.Store == store {
				limits[l.OnStoreFailure]++
			}
		}
	}
	return fmt.Sprintf(
		"%d of its limits are not enforced, %d are counted in this process, %d deny, %d answer with an error",
		limits[descriptors.Allow], limits[descriptors.Local], limits[descriptors.Deny], limits[descriptors.Fail])
}

// watchStore shows the store in the metrics.
func watchStore(m *metrics.Metrics, s *store.Store, o *Options) {
	if o.Store == store.Memory {
		m.Memory.From(func() metrics.MemoryStats {
			stats, _ := s.MemoryStats()
			return metrics.MemoryStats{Stats: stats, MaxKeys: o.MemoryMaxKeys}
		})
		return
	}
	m.Breaker.From(s.Breaker.Open)
	m.Policy.From(s.PolicyFor)
	m.Leases.From(s.Leases.Stats)
	m.Stores.From(func() (all []metrics.StoreStats) {
		s.EachRedis(func(name string, s *redisstore.Store) {
			all = append(all, metrics.StoreStats{Name: name, Stats: s.Stats()})
		})
		return all
	})
	if s.Denials != nil {
		m.Denials.From(s.Denials.Answered)
	}
}

// checkEngine warns of limits that this Redis cannot decide, before requests meet them.
func (a *App) checkEngine(ctx context.Context) {
	if err := a.store.PingRedisCell(ctx, a.rules.RedisCellStores()); err != nil {
		a.o.Log.LogAttrs(ctx, slog.LevelWarn, "limits with engine: redis_cell cannot be decided, their on_store_failure "+
			"answers",
			slog.String("error", err.Error()))
	}
}

// storeReady returns why the store cannot decide the rules in force.
func (a *App) storeReady(ctx context.Context) error {
	if err := a.store.Ping(ctx); err != nil {
		return err
	}
	return a.store.PingRedisCell(ctx, a.rules.RedisCellStores())
}
