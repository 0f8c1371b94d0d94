// Package redisstore is a limiter.Store in Redis: one limit for every process that asks the same server.
//
// A request is decided by one script call, so by one round trip and atomically, on Redis's own clock. The
// script is limiter.Decide and the algorithms' steps again, in lua/: they agree exactly.
package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ limiter.Store = (*Store)(nil)

// Defaults of Options.
const (
	DefaultKeyPrefix = "weir:"
	DefaultTimeout   = 15 * time.Millisecond
)

// formatVersion follows the prefix in every key: another version's states are other keys.
const formatVersion = "1:"

// Options say which Redis, and how to talk to it.
type Options struct {
	// Name is what limits call the store (limiter.Params.Store), for errors. Empty is the first one of a Group.
	Name string
	// URL has one of Forms. What it says of prefix, timeout and pool goes before the fields here.
	URL string
	// KeyPrefix starts each key; the version of the state's format and the counter's key follow. Empty is
	// DefaultKeyPrefix.
	KeyPrefix string
	// Timeout bounds every call that has no earlier deadline. 0 is DefaultTimeout.
	Timeout time.Duration
	// MinTimeout is the least that Timeout is, whatever the URL says: for commands that are not on a request's way.
	MinTimeout time.Duration
	// PoolSize is the most connections kept at once; with a cluster, to each node. 0 is 10 per CPU, and 5 with a cluster.
	PoolSize int
	// Now is the clock in microseconds since the Unix epoch. nil, the default, is Redis's own clock, which
	// all processes share; tests bring a virtual one. The redis-cell module always uses the server's.
	Now func() int64
	// OnRestart is called at most once a minute with how many counters started again since the last call, and the key in
	// Redis of one of them; see Stats.Restarted. It must be quick. nil is nothing.
	OnRestart func(counters uint64, key string)
}

// Store keeps counters in Redis. It is safe for concurrent use.
type Store struct {
	client     redis.UniversalClient
	cluster    *redis.ClusterClient // client, if that is of a cluster
	prefix     string
	name       string // of the server, without secrets
	limitsName string // Options.Name
	timeout    time.Duration
	now        func() int64 // see Options
	wall       func() int64
	queue      *queue // nil with a cluster
	sent       sent
	lanes      sync.Map    // with a cluster: the *queue of each master, by its address
	charted    atomic.Bool // it is known who has which slot
}

// New checks the options and makes the store. It does not connect: a server that is not there yet is asked
// again by each Take.
func New(o Options) (*Store, error) {
	u, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	u.complete(&o)
	if o.MinTimeout > 0 {
		o.Timeout = max(o.Timeout, o.MinTimeout)
	}
	if o.Timeout < 0 || o.PoolSize < 0 {
		return nil, fmt.Errorf("redis store: timeout and pool size must not be negative, got %s and %d", o.Timeout, o.PoolSize)
	}
	silence()
	s := &Store{
		prefix: o.KeyPrefix + formatVersion, name: Redact(o.URL), limitsName: o.Name, timeout: o.Timeout, now: o.Now, wall: wall,
	}
	s.sent.restarts.report = o.OnRestart
	s.client, err = u.open(&o)
	if err != nil {
		return nil, err
	}
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		s.cluster = cluster
	} else {
		s.queue = newQueue(s, "")
	}
	return s, nil
}

// batcher decides the batches of one queue.
func (s *Store) batcher() *batcher {
	return &batcher{
		client: s.client, slotted: s.cluster != nil, prefix: s.prefix, channel: s.channel(), now: s.now, wall: s.wall,
		sent: &s.sent,
	}
}

// key is the counter's name in Redis.
func (s *Store) key(key string) string {
	if s.cluster != nil {
		return s.prefix + tagged(key)
	}
	return s.prefix + key
}

// name is for CLIENT LIST. A user who may not do that can count all the same.
func name(ctx context.Context, conn *redis.Conn) error {
	_ = conn.ClientSetName(ctx, "weir").Err()
	return nil
}

// silence turns go-redis's own log off, which writes to standard error for the whole process: whatever it
// would say comes back as an error of the call.
var silence = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// Close ends all connections.
func (s *Store) Close() error { return s.client.Close() }

// Timeout is the longest that a Take waits.
func (s *Store) Timeout() time.Duration { return s.timeout }

// String names the server, without user and password.
func (s *Store) String() string { return s.name }

// Ping says whether the server decides requests, by the script that decides them all: a server that is full, a replica, or
// one where the user may not run scripts or not write below the prefix answers, and counts nothing. It may take as long as ctx allows: the timeout of the
// store is for requests, and a server that is slow is still there. In a cluster each master has to.
func (s *Store) Ping(ctx context.Context) (err error) {
	if wrong := survive(func() { err = s.pingAll(ctx) }); wrong != nil {
		err = s.unavailable(wrong)
	}
	return err
}

func (s *Store) pingAll(ctx context.Context) error {
	if s.cluster != nil && !strings.Contains(s.prefix, "{") { // which puts all counters into one slot
		return s.unavailable(s.pingMasters(ctx))
	}
	return s.unavailable(s.ping(ctx, s.client, s.prefix+probeKey))
}

// PingInTime is Ping within the time that a Take has. Connections are made before, as by Probe.
func (s *Store) PingInTime(ctx context.Context) error { return s.probe(ctx, s.Ping) }

// Probe is Ping within the time that a request has. Before, it makes the connections of the calls that may be under way
// at once, each of whose round trips may take as long: a server that is found again should not lose them to requests
// that cannot wait for them.
//
// In a cluster it is enough that a node says who has which slot: then each is looked after by ProbeShard.
func (s *Store) Probe(ctx context.Context) error {
	if s.cluster != nil {
		return s.chart(ctx)
	}
	return s.probe(ctx, s.Ping)
}

func (s *Store) probe(ctx context.Context, ask func(ctx context.Context) error) error {
	connect, cancel := context.WithTimeout(ctx, 4*s.timeout)
	defer cancel()
	var wait sync.WaitGroup
	for range maxFlights {
		wait.Go(func() { _ = ask(connect) })
	}
	wait.Wait()
	ctx, cancel = context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return ask(ctx)
}

// PingRedisCell says whether the server decides limits of limiter.EngineRedisCell: it needs the module, and the user
// the right to it. Its time is that of a Take.
func (s *Store) PingRedisCell(ctx context.Context) error {
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.Funnel, Limit: 1, Window: time.Second, Engine: limiter.EngineRedisCell,
	})
	if err != nil {
		return s.unavailable(err)
	}
	var out [1]limiter.Decision
	return s.Take(ctx, []limiter.Hit{{Key: "ping.redis_cell", Policy: p, Look: true}}, out[:])
}

// Take decides the request in the next script call, together with the requests that came while the one before
// was under way. It is not asked twice, except where Redis says that it does not know the script, and so has not
// run it, or that its clock is in another window of a calendar than this process's. When Take gives up, because
// ctx is done or the timeout is over, the request may still be charged if its call was under way.
func (s *Store) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if len(hits) == 0 {
		return nil
	}
	if err := limiter.Check(hits, out); err != nil {
		return err
	}
	if err := s.fitForRedisCell(hits); err != nil {
		return s.unavailable(err)
	}
	return s.unavailable(s.take(ctx, hits, out))
}

func (s *Store) take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) (err error) {
	if s.cluster == nil {
		return s.queue.take(ctx, 0, hits, out)
	}
	if wrong := survive(func() { err = s.takeCluster(ctx, hits, out) }); wrong != nil {
		err = wrong
	}
	return err
}

func (s *Store) takeCluster(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	start := time.Now()
	err := s.takeSplit(ctx, hits, out, false)
	if isMoving(err) && len(hits) > 1 {
		again, cancel := context.WithDeadline(ctx, start.Add(s.timeout))
		defer cancel()
		err = s.takeSplit(again, hits, out, true)
	}
	return err
}

// Label names the store in errors and logs, as in --named-store: NAME=URL, or the URL alone, without secrets.
func (s *Store) Label() string {
	if s.limitsName == "" {
		return s.name
	}
	return s.limitsName + "=" + s.name
}

// unavailable wraps err as a Store's error has to be: it names the store.
func (s *Store) unavailable(err error) error {
	if err == nil {
		return nil
	}
	return unavailable(s.named("", err))
}

// unavailable wraps errors that name their stores.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
}

// fitForRedisCell finds keys over which the redis-cell module (0.2.2) takes the whole server down. Keys of
// descriptors.Limit.AppendKey are UTF-8; a key prefix may be anything.
func (s *Store) fitForRedisCell(hits []limiter.Hit) error {
	for i := range hits {
		if hits[i].Policy.Engine() != limiter.EngineRedisCell {
			continue
		}
		if key := s.prefix + hits[i].Key; !utf8.ValidString(key) {
			return failure(fmt.Sprintf("the key %q is not UTF-8, which ends a Redis with the redis-cell module: choose another key prefix", key))
		}
	}
	return nil
}
