// Package store opens the store that a process counts in: its own memory, or Redis by URL, with cached denials, leases
// and a circuit breaker in front of it. It logs outages and keeps the counters of the local fallback, and has the
// documents that processes share in Redis. It knows no rules.
package store

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Memory names the store that is this process's memory.
const Memory = "memory"

// Options say which store, and what stands in front of it. The defaults are those of the flags of internal/cli.
type Options struct {
	// Redis is the first server, which the caller closes; nil counts in memory.
	Redis *Redis
	// Named are the URLs of further Redis servers, by the names that limits give them.
	Named map[string]string
	// OfNamed are the options of the named ones, which have URLs of their own.
	OfNamed RedisOptions
	// CachedDenials answers a cost that Redis has denied without asking again until it may pass. It is off if a proxy is
	// in front of one of the stores, since the refunds of other processes are not heard through it.
	CachedDenials bool
	// FailurePolicy is the on_store_failure of limits that have none, for the log.
	FailurePolicy string
	// MaxKeys is the most counters in memory.
	MaxKeys int

	// Instrument measures the calls to Redis: names are those of all servers, "" for the first one. Nil: none is measured.
	Instrument func(s limiter.Store, names []string) limiter.Store
	// Requests returns how many requests the process has answered. An outage in which nearly all of them are decided by
	// Redis is none. It is needed with Redis.
	Requests func() uint64
	// Log has a line when an outage begins, goes on and ends.
	Log *slog.Logger
}

// Store is the limiter.Store of a process. Its methods are safe for concurrent use.
type Store struct {
	limiter.Store
	// Counters is what Store has without cached denials and leases: what it answers is what is counted.
	Counters limiter.Store
	// Denials and Leases are in front of Counters; nil where there are none.
	Denials *guard.Denials
	Leases  *guard.Leases
	// Breaker stops asking a Redis that does not answer; nil for memory.
	Breaker *guard.Breaker
	// OutageTimes say when an outage is logged. They change before Run only.
	OutageTimes OutageTimes

	named  []*Redis   // connections to the named servers
	redis  redisStore // nil for memory
	memory *memstore.Store
	local  *local // nil for memory
	log    *slog.Logger
	// remotes are the Redis servers, the first one first; none for memory.
	remotes  []*remote
	requests func() uint64
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
}

// Open makes the store. It does not connect: a Redis that cannot be reached is no error.
func Open(o *Options) (*Store, error) {
	if o.Redis == nil {
		return openMemory(o)
	}
	s := &Store{local: &local{maxKeys: o.MaxKeys}, log: o.Log, requests: o.Requests, OutageTimes: defaultOutageTimes}
	if err := s.openRedis(o); err != nil {
		return nil, errors.Join(err, s.disconnect())
	}
	var names []string
	servers, timeouts := map[string]guard.Server{}, map[string]time.Duration{}
	s.redis.Each(func(name string, server *redisstore.Store) {
		names = append(names, name)
		servers[name], timeouts[name] = server, server.Timeout()
		s.remotes = append(s.remotes, newRemote(name, server, o))
	})
	measured := limiter.Store(s.redis)
	if o.Instrument != nil {
		measured = o.Instrument(s.redis, names)
	}
	s.Breaker = guard.NewBreaker(guard.BreakerOptions{
		Store: measured, Servers: servers, Answered: redisstore.Answered, Failures: redisstore.Failures,
	})
	s.Counters, s.Store = s.Breaker, s.Breaker
	if o.CachedDenials && !s.isProxied(o) {
		s.Denials = guard.NewDenials(s.Store, nil)
		s.Store = s.Denials
	}
	s.Leases = guard.NewLeases(guard.LeasesOptions{
		Store: s.Store, Shard: s.Breaker.Shard, Answered: redisstore.Answered,
		Timeout: func(name string) time.Duration {
			if t, ok := timeouts[name]; ok {
				return t
			}
			return timeouts[""]
		},
	})
	s.Store = s.Leases
	return s, nil
}

func openMemory(o *Options) (*Store, error) {
	m, err := memstore.New(memstore.Options{MaxKeys: o.MaxKeys, ClockStepped: func(by time.Duration) {
		o.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"the wall clock was set: fixed windows with align: epoch or calendar follow it, other limits do not notice",
			slog.String("by", by.String()))
	}})
	if err != nil {
		return nil, err
	}
	return &Store{Store: m, Counters: m, memory: m, log: o.Log}, nil
}

// openRedis makes the stores of counters, and connects to the named servers: s.named are their connections, also after
// an error.
func (s *Store) openRedis(o *Options) error {
	counters := func(name string, r *Redis) (*redisstore.Store, error) {
		return r.Counters(redisstore.Options{Name: name, OnRestart: func(counters uint64, key string) {
			o.Log.LogAttrs(context.Background(), slog.LevelWarn,
				"counters start again: what Redis has of them cannot be of Weir; does something else write below the key prefix?",
				slog.Uint64("counters", counters), slog.String("key", key))
		}})
	}
	first, err := counters("", o.Redis)
	if err != nil {
		return err
	}
	s.redis = first
	if len(o.Named) == 0 {
		return nil
	}
	named := map[string]*redisstore.Store{}
	for name, url := range o.Named {
		of := o.OfNamed
		of.URL = url
		r, err := Connect(of)
		if err != nil {
			return err
		}
		s.named = append(s.named, r)
		if named[name], err = counters(name, r); err != nil {
			return err
		}
	}
	s.redis = redisstore.NewGroup(first, named)
	return nil
}

// isProxied reports whether a proxy is in front of one of the servers.
func (s *Store) isProxied(o *Options) bool {
	return o.Redis.Proxied() || slices.ContainsFunc(s.named, (*Redis).Proxied)
}

// disconnect ends the connections to the named servers.
func (s *Store) disconnect() error {
	var errs []error
	for _, r := range s.named {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Close returns the permits on lease, and ends the connections to named servers.
func (s *Store) Close() error {
	if s.redis == nil {
		return s.memory.Close()
	}
	if err := s.Leases.Close(); err != nil { // no reason to fail: a Redis that is gone has forgotten them, or soon will
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "permits on lease are not given back",
			slog.String("error", err.Error()))
	}
	return errors.Join(s.local.drop(), s.disconnect())
}

// String names the servers without passwords, or says Memory.
func (s *Store) String() string {
	if s.redis == nil {
		return Memory
	}
	return s.redis.String()
}

// Ping returns why the store cannot decide requests.
func (s *Store) Ping(ctx context.Context) error {
	if s.redis == nil {
		return nil
	}
	return s.redis.Ping(ctx)
}

// PingRedisCell returns why the servers of these names cannot decide limits with engine: redis_cell.
func (s *Store) PingRedisCell(ctx context.Context, names []string) error {
	var errs []error
	s.EachRedis(func(name string, server *redisstore.Store) {
		if slices.Contains(names, name) {
			errs = append(errs, server.PingRedisCell(ctx))
		}
	})
	return errors.Join(errs...)
}

// EachRedis calls f for each Redis server by its name, "" for the first one; never for memory.
func (s *Store) EachRedis(f func(name string, s *redisstore.Store)) {
	if s.redis != nil {
		s.redis.Each(f)
	}
}

// MemoryStats returns what memory holds; ok is false for Redis.
func (s *Store) MemoryStats() (stats memstore.Stats, ok bool) {
	if s.memory == nil {
		return memstore.Stats{}, false
	}
	return s.memory.Stats(), true
}

// Fallback decides limits with on_store_failure: local while Redis fails; nil for memory, which never does.
func (s *Store) Fallback() limiter.Store {
	if s.local == nil {
		return nil
	}
	return s.local
}

// Reset forgets a counter, here and in all processes. existed reports whether there was anything to forget.
func (s *Store) Reset(ctx context.Context, key string) (existed bool, err error) {
	if s.redis == nil {
		return s.memory.Reset(key), nil
	}
	existed, err = s.redis.Reset(ctx, key)
	s.forget(key, true) // also after an error: it may be done
	return existed, err
}

// KeyOf returns the counter's key of a key in Redis. ok is false if that is not below the prefix, and for memory.
func (s *Store) KeyOf(name string) (key string, ok bool) {
	if s.redis == nil {
		return "", false
	}
	return s.redis.KeyOf(name)
}

// Run follows the servers until ctx is done: it logs outages, probes servers that the breaker does not ask, and hears
// what other processes refund and reset.
func (s *Store) Run(ctx context.Context) {
	if s.redis == nil {
		return
	}
	var wait sync.WaitGroup
	for name, run := range map[string]func(context.Context){
		"watch of Redis": s.watch, "probes of Redis": s.Breaker.Run, "refunds from Redis": s.hear,
	} {
		wait.Go(func() { panics.Restart(ctx.Done(), name, func() { run(ctx) }) })
	}
	wait.Wait()
}

// hear has denials answered without Redis while the refunds of other processes are heard, and hears of counters that
// they reset. That nothing is heard is logged if it is not because a server is away: that has been logged.
func (s *Store) hear(ctx context.Context) {
	warned := false
	if s.Denials != nil {
		defer s.Denials.Believe(false) // also if it panics
	}
	s.redis.Refunds(ctx, s.forget, func(hears bool, why error) {
		away := !hears && why != nil && !s.reachable(ctx)
		if s.Denials == nil {
			return
		}
		s.Denials.Believe(hears)
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

// forget is called after a counter got a refund, or was reset.
func (s *Store) forget(key string, reset bool) {
	if s.Denials != nil {
		s.Denials.Forget(key)
	}
	if reset {
		s.Leases.Reset(key)
	}
}

// DropDenials is called when other limits rule the counters.
func (s *Store) DropDenials() {
	if s.Denials != nil {
		s.Denials.Drop()
	}
}
