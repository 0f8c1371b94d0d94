package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/telemetry"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// outageQuiet is how long no request must have failed, and the store must answer, before an outage is over.
const outageQuiet = 5 * time.Second

// store is the limiter.Store of the process, with what else the process wants to know of it.
type store struct {
	limiter.Store
	name string                          // to be shown: no password
	ping func(ctx context.Context) error // nil if the store can decide
	// cell is nil if the stores of these names can decide limits with engine: redis_cell.
	cell  func(ctx context.Context, stores []string) error
	close func() error
	log   *slog.Logger
	// truth is asked for the counters themselves; what stands before it may answer in its place.
	truth limiter.Store
	// reset forgets a counter, here and in all processes.
	reset func(ctx context.Context, key string) (existed bool, err error)
	// keyOf is a counter's key of a key in Redis; nil for memory.
	keyOf   func(name string) (key string, ok bool)
	denials *guard.Denials // nil if none are remembered
	leases  *guard.Leases  // nil for memory
	// listen hears what other processes tell until ctx is done; nil where there is nothing to hear.
	listen func(ctx context.Context)
	// breaker stops asking a store that does not answer, and local counts meanwhile; nil for memory, which always does.
	breaker *guard.Breaker
	local   *local

	failures atomic.Uint64 // requests that the store did not decide
	failing  atomic.Bool   // an outage has been logged, and not yet its end
}

func openStore(o *Options, m *metrics.Metrics, t *telemetry.Telemetry) (*store, error) {
	if o.Store == storeMemory {
		return openMemory(o, m)
	}
	s, err := openRedis(o)
	if err != nil {
		return nil, err
	}
	timed, err := m.Timed(t.Store(s))
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	breaker := guard.NewBreaker(guard.BreakerOptions{
		Store: timed, Servers: servers(s), Answered: redisstore.Answered, Failures: redisstore.Failures,
	})
	st := &store{
		Store: breaker, name: s.String(), ping: s.Ping, cell: pingRedisCell(s), close: s.Close, log: o.Log,
		breaker: breaker, local: &local{maxKeys: o.MemoryMaxKeys}, truth: breaker, keyOf: s.KeyOf,
	}
	st.reset = func(ctx context.Context, key string) (bool, error) {
		existed, err := s.Reset(ctx, key)
		st.forget(key, true) // also after an error: it may be done
		return existed, err
	}
	st.hear(s)
	if err := errors.Join(m.WatchBreaker(breaker.Open), m.WatchStores(func() []metrics.StoreStats { return storeStats(s) })); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if o.KnownDenials {
		st.denials = guard.NewDenials(st.Store, nil)
		st.Store = st.denials
		if err := m.WatchDenials(st.denials.Answered); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return st, st.lease(m)
}

// lease has hot keys with consistency: leased decided without Redis, by permits that are charged there ahead.
func (s *store) lease(m *metrics.Metrics) error {
	leases, closeStore := guard.NewLeases(s.Store), s.close
	s.Store, s.leases = leases, leases
	s.close = func() error {
		if err := leases.Close(); err != nil { // no reason to fail: a Redis that is gone has forgotten them, or soon will
			s.log.LogAttrs(context.Background(), slog.LevelWarn, "permits on lease are not given back", slog.String("error", err.Error()))
		}
		return closeStore()
	}
	return m.WatchLeases(func() metrics.LeaseStats { return metrics.LeaseStats(leases.Stats()) })
}

// redisStore is a redisstore.Store, or a Group of them.
type redisStore interface {
	limiter.Store
	String() string
	Ping(ctx context.Context) error
	Each(f func(name string, s *redisstore.Store))
	Refunds(ctx context.Context, forget func(key string, reset bool), hears func(yes bool, why error))
	Reset(ctx context.Context, key string) (existed bool, err error)
	KeyOf(name string) (key string, ok bool)
	Close() error
}

// storeStats is what the stores tell at a scrape.
func storeStats(s redisStore) []metrics.StoreStats {
	var all []metrics.StoreStats
	s.Each(func(name string, s *redisstore.Store) {
		now := s.Stats()
		one := metrics.StoreStats{
			Name: name, BatchSizes: make(map[float64]uint64, len(redisstore.BatchSizes)), Requests: now.Requests, Texts: now.Texts,
			Restarted:   now.Restarted,
			Connections: now.Connections, Idle: now.Idle,
			Found: now.Found, Made: now.Made, Waits: now.Waits, Timeouts: now.Timeouts, Stale: now.Stale,
		}
		for i, n := range now.Batches {
			one.Calls += n
			if i < len(redisstore.BatchSizes) {
				one.BatchSizes[float64(redisstore.BatchSizes[i])] = one.Calls
			}
		}
		all = append(all, one)
	})
	return all
}

// openRedis opens --store, and those of --named-store beside it.
func openRedis(o *Options) (redisStore, error) {
	open := func(url string) (*redisstore.Store, error) {
		return redisstore.New(redisstore.Options{
			URL:       url,
			KeyPrefix: o.StoreKeyPrefix,
			Timeout:   o.StoreTimeout,
			PoolSize:  o.StorePoolSize,
			OnRestart: func(counters uint64, key string) {
				o.Log.LogAttrs(context.Background(), slog.LevelWarn,
					"counters start again: what Redis has of them cannot be of Weir; does something else write below the key prefix?",
					slog.Uint64("counters", counters), slog.String("key", key))
			},
		})
	}
	first, err := open(o.Store)
	if err != nil {
		return nil, err
	}
	if len(o.NamedStores) == 0 {
		return first, nil
	}
	named := map[string]*redisstore.Store{}
	group := redisstore.NewGroup(first, named)
	for name, url := range o.NamedStores {
		if named[name], err = open(url); err != nil {
			delete(named, name)
			return nil, errors.Join(err, group.Close())
		}
	}
	return group, nil
}

// servers are the stores as a breaker has them.
func servers(s redisStore) map[string]guard.Server {
	out := map[string]guard.Server{}
	s.Each(func(name string, s *redisstore.Store) { out[name] = s })
	return out
}

// pingRedisCell asks the stores of some names.
func pingRedisCell(s redisStore) func(ctx context.Context, stores []string) error {
	return func(ctx context.Context, stores []string) error {
		var errs []error
		s.Each(func(name string, s *redisstore.Store) {
			if slices.Contains(stores, name) {
				errs = append(errs, s.PingRedisCell(ctx))
			}
		})
		return errors.Join(errs...)
	}
}

// standIn decides limits with on_store_failure: local while the store fails; nil for a store that never does.
func (s *store) standIn() limiter.Store {
	if s.local == nil {
		return nil
	}
	return s.local
}

// hear has denials answered without Redis while what other processes give back is heard, and hears of counters that they
// reset.
func (s *store) hear(r redisStore) {
	s.listen = func(ctx context.Context) {
		heard, told := false, false
		r.Refunds(ctx, s.forget, func(hears bool, why error) {
			if s.denials == nil {
				return
			}
			s.denials.Believe(hears)
			if changed := !told || hears != heard; changed && why != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "refunds by other sidecars are not heard: known denials are asked of Redis, too",
					slog.String("error", why.Error()))
			} else if changed && told && hears {
				s.log.LogAttrs(ctx, slog.LevelInfo, "refunds by other sidecars are heard: known denials are answered without Redis")
			}
			heard, told = hears, true
		})
	}
}

// forget is called after something was given back to a counter, or all of it was reset.
func (s *store) forget(key string, reset bool) {
	if s.denials != nil {
		s.denials.Forget(key)
	}
	if reset {
		s.leases.Reset(key)
	}
}

// dropDenials is called when other policies rule the counters.
func (s *store) dropDenials() {
	if s.denials != nil {
		s.denials.Drop()
	}
}

func openMemory(o *Options, m *metrics.Metrics) (*store, error) {
	s, err := memstore.New(memstore.Options{MaxKeys: o.MemoryMaxKeys})
	if err != nil {
		return nil, err
	}
	err = m.WatchMemory(func() metrics.MemoryStats {
		now := s.Stats()
		return metrics.MemoryStats{
			Keys: now.Keys, MaxKeys: o.MemoryMaxKeys, Bytes: now.Bytes, Expired: now.Expired, Evicted: now.Evicted,
		}
	})
	reset := func(_ context.Context, key string) (bool, error) { return s.Reset(key), nil }
	return &store{
		Store: s, name: storeMemory, close: s.Close, log: o.Log, truth: s, reset: reset,
		ping: func(context.Context) error { return nil },
		cell: func(context.Context, []string) error { return nil },
	}, err
}

// failed notes a request that the store did not decide. The first of an outage is logged.
func (s *store) failed(err error) {
	s.failures.Add(1)
	if s.failing.CompareAndSwap(false, true) {
		s.log.LogAttrs(context.Background(), slog.LevelError,
			"store fails, requests are answered by each rule's on_store_failure", slog.String("error", err.Error()))
	}
}

// watch logs the end of outages until ctx is done, and forgets what was counted locally during them: not before, so that
// a store that comes and goes does not renew each limit's local share. It is here, and not on a request's way, that the
// lines of such a store are bounded.
func (s *store) watch(ctx context.Context) {
	tick := time.NewTicker(outageQuiet)
	defer tick.Stop()
	var before, logged uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.failures.Load()
		if s.failing.Load() && now == before && s.ping(ctx) == nil {
			s.log.LogAttrs(ctx, slog.LevelInfo, "store answers again", slog.Uint64("failed_requests", now-logged))
			logged = now
			s.failing.Store(false)
			if err := s.dropLocal(); err != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "what was counted locally is not freed", slog.String("error", err.Error()))
			}
		}
		before = now
	}
}

func (s *store) dropLocal() error {
	if s.local == nil {
		return nil
	}
	return s.local.drop()
}

// observer counts for Prometheus, and tells the store of its failures.
type observer struct {
	*metrics.Metrics
	store *store
}

// StoreFailed implements rls.Observer.
func (o observer) StoreFailed(err error) {
	o.Metrics.StoreFailed(err)
	o.store.failed(err)
}
