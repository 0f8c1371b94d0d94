// Package store opens the store of a process: its memory, or Redis by URL with cached denials, leases and a circuit
// breaker. It logs outages, and counts hits for the local fallback. It does not know rules.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Memory is the name of the store in this process's memory.
const Memory = "memory"

// reportEvery is the minimum interval of log lines about counters with an invalid state.
const reportEvery = 5 * time.Second

// MaxTimeout is the longest wait for the store. PerSecond is the name of Options.PerSecondStore in metrics and the log.
const (
	MaxTimeout = 10 * time.Second
	PerSecond  = "per_second"
)

// Options has the flags for the store and its stages.
type Options struct {
	Store          string            `env:"WEIR_STORE" default:"memory" help:"memory, redis://[user:password@]host:port/db, unix://[user:password@]/path?db=0, redis+sentinel://host:port,host:port/master/db or redis+cluster://host:port,host:port; rediss for TLS; valkey is the same as redis; options after ?: docs/operate/redis.md. Pass a password in the variable or as ?password_file=PATH, because every user of the machine sees a command line."`
	StoreTimeout   time.Duration     `env:"WEIR_STORE_TIMEOUT" default:"15ms" help:"Longest wait for the store. Keep it below Envoy's timeout (default 20ms). 0: until the caller's gRPC deadline, at most 10s."`
	StoreKeyPrefix string            `env:"WEIR_STORE_KEY_PREFIX" default:"weir:" help:"Prefix of every key in Redis."`
	NamedStores    map[string]string `name:"named-store" env:"WEIR_NAMED_STORE" placeholder:"NAME=URL" help:"Another Redis, for limits with store: NAME; --store must be a Redis, too. Repeatable."`
	CachedDenials  bool              `env:"WEIR_CACHED_DENIALS" default:"true" negatable:"" help:"Repeat denials from a cache, without calls to Redis, until the request may pass."`
	// UnchargedDenials affects only hits with limiter.Hit.ByItself.
	UnchargedDenials  bool   `env:"WEIR_UNCHARGED_DENIALS" help:"With --charge-each, use cached denials even for limits that charge denied requests, without charging them, like LOCAL_CACHE_SIZE_IN_BYTES of envoyproxy/ratelimit."`
	OnStoreFailure    string `env:"WEIR_ON_STORE_FAILURE" default:"local" help:"What limits without on_store_failure do while Redis does not respond: local (count in memory), allow, deny, or error (fail the request, so that Envoy's failure_mode_deny decides)."`
	FallbackReplicas  int    `env:"WEIR_FALLBACK_REPLICAS" default:"1" help:"Number of replicas that share the limits. While Redis does not respond, each counts its part of a limit in memory."`
	MemoryMaxCounters int    `env:"WEIR_MEMORY_MAX_COUNTERS" default:"4000000" help:"Maximum number of counters in memory, also while Redis does not respond."`
	PerSecondStore    string `env:"WEIR_PER_SECOND_STORE" placeholder:"URL" help:"Another Redis, for limits with unit: second and without a store; --store must be a Redis, too."`

	// Redis is the client of Store; the caller closes it. Nil means memory.
	Redis *Redis `kong:"-"`
	// Stages returns stages to put before the counters, innermost first. names has all servers, "" for --store.
	Stages func(names []string) []take.Stage `kong:"-"`
	// Effects describes what the limits of a store do while it fails; "" is --store. It is required with Redis.
	Effects func(name string) string `kong:"-"`
	// Requests returns the number of requests that the process has answered. It is required with Redis.
	Requests func() uint64 `kong:"-"`
	// Log gets a line when an outage begins, continues for long, and ends.
	Log *slog.Logger `kong:"-"`
}

var storeName = regexp.MustCompile("^[a-z0-9_]+$")

// Check validates the flags.
func (o *Options) Check(e *flags.Errors) {
	if o.Store != Memory {
		checkURL(e, "--store", o.Store)
	}
	e.Check(o.Store != Memory || len(o.NamedStores) == 0, "--named-store",
		"needs a Redis as --store, too, for the limits without store: NAME; add --store "+
			"redis://host:6379/0, or write this URL into --store and remove the name")
	if o.PerSecondStore != "" {
		e.Check(o.Store != Memory, "--per-second-store", "needs a Redis as --store, too, for all other limits")
		e.Check(o.NamedStores[PerSecond] == "", "--named-store",
			"%s is the name of --per-second-store; choose another name", PerSecond)
		checkURL(e, "--per-second-store", o.PerSecondStore)
	}
	for _, name := range slices.Sorted(maps.Keys(o.NamedStores)) {
		e.Check(storeName.MatchString(name), "--named-store", "a name must consist of a-z, 0-9 and _; write NAME=URL")
		checkURL(e, strings.TrimSpace("--named-store "+storeName.FindString(name)), o.NamedStores[name])
	}
	if o.StoreTimeout != 0 { // 0 means the caller's deadline
		flags.Between(e, "--store-timeout", o.StoreTimeout, time.Millisecond, MaxTimeout)
	}
	flags.Between(e, "--fallback-replicas", o.FallbackReplicas, 1, 100_000)
	flags.Between(e, "--memory-max-counters", o.MemoryMaxCounters, 1, 1_000_000_000)
}

// checkURL never quotes the URL, which may have a password. Text that is not a store's name may be a password, too.
func checkURL(e *flags.Errors, flag, url string) {
	err := CheckURL(url)
	e.Check(err == nil, flag, "%w", err)
}

// LongestTimeout returns the longest timeout of a store: StoreTimeout, or a longer timeout in a URL.
func (o *Options) LongestTimeout() time.Duration {
	longest := o.StoreTimeout
	for a := range o.addresses {
		longest = max(longest, a.timeout)
	}
	return longest
}

// RunsCommand reports whether the URL of a store has a password_command.
func (o *Options) RunsCommand() bool {
	for a := range o.addresses {
		if len(a.credentials.command) > 0 {
			return true
		}
	}
	return false
}

// addresses yields the parsed URLs of all stores, without the memory store and without URLs that are not valid.
func (o *Options) addresses(yield func(*address) bool) {
	for _, url := range slices.AppendSeq([]string{o.Store, o.PerSecondStore}, maps.Values(o.NamedStores)) {
		if a, err := parseURL(url); err == nil && !yield(a) {
			return
		}
	}
}

// MaxWait returns the longest wait for a store for any deadline of the caller.
func (o *Options) MaxWait() time.Duration {
	return max(cmp.Or(o.StoreTimeout, MaxTimeout), o.LongestTimeout())
}

// Connect calls the function Connect with these options.
func (o *Options) Connect(ctx context.Context, url string) (*Redis, error) {
	return Connect(ctx, url, redisstore.Options{
		KeyPrefix: o.StoreKeyPrefix, Timeout: cmp.Or(o.StoreTimeout, MaxTimeout), UntilDeadline: o.StoreTimeout == 0,
	})
}

// Primary returns the client of --store, for counters and published rules; nil for memory. It does not connect.
func (o *Options) Primary(ctx context.Context) (*Redis, error) {
	if o.Store == Memory {
		return nil, nil //nolint:nilnil // Options.Redis takes nil for memory
	}
	r, err := o.Connect(ctx, o.Store)
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	return r, nil
}

// Store is the limiter.Store of a process. Its methods are safe for concurrent use.
type Store struct {
	// Store is a take.Chain of the counters and all stages.
	limiter.Store
	// Counters is Store without cached denials and leases, so the counters themselves make each decision.
	Counters limiter.Store
	// Denials and Leases are stages of Store; nil without them.
	Denials *guard.Denials
	Leases  *guard.Leases
	// Breaker stops calls to a Redis that does not respond; nil for memory.
	Breaker *guard.Breaker

	clients     []*Redis        // connections, first Options.Redis, then to the named servers; empty for memory
	memory      *memstore.Store // nil for Redis
	maxCounters int             // maximum number of counters in memory
	local       *memstore.Store // counts this process's shares during outages; nil for memory
	log         *slog.Logger
	// remotes are the Redis servers, with --store first; empty for memory.
	remotes []*remote
	hearing sync.Mutex // guards remote.hears
}

// Open returns the store. It does not connect, so an unreachable Redis is not an error. ctx is that of Connect.
func Open(ctx context.Context, o *Options) (*Store, error) {
	if o.Redis == nil {
		return openMemory(o) //nolint:contextcheck // memory waits for nothing
	}
	local, err := memstore.New(memstore.Options{MaxCounters: o.MemoryMaxCounters}) //nolint:contextcheck // as above
	if err != nil {
		return nil, err
	}
	s := &Store{local: local, log: o.Log}
	counters, err := s.openRedis(ctx, o)
	if err != nil {
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
	chain := o.behindStages(take.Of(counters), names).Behind(s.Breaker)
	s.Counters = chain
	// A proxy does not forward the refunds of other processes.
	if o.CachedDenials && !slices.ContainsFunc(s.clients, (*Redis).Proxied) {
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
	m, err := memstore.New(memstore.Options{MaxCounters: o.MemoryMaxCounters})
	if err != nil {
		return nil, err
	}
	return &Store{
		Store: o.behindStages(take.Memory(m), nil), Counters: m, memory: m, maxCounters: o.MemoryMaxCounters, log: o.Log,
	}, nil
}

// openRedis creates the stores of counters and the clients of the named servers. s.clients is set even after an error.
func (s *Store) openRedis(ctx context.Context, o *Options) (limiter.Store, error) {
	s.clients = []*Redis{o.Redis}
	first, err := o.Redis.Counters("")
	if err != nil {
		return nil, err
	}
	s.remotes = []*remote{newRemote("", first, o)}
	urls := o.NamedStores
	if o.PerSecondStore != "" {
		urls = map[string]string{PerSecond: o.PerSecondStore}
		maps.Copy(urls, o.NamedStores)
	}
	if len(urls) == 0 {
		return first, nil
	}
	named := map[string]*redisstore.Store{}
	for name, url := range urls {
		r, err := o.Connect(ctx, url)
		if err != nil {
			return nil, err
		}
		s.clients = append(s.clients, r)
		if named[name], err = r.Counters(name); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		s.remotes = append(s.remotes, newRemote(name, named[name], o))
	}
	return redisstore.NewGroup(first, named), nil
}

// disconnect closes the connections to the named servers.
func (s *Store) disconnect() error {
	var errs []error
	for _, r := range s.clients[1:] {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Close releases the permits on lease and closes the connections to the named servers.
func (s *Store) Close() error {
	if s.memory != nil {
		return s.memory.Close()
	}
	if err := s.Leases.Close(); err != nil { // only logged, because the charged permits leak or expire anyway
		s.log.LogAttrs(context.Background(), slog.LevelWarn, "leased permits could not be released",
			slog.String("error", err.Error()))
	}
	return errors.Join(s.local.Close(), s.disconnect())
}

// String returns the servers' URLs without passwords, or Memory.
func (s *Store) String() string {
	var all []string
	for _, r := range s.remotes {
		all = append(all, r.label)
	}
	return cmp.Or(strings.Join(all, ", "), Memory)
}

// each calls f for each Redis server and joins the errors.
func (s *Store) each(f func(r *remote) error) error {
	errs := make([]error, len(s.remotes))
	for i, r := range s.remotes {
		errs[i] = f(r)
	}
	return errors.Join(errs...)
}

// Ping returns an error if the store cannot decide requests. It agrees with Outage.
func (s *Store) Ping(ctx context.Context) error {
	return s.each(func(r *remote) error { return r.reached(ctx) })
}

// Counted returns an error if a server has not counted since the process started.
func (s *Store) Counted(ctx context.Context) error {
	return s.each(func(r *remote) error { return r.hasCounted(ctx) })
}

// PingRedisCell returns an error if a named server cannot decide limits with engine: redis_cell.
func (s *Store) PingRedisCell(ctx context.Context, names []string) error {
	return s.each(func(r *remote) error {
		if !slices.Contains(names, r.name) {
			return nil
		}
		return r.store.PingRedisCell(ctx)
	})
}

// Fallback returns the store for local counting while Redis fails; nil for memory, which never fails.
func (s *Store) Fallback() limiter.Store {
	if s.local == nil {
		return nil
	}
	return s.local
}

// Reset resets a counter, in all processes if it is in Redis. existed reports whether the counter had any state.
func (s *Store) Reset(ctx context.Context, key string) (existed bool, err error) {
	if s.memory != nil {
		return s.memory.Reset(key), nil
	}
	err = s.each(func(r *remote) error { // the limit may have named another server before
		there, err := r.store.Reset(ctx, key)
		existed = existed || there
		return err
	})
	s.forget(key, true) // even after an error, because the reset may have been executed
	return existed, err
}

// Run logs outages, probes servers whose breaker is open, renews credentials, and receives refunds and resets, until
// ctx is done.
func (s *Store) Run(ctx context.Context) {
	var wait sync.WaitGroup
	runs := func(name string, run func(ctx context.Context)) {
		wait.Go(func() { panics.Restart(ctx.Done(), name, func() { run(ctx) }) })
	}
	runs("report of odd counters", s.report)
	if s.memory == nil {
		s.runRedis(runs)
	}
	wait.Wait()
}

// report logs, until ctx is done, that counters were lowered to full or restarted.
func (s *Store) report(ctx context.Context) {
	var cut, restarted uint64
	for wait := time.Duration(0); sleep.For(ctx, wait) == nil; wait = reportEvery {
		wasCut, wasRestarted := cut, restarted
		cut, restarted = 0, 0
		s.eachMemory(func(m memoryStats) bool { cut += m.Cut; return true })
		s.eachRedis(func(r redisStats) bool { cut, restarted = cut+r.Cut, restarted+r.Restarted; return true })
		if cut > wasCut {
			s.log.LogAttrs(ctx, slog.LevelWarn, "counters exceeded their limits, so Weir lowered them to exactly full; "+
				"either a rule was edited, or the clock was set back", slog.Uint64("counters", cut-wasCut))
		}
		if restarted > wasRestarted {
			s.log.LogAttrs(ctx, slog.LevelWarn, "counters start again, because their values in Redis cannot be read; does "+
				"another program write keys with the prefix of Weir?", slog.Uint64("counters", restarted-wasRestarted))
		}
	}
}

// runRedis starts the work per server.
func (s *Store) runRedis(runs func(name string, run func(ctx context.Context))) {
	runs("watch of Redis", s.watch)
	runs("probes of Redis", s.Breaker.Run)
	for r := range s.withCredentials {
		runs("credentials of Redis", func(ctx context.Context) {
			r.credentials.run(ctx, s.log.With(slog.String("store", r.String())))
		})
	}
	for _, r := range s.remotes {
		runs("refunds from Redis", func(ctx context.Context) {
			defer s.believe(r, false) // even after a panic
			r.store.Refunds(ctx, s.forget, func(hears bool, why error) { s.heard(ctx, r, hears, why) })
		})
	}
}

// heard records whether refunds by other processes are received from a server. It logs changes, except if the server is
// unreachable, because that is logged already.
func (s *Store) heard(ctx context.Context, r *remote, hears bool, why error) {
	s.believe(r, hears)
	switch reachable := hears || why == nil || r.reached(ctx) == nil; {
	case s.Denials == nil || !reachable:
	case hears && r.isDeaf:
		r.isDeaf = false
		s.log.LogAttrs(ctx, slog.LevelInfo,
			"refunds by other replicas arrive again, so cached denials are used again",
			slog.String("store", r.label))
	case !hears && why != nil && !r.isDeaf:
		r.isDeaf = true
		s.log.LogAttrs(ctx, slog.LevelWarn,
			"refunds by other replicas do not arrive, so cached denials are off, and Redis decides each request",
			slog.String("store", r.label), slog.String("error", why.Error()))
	}
}

// believe enables cached denials while the refunds of other processes are received from each server.
func (s *Store) believe(r *remote, hears bool) {
	if s.Denials == nil {
		return
	}
	s.hearing.Lock()
	defer s.hearing.Unlock()
	r.hears = hears
	s.Denials.Believe(!slices.ContainsFunc(s.remotes, func(r *remote) bool { return !r.hears }))
}

// forget is called after a refund to a counter or its reset.
func (s *Store) forget(key string, reset bool) {
	if s.Denials != nil {
		s.Denials.Forget(key)
	}
	if reset {
		s.Leases.Reset(key)
	}
}

// DropDenials must be called when the rules change.
func (s *Store) DropDenials() {
	if s.Denials != nil {
		s.Denials.Drop()
	}
}
