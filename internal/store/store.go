// Package store opens the store that a process counts in: its own memory, or Redis by URL, with cached denials, leases
// and a circuit breaker in front of it. It logs outages and has the local fallback's counters. It knows no rules.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Memory names the store that is this process's memory.
const Memory = "memory"

// reportEvery is the least time between two log lines about counters whose state was odd.
const reportEvery = 5 * time.Second

// MaxTimeout is the longest wait for the store, and PerSecond what metrics and the log call Options.PerSecondStore.
const (
	MaxTimeout = 10 * time.Second
	PerSecond  = "per_second"
)

// Options say which store, and what stands in front of it, as flags of serve.
type Options struct {
	Store          string            `env:"WEIR_STORE" default:"memory" help:"memory, redis://[user:password@]host:port/db, unix://[user:password@]/path?db=0, redis+sentinel://host:port,host:port/master/db or redis+cluster://host:port,host:port; rediss for TLS; options after ?: docs/operate/redis.md. Pass a password in the variable or as ?password_file=PATH, because every user of the machine sees a command line."`
	StoreTimeout   time.Duration     `env:"WEIR_STORE_TIMEOUT" default:"15ms" help:"Longest wait for the store. Keep it below Envoy's timeout (default 20ms). 0: until the caller's gRPC deadline, at most 10s."`
	StoreKeyPrefix string            `env:"WEIR_STORE_KEY_PREFIX" default:"weir:" help:"Start of every key in Redis."`
	NamedStores    map[string]string `name:"named-store" env:"WEIR_NAMED_STORE" placeholder:"NAME=URL" help:"Another Redis, for limits with store: NAME; --store must be a Redis, too. Repeatable."`
	CachedDenials  bool              `env:"WEIR_CACHED_DENIALS" default:"true" negatable:"" help:"Repeat denials from a cache, without calls to Redis, until the request may pass."`
	// UnchargedDenials is about hits that are charged by themselves.
	UnchargedDenials bool   `env:"WEIR_UNCHARGED_DENIALS" help:"With --charge-each, use cached denials even for limits that charge denied requests, without charging them, like LOCAL_CACHE_SIZE_IN_BYTES of envoyproxy/ratelimit."`
	OnStoreFailure   string `env:"WEIR_ON_STORE_FAILURE" default:"local" help:"What limits without on_store_failure do while Redis does not respond: local (count in memory), allow, deny, or error (fail the request, so that Envoy's failure_mode_deny decides)."`
	Replicas         int    `env:"WEIR_REPLICAS" default:"1" help:"Number of replicas that share the limits. While Redis does not respond, each counts its part of a limit in memory."`
	MemoryMaxKeys    int    `env:"WEIR_MEMORY_MAX_KEYS" default:"4000000" help:"Maximum number of counters in memory, also while Redis does not respond."`
	PerSecondStore   string `env:"WEIR_PER_SECOND_STORE" placeholder:"URL" help:"Another Redis, for limits with unit: second and without a store; --store must be a Redis, too."`

	// Redis is the server of Store, which the caller closes; nil counts in memory.
	Redis *Redis `kong:"-"`
	// Stages returns what stands directly in front of the counters, from behind: names are those of all servers, "" for
	// the first one. Nil: nothing.
	Stages func(names []string) []take.Stage `kong:"-"`
	// Effects returns in a sentence what the limits of a store do while it fails, by its name; "" is the first one. It is
	// needed with Redis.
	Effects func(name string) string `kong:"-"`
	// Requests returns how many requests the process has answered. An outage in which nearly all of them are decided by
	// Redis is none. It is needed with Redis.
	Requests func() uint64 `kong:"-"`
	// Log has a line when an outage begins, goes on and ends.
	Log *slog.Logger `kong:"-"`
}

// MaxWait is the longest wait for the store, whatever the caller's deadline.
func (o *Options) MaxWait() time.Duration { return cmp.Or(o.StoreTimeout, MaxTimeout) }

// Connect is the function Connect with these options.
func (o *Options) Connect(url string) (*Redis, error) {
	return Connect(url, redisstore.Options{
		KeyPrefix: o.StoreKeyPrefix, Timeout: o.MaxWait(), UntilDeadline: o.StoreTimeout == 0,
	})
}

// Primary makes the connections of --store, which the counters and the published rules share; nil for memory. It does
// not connect.
func (o *Options) Primary() (*Redis, error) {
	if o.Store == Memory {
		return nil, nil //nolint:nilnil // Options.Redis takes nil for memory
	}
	r, err := o.Connect(o.Store)
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	return r, nil
}

// Store is the limiter.Store of a process. Its methods are safe for concurrent use.
type Store struct {
	// Store is a take.Chain of all that stands in front of the counters.
	limiter.Store
	// Counters is what Store has without cached denials and leases: what it answers is what is counted.
	Counters limiter.Store
	// Denials and Leases are in front of Counters; nil where there are none.
	Denials *guard.Denials
	Leases  *guard.Leases
	// Breaker stops asking a Redis that does not answer; nil for memory.
	Breaker *guard.Breaker

	named   []*Redis      // connections to the named servers
	redis   limiter.Store // nil for memory
	memory  *memstore.Store
	maxKeys int             // most counters of memory
	local   *memstore.Store // counts shares of limits while Redis does not; nil for memory
	log     *slog.Logger
	// remotes are the Redis servers, the first one first; none for memory.
	remotes []*remote
	hearing sync.Mutex // guards what remotes hear
}

// Open makes the store. It does not connect: a Redis that cannot be reached is no error.
func Open(o *Options) (*Store, error) {
	if o.Redis == nil {
		return openMemory(o)
	}
	local, err := memstore.New(memstore.Options{MaxKeys: o.MemoryMaxKeys})
	if err != nil {
		return nil, err
	}
	s := &Store{local: local, log: o.Log}
	if err := s.openRedis(o); err != nil {
		return nil, errors.Join(err, s.disconnect(), local.Close())
	}
	var names []string
	servers := map[string]guard.Server{}
	for _, r := range s.remotes {
		names = append(names, r.name)
		servers[r.name] = r.store
	}
	s.Breaker = guard.NewBreaker(guard.BreakerOptions{
		Servers: servers, Answered: redisstore.Answered, Failures: redisstore.Failures,
	})
	chain := o.behindStages(take.Of(s.redis), names).Behind(s.Breaker)
	s.Counters = chain
	// A proxy does not pass on the refunds of other processes.
	if o.CachedDenials && !s.isProxied(o) {
		s.Denials = guard.NewDenials(nil)
		s.Denials.Uncharged = o.UnchargedDenials
		chain = chain.Behind(s.Denials)
	}
	s.Leases = guard.NewLeases(chain)
	s.Store = chain.Behind(s.Leases)
	return s, nil
}

func (o *Options) behindStages(k *take.Chain, names []string) *take.Chain {
	if o.Stages != nil {
		for _, stage := range o.Stages(names) {
			k = k.Behind(stage)
		}
	}
	return k
}

func openMemory(o *Options) (*Store, error) {
	m, err := memstore.New(memstore.Options{MaxKeys: o.MemoryMaxKeys})
	if err != nil {
		return nil, err
	}
	return &Store{
		Store: o.behindStages(take.Memory(m), nil), Counters: m, memory: m, maxKeys: o.MemoryMaxKeys, log: o.Log,
	}, nil
}

// openRedis makes the stores of counters, and connects to the named servers: s.named are their connections, also after
// an error.
func (s *Store) openRedis(o *Options) error {
	first, err := o.Redis.Counters("")
	if err != nil {
		return err
	}
	s.redis, s.remotes = first, []*remote{newRemote("", first, o)}
	urls := o.NamedStores
	if o.PerSecondStore != "" {
		urls = map[string]string{PerSecond: o.PerSecondStore}
		maps.Copy(urls, o.NamedStores)
	}
	if len(urls) == 0 {
		return nil
	}
	named := map[string]*redisstore.Store{}
	for name, url := range urls {
		r, err := o.Connect(url)
		if err != nil {
			return err
		}
		s.named = append(s.named, r)
		if named[name], err = r.Counters(name); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		s.remotes = append(s.remotes, newRemote(name, named[name], o))
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
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "permits on lease are not released",
			slog.String("error", err.Error()))
	}
	return errors.Join(s.local.Close(), s.disconnect())
}

// String names the servers without passwords, or says Memory.
func (s *Store) String() string {
	if s.redis == nil {
		return Memory
	}
	var all []string
	for _, r := range s.remotes {
		all = append(all, r.label)
	}
	return strings.Join(all, ", ")
}

// each joins the errors of f for each Redis server.
func (s *Store) each(f func(r *remote) error) error {
	errs := make([]error, len(s.remotes))
	for i, r := range s.remotes {
		errs[i] = f(r)
	}
	return errors.Join(errs...)
}

// Ping returns why the store cannot decide requests. Outage agrees with it.
func (s *Store) Ping(ctx context.Context) error {
	return s.each(func(r *remote) error { return r.reached(ctx) })
}

// Counted returns why one of the servers has not counted since the process started; nil once each has.
func (s *Store) Counted(ctx context.Context) error {
	return s.each(func(r *remote) error { return r.hasCounted(ctx) })
}

// PingRedisCell returns why the servers of these names cannot decide limits with engine: redis_cell.
func (s *Store) PingRedisCell(ctx context.Context, names []string) error {
	return s.each(func(r *remote) error {
		if !slices.Contains(names, r.name) {
			return nil
		}
		return r.store.PingRedisCell(ctx)
	})
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
	err = s.each(func(r *remote) error { // it may still be in one that its limit named before
		there, err := r.store.Reset(ctx, key)
		existed = existed || there
		return err
	})
	s.forget(key, true) // also after an error: it may be done
	return existed, err
}

// Run follows the servers until ctx is done: it logs outages, probes servers that the breaker does not ask, and hears
// what other processes refund and reset.
func (s *Store) Run(ctx context.Context) {
	var wait sync.WaitGroup
	runs := func(name string, run func(ctx context.Context)) {
		wait.Go(func() { panics.Restart(ctx.Done(), name, func() { run(ctx) }) })
	}
	runs("report of odd counters", s.report)
	if s.redis != nil {
		s.runRedis(runs)
	}
	wait.Wait()
}

// report logs that counters were cut, or started again, until ctx is done.
func (s *Store) report(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	var cut, restarted uint64
	for {
		wasCut, wasRestarted := cut, restarted
		cut, restarted = 0, 0
		s.eachMemory(func(m memoryStats) bool { cut += m.Cut; return true })
		s.eachRedis(func(r redisStats) bool { cut, restarted = cut+r.Cut, restarted+r.Restarted; return true })
		if cut > wasCut {
			s.log.LogAttrs(ctx, slog.LevelWarn, "counters were further ahead than their limits can put them, and count as full "+
				"from now on: a rule was edited, or the clock was set back", slog.Uint64("counters", cut-wasCut))
		}
		if restarted > wasRestarted {
			s.log.LogAttrs(ctx, slog.LevelWarn, "counters start again: what Redis has of them cannot be of Weir; does "+
				"something else write below the key prefix?", slog.Uint64("counters", restarted-wasRestarted))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// runRedis follows the servers.
func (s *Store) runRedis(runs func(name string, run func(ctx context.Context))) {
	runs("watch of Redis", s.watch)
	runs("probes of Redis", s.Breaker.Run)
	for _, r := range s.remotes {
		runs("refunds from Redis", func(ctx context.Context) {
			defer s.believe(r, false) // also if it panics
			r.store.Refunds(ctx, s.forget, func(hears bool, why error) { s.heard(ctx, r, hears, why) })
		})
	}
}

// heard notes whether the refunds of other processes are heard from a server. That they are not is logged, unless the
// server is unreachable, which has been logged.
func (s *Store) heard(ctx context.Context, r *remote, hears bool, why error) {
	s.believe(r, hears)
	switch reachable := hears || why == nil || r.reached(ctx) == nil; {
	case s.Denials == nil || !reachable:
	case hears && r.isDeaf:
		r.isDeaf = false
		s.log.LogAttrs(ctx, slog.LevelInfo,
			"refunds by other replicas are heard again: cached denials are answered without Redis",
			slog.String("store", r.label))
	case !hears && why != nil && !r.isDeaf:
		r.isDeaf = true
		s.log.LogAttrs(ctx, slog.LevelWarn,
			"refunds by other replicas are not heard: cached denials are off, and Redis decides each request",
			slog.String("store", r.label), slog.String("error", why.Error()))
	}
}

// believe has denials answered without Redis while the refunds of other processes are heard from each server.
func (s *Store) believe(r *remote, hears bool) {
	if s.Denials == nil {
		return
	}
	s.hearing.Lock()
	defer s.hearing.Unlock()
	r.hears = hears
	s.Denials.Believe(!slices.ContainsFunc(s.remotes, func(r *remote) bool { return !r.hears }))
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
