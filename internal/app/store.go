package app

import (
	"errors"

	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/telemetry"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// openStore opens the store that the options name, and shows it in the metrics.
func openStore(o *Options, m *metrics.Metrics, t *telemetry.Telemetry) (*store.Store, error) {
	s, err := store.Open(&store.Options{
		URL: o.Store, Named: o.NamedStores, KeyPrefix: o.StoreKeyPrefix, Timeout: o.StoreTimeout,
		PoolSize: o.StorePoolSize, CachedDenials: o.KnownDenials, FailurePolicy: o.OnStoreFailure,
		MaxKeys: o.MemoryMaxKeys, Requests: m.Requests, Log: o.Log,
		Instrument: func(s limiter.Store, names []string) (limiter.Store, error) { return m.Timed(t.Store(s), names...) },
	})
	if err != nil {
		return nil, err
	}
	if err := watchStore(m, s, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// watchStore shows the store in the metrics.
func watchStore(m *metrics.Metrics, s *store.Store, o *Options) error {
	if o.Store == store.Memory {
		return m.WatchMemory(func() metrics.MemoryStats {
			now, _ := s.MemoryStats()
			return metrics.MemoryStats{
				Keys: now.Keys, MaxKeys: o.MemoryMaxKeys, Bytes: now.Bytes, Expired: now.Expired, Evicted: now.Evicted,
				ClockSteps: now.ClockSteps,
			}
		})
	}
	errs := []error{
		m.WatchBreaker(s.Breaker.Open),
		m.WatchPolicy(s.PolicyFor),
		m.WatchStores(func() []metrics.StoreStats { return storeStats(s) }),
		m.WatchLeases(func() metrics.LeaseStats { return metrics.LeaseStats(s.Leases.Stats()) }),
	}
	if s.Denials != nil {
		errs = append(errs, m.WatchDenials(s.Denials.Answered))
	}
	return errors.Join(errs...)
}

// storeStats is what the Redis servers show at a scrape.
func storeStats(s *store.Store) []metrics.StoreStats {
	var all []metrics.StoreStats
	s.EachRedis(func(name string, s *redisstore.Store) {
		now := s.Stats()
		stats := metrics.StoreStats{
			Name: name, BatchSizes: make(map[float64]uint64, len(redisstore.BatchSizes)),
			Requests: now.Requests, Texts: now.Texts, Restarted: now.Restarted,
			Connections: now.Connections, Idle: now.Idle,
			Found: now.Found, Made: now.Made, Waits: now.Waits, Timeouts: now.Timeouts, Stale: now.Stale,
		}
		for i, n := range now.Batches {
			stats.Calls += n
			if i < len(redisstore.BatchSizes) {
				stats.BatchSizes[float64(redisstore.BatchSizes[i])] = stats.Calls
			}
		}
		all = append(all, stats)
	})
	return all
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
