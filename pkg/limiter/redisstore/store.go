// Package redisstore is a limiter.Store in Redis: one limit for every process that asks the same server.
//
// A request is decided by one script call, so by one round trip and atomically, on Redis's own clock. The
// script is limiter.Decide and the algorithms' steps again, in lua/: they agree exactly.
package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	// URL is redis://[user:password@]host:port/db, rediss://... (TLS) or unix://[user:password@]/path?db=0.
	URL string
	// KeyPrefix starts each key; the version of the state's format and the counter's key follow. Empty is
	// DefaultKeyPrefix.
	KeyPrefix string
	// Timeout bounds every call that has no earlier deadline. 0 is DefaultTimeout.
	Timeout time.Duration
	// PoolSize is the most connections kept at once. 0 is 10 per CPU.
	PoolSize int
	// Now is the clock in microseconds since the Unix epoch. nil, the default, is Redis's own clock, which
	// all processes share; tests bring a virtual one. The redis-cell module always uses the server's.
	Now func() int64
}

// Store keeps counters in Redis. It is safe for concurrent use.
type Store struct {
	client *redis.Client
	prefix string
	name   string // of the server, without secrets
	queue  *queue
}

// New checks the options and makes the store. It does not connect: a server that is not there yet is asked
// again by each Take.
func New(o Options) (*Store, error) {
	opt, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Timeout < 0 || o.PoolSize < 0 {
		return nil, fmt.Errorf("redis store: timeout and pool size must not be negative, got %s and %d", o.Timeout, o.PoolSize)
	}
	if o.KeyPrefix == "" {
		o.KeyPrefix = DefaultKeyPrefix
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	opt.MaxRetries = -1 // a call that was sent may have been counted: sending it again would count twice
	opt.DialerRetries = 1
	opt.ContextTimeoutEnabled = true
	opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = o.Timeout, o.Timeout, o.Timeout
	// Connecting goes on behind a Take that gave up, and serves the next one.
	opt.DialTimeout = max(time.Second, o.Timeout)
	opt.PoolSize = o.PoolSize
	opt.Protocol = 2
	opt.DisableIdentity = true
	opt.OnConnect = name
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	opt.Dialer = dialer(redis.NewDialer(opt)).undaunted
	silence()
	s := &Store{client: redis.NewClient(opt), prefix: o.KeyPrefix + formatVersion, name: Redact(o.URL)}
	s.queue = newQueue(&batcher{client: s.client, prefix: s.prefix, channel: s.channel(), now: o.Now, wall: wall}, o.Timeout)
	return s, nil
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

// String names the server, without user and password.
func (s *Store) String() string { return s.name }

// Ping says whether the server takes what counting needs: a server that is full, a replica, or one where the user
// may not write below the prefix answers, and counts nothing. It may take as long as ctx allows: the timeout of the
// store is for requests, and a server that is slow is still there.
func (s *Store) Ping(ctx context.Context) error {
	return s.unavailable(s.client.Set(ctx, s.prefix+"ping", "", time.Second).Err())
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
	return s.Take(ctx, []limiter.Hit{{Key: "ping.redis_cell", Policy: p}}, out[:])
}

// Take decides the request in the next script call, together with the requests that came while the one before
// was under way. It is not asked twice, except where Redis says that it does not know the script, and so has not
// run it, or that its clock is in another window of a calendar than this process's. When Take gives up, because
// ctx is done or the timeout is over, the request may still be charged if its call was under way.
func (s *Store) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if len(hits) == 0 {
		return nil
	}
	if err := s.fitForRedisCell(hits); err != nil {
		return s.unavailable(err)
	}
	return s.unavailable(s.queue.take(ctx, hits, out))
}

// unavailable wraps err as a Store's error has to be.
func (s *Store) unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", limiter.ErrUnavailable, s.name, err)
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

// parseURL is go-redis's, with errors that cannot carry a password and say what to write.
func parseURL(raw string) (*redis.Options, error) {
	opt, err := redis.ParseURL(raw)
	if err == nil {
		return opt, nil
	}
	reason := errors.New("not a URL of that form")
	if scheme, _, ok := strings.Cut(raw, "://"); !ok || (scheme != "redis" && scheme != "rediss" && scheme != "unix") {
		reason = errors.New("the scheme must be redis, rediss or unix")
	} else if strings.HasPrefix(err.Error(), "redis: ") && !strings.Contains(err.Error(), "@") {
		reason = err
	}
	return nil, fmt.Errorf("redis store %s: %w; write redis://[user:password@]host:port/db, rediss://... for TLS, "+
		"or unix:///path/to/socket?db=0", Redact(raw), reason)
}

// Redact is a store's URL without user, password and query, to be shown and logged.
func Redact(raw string) string {
	scheme, _, ok := strings.Cut(raw, "://")
	if !ok {
		return "(not a URL)"
	}
	u, err := url.Parse(raw)
	if err != nil || strings.Contains(u.RawQuery+u.Fragment, "@") { // its parts end where nobody meant them to
		return scheme + "://..."
	}
	return scheme + "://" + u.Host + u.Path
}
