package app

import (
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/telemetry"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// openStore opens the store that the options name, and shows it in the metrics.
func openStore(o *Options, r *store.Redis, m *metrics.Metrics, t *telemetry.Telemetry) (*store.Store, error) {
	s, err := store.Open(&store.Options{
		Redis: r, Named: o.NamedStores, KeyPrefix: o.StoreKeyPrefix, Timeout: o.StoreTimeout,
		PoolSize: o.StorePoolSize, CachedDenials: o.KnownDenials, FailurePolicy: o.OnStoreFailure,
		MaxKeys: o.MemoryMaxKeys, Requests: m.Requests, Log: o.Log,
		Instrument: func(s limiter.Store, names []string) limiter.Store { return m.Timed(t.Store(s), names...) },
	})
	if err != nil {
		return nil, err
	}
	watchStore(m, s, o)
	return s, nil
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

// observer counts for Prometheus, and reports failures of the store to it.
type observer struct {
	*metrics.Metrics
	store *store.Store
}

// StoreFailed implements decide.Observer.
func (o observer) StoreFailed(err error) {
	o.Metrics.StoreFailed(err)
	o.store.Failed(err)
}
