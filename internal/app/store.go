package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/telemetry"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

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

	// remotes are the Redis servers, --store first; none for memory.
	remotes []*remote
	quiet   time.Duration // outageQuiet
	// requests is how many requests were answered.
	requests func() uint64
}

func openStore(o *Options, m *metrics.Metrics, t *telemetry.Telemetry) (*store, error) {
	if o.Store == storeMemory {
		return openMemory(o, m)
	}
	s, err := openRedis(o)
	if err != nil {
		return nil, err
	}
	var names []string
	s.Each(func(name string, _ *redisstore.Store) { names = append(names, name) })
	timed := m.Timed(t.Store(s), names...)
	remotes := remotesOf(s, o)
	breaker := guard.NewBreaker(guard.BreakerOptions{
		Store: timed, Servers: servers(s), Answered: redisstore.Answered, Failures: redisstore.Failures,
	})
	st := &store{
		Store: breaker, name: s.String(), ping: s.Ping, cell: pingRedisCell(s), close: s.Close, log: o.Log,
		breaker: breaker, local: &local{maxKeys: o.MemoryMaxKeys}, truth: breaker, keyOf: s.KeyOf,
		remotes: remotes, quiet: outageQuiet, requests: m.Requests,
	}
	st.reset = func(ctx context.Context, key string) (bool, error) {
		existed, err := s.Reset(ctx, key)
		st.forget(key, true) // also after an error: it may be done
		return existed, err
	}
	st.hear(s)
	m.Breaker.From(breaker.Open)
	m.Policy.From(st.policyFor)
	m.Stores.From(func() (all []metrics.StoreStats) {
		s.Each(func(name string, s *redisstore.Store) {
			all = append(all, metrics.StoreStats{Name: name, Stats: s.Stats()})
		})
		return all
	})
	if o.KnownDenials {
		st.denials = guard.NewDenials(st.Store, nil)
		st.Store = st.denials
		m.Denials.From(st.denials.Answered)
	}
	st.lease(m, timeouts(s))
	return st, nil
}

// lease has hot keys with consistency: leased decided without Redis, by permits that are charged there ahead.
func (s *store) lease(m *metrics.Metrics, timeout func(store string) time.Duration) {
	leases, closeStore := guard.NewLeases(guard.LeasesOptions{
		Store: s.Store, Shard: s.breaker.Shard, Timeout: timeout, Answered: redisstore.Answered,
	}), s.close
	s.Store, s.leases = leases, leases
	s.close = func() error {
		if err := leases.Close(); err != nil { // no reason to fail: a Redis that is gone has forgotten them, or soon will
			s.log.LogAttrs(context.Background(), slog.LevelWarn, "permits on lease are not given back", slog.String("error", err.Error()))
		}
		return closeStore()
	}
	m.Leases.From(leases.Stats)
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

// openRedis opens --store, and those of --named-store beside it.
func openRedis(o *Options) (redisStore, error) {
	open := func(name, url string) (*redisstore.Store, error) {
		return redisstore.New(redisstore.Options{
			Name:      name,
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
	first, err := open("", o.Store)
	if err != nil {
		return nil, err
	}
	if len(o.NamedStores) == 0 {
		return first, nil
	}
	named := map[string]*redisstore.Store{}
	group := redisstore.NewGroup(first, named)
	for name, url := range o.NamedStores {
		if named[name], err = open(name, url); err != nil {
			delete(named, name)
			return nil, errors.Join(err, group.Close())
		}
	}
	return group, nil
}

// remotesOf are the stores as they are watched, the first one first.
func remotesOf(s redisStore, o *Options) []*remote {
	var all []*remote
	s.Each(func(name string, s *redisstore.Store) {
		all = append(all, &remote{
			name: name, label: s.Label(), policy: o.OnStoreFailure, timeout: s.Timeout(), log: o.Log,
			ping: s.Ping, pingInTime: s.PingInTime, loudAfter: policyLoud,
		})
	})
	return all
}

// policyFor is for how long on_store_failure has decided in place of each store, by name.
func (s *store) policyFor() map[string]time.Duration {
	all := make(map[string]time.Duration, len(s.remotes))
	for _, r := range s.remotes {
		all[r.name] = r.policyFor()
	}
	return all
}

// servers are the stores as a breaker has them.
func servers(s redisStore) map[string]guard.Server {
	out := map[string]guard.Server{}
	s.Each(func(name string, s *redisstore.Store) { out[name] = s })
	return out
}

// timeouts returns how long a request on a store may take, by the store's name.
func timeouts(s redisStore) func(store string) time.Duration {
	of := map[string]time.Duration{}
	s.Each(func(name string, s *redisstore.Store) { of[name] = s.Timeout() })
	return func(store string) time.Duration { return cmp.Or(of[store], of[""]) }
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
// reset. That nothing is heard is logged if it is not because a store is away: that has been said.
func (s *store) hear(r redisStore) {
	s.listen = func(ctx context.Context) {
		warned := false
		r.Refunds(ctx, s.forget, func(hears bool, why error) {
			away := !hears && why != nil && !s.reachable(ctx)
			if s.denials == nil {
				return
			}
			s.denials.Believe(hears)
			switch {
			case away:
			case hears && warned:
				warned = false
				s.log.LogAttrs(ctx, slog.LevelInfo,
					"refunds by other replicas are heard again: cached denials are answered without Redis")
			case !hears && why != nil && !warned:
				warned = true
				s.log.LogAttrs(ctx, slog.LevelWarn,
					"refunds by other replicas are not heard: cached denials are off, and Redis decides each request",
					slog.String("error", why.Error()))
			}
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
	s, err := memstore.New(memstore.Options{MaxKeys: o.MemoryMaxKeys, ClockStepped: func(by time.Duration) {
		o.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"the wall clock was set: fixed windows with align: epoch or calendar follow it, other limits do not notice",
			slog.String("by", by.String()))
	}})
	if err != nil {
		return nil, err
	}
	m.Memory.From(func() metrics.MemoryStats { return metrics.MemoryStats{Stats: s.Stats(), MaxKeys: o.MemoryMaxKeys} })
	reset := func(_ context.Context, key string) (bool, error) { return s.Reset(key), nil }
	return &store{
		Store: s, name: storeMemory, close: s.Close, log: o.Log, truth: s, reset: reset,
		ping: func(context.Context) error { return nil },
		cell: func(context.Context, []string) error { return nil },
	}, nil
}

// failed notes a request that was decided without the stores that the error names.
func (s *store) failed(err error) {
	if len(s.remotes) == 0 {
		return
	}
	named := false
	redisstore.Failures(err, func(name, _ string, _ error) {
		for _, r := range s.remotes {
			if r.name == name {
				named = true
				r.failed(err)
			}
		}
	})
	if !named {
		s.remotes[0].failed(err)
	}
}

// reachable asks all stores, and says whether they can be reached. What is not has been logged.
func (s *store) reachable(ctx context.Context) bool {
	var away atomic.Bool
	var wait sync.WaitGroup
	for _, r := range s.remotes {
		wait.Go(func() {
			if !r.reach(ctx) {
				away.Store(true)
			}
		})
	}
	wait.Wait()
	return !away.Load()
}

// watch logs outages that go on, and their ends, until ctx is done, and forgets what was counted locally during them: not
// before, so that a store that comes and goes does not renew each limit's local share. It is here, and not on a request's
// way, that the lines of such a store are bounded.
func (s *store) watch(ctx context.Context) {
	if len(s.remotes) == 0 {
		return
	}
	s.reachable(ctx)
	tick, reach := time.NewTicker(s.quiet), time.NewTicker(reachAgain)
	defer tick.Stop()
	defer reach.Stop()
	before, local := s.requests(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-reach.C:
			for _, r := range s.remotes {
				if r.isAway() {
					r.reach(ctx)
				}
			}
			continue
		case <-tick.C:
		}
		now := s.requests()
		over := s.look(ctx, now-before)
		if before = now; over && local {
			if err := s.dropLocal(); err != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "what was counted locally is not freed", slog.String("error", err.Error()))
			}
		}
		local = !over
	}
}

// look says whether no store has an outage.
func (s *store) look(ctx context.Context, requests uint64) (over bool) {
	over = true
	for _, r := range s.remotes {
		if !r.look(ctx, requests) {
			over = false
		}
	}
	return over
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
