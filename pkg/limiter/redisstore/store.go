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
	client  *redis.Client
	prefix  string
	timeout time.Duration
	now     func() int64
	name    string // of the server, without secrets
	scripts scripts
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
	s := &Store{prefix: o.KeyPrefix, timeout: o.Timeout, now: o.Now, name: Redact(o.URL)}
	if s.prefix == "" {
		s.prefix = DefaultKeyPrefix
	}
	s.prefix += formatVersion
	if s.timeout == 0 {
		s.timeout = DefaultTimeout
	}
	opt.MaxRetries = -1 // a call that was sent may have been counted: sending it again would count twice
	opt.DialerRetries = 1
	opt.ContextTimeoutEnabled = true
	opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = s.timeout, s.timeout, s.timeout
	// Connecting goes on behind a Take that gave up, and serves the next one.
	opt.DialTimeout = max(time.Second, s.timeout)
	opt.PoolSize = o.PoolSize
	opt.Protocol = 2
	opt.DisableIdentity = true
	opt.OnConnect = name
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	silence()
	s.client = redis.NewClient(opt)
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

// Take decides the request by one script call. It makes no second attempt, except where Redis says that it
// does not know the script, and so has not run it.
func (s *Store) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if len(hits) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	sc, err := s.scripts.of(stepsOf(hits))
	if err != nil {
		return s.unavailable(err)
	}
	keys, args := s.call(hits)
	if err := fitForRedisCell(hits, keys); err != nil {
		return s.unavailable(err)
	}
	cmd := sc.Run(ctx, s.client, keys, args...) // EVALSHA, and EVAL after NOSCRIPT
	if err := cmd.Err(); err != nil {
		return s.unavailable(err)
	}
	answer, err := cmd.Int64Slice()
	if err != nil {
		return s.unavailable(fmt.Errorf("script answered %T, not a list of integers", cmd.Val()))
	}
	return s.unavailable(decode(answer, out[:len(hits)]))
}

// unavailable wraps err as a Store's error has to be.
func (s *Store) unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", limiter.ErrUnavailable, s.name, err)
}

func stepsOf(hits []limiter.Hit) stepSet {
	var set stepSet
	for i := range hits {
		set |= 1 << stepOf(hits[i].Policy)
	}
	return set
}

// hitFields is how many numbers a hit brings before its policy's: see lua/frame.lua.
const hitFields = 6

// call writes the request as lua/frame.lua reads it.
func (s *Store) call(hits []limiter.Hit) (keys []string, args []any) {
	policies := make([][]int64, len(hits))
	width := 0
	for i := range hits {
		policies[i] = hits[i].Policy.Args()
		width = max(width, hitFields+len(policies[i]))
	}
	keys = make([]string, len(hits))
	args = make([]any, 0, 2+width*len(hits))
	args = append(args, s.clock(), width)
	for i := range hits {
		h := &hits[i]
		keys[i] = s.prefix + h.Key
		args = append(args, int64(stepOf(h.Policy)), int64(h.Mode), h.Group, int64(h.Policy.ChargeDenied()), h.N, h.Policy.Largest())
		for _, v := range policies[i] {
			args = append(args, v)
		}
		for range width - hitFields - len(policies[i]) {
			args = append(args, int64(0))
		}
	}
	return keys, args
}

// fitForRedisCell finds keys over which the redis-cell module (0.2.2) takes the whole server down. Keys of
// descriptors.Limit.AppendKey are UTF-8; a key prefix may be anything.
func fitForRedisCell(hits []limiter.Hit, keys []string) error {
	for i := range hits {
		if hits[i].Policy.Engine() == limiter.EngineRedisCell && !utf8.ValidString(keys[i]) {
			return fmt.Errorf("the key %q is not UTF-8, which ends a Redis with the redis-cell module: choose another key prefix", keys[i])
		}
	}
	return nil
}

// clock is the time to decide at, or "" for Redis's own.
func (s *Store) clock() any {
	if s.now == nil {
		return ""
	}
	return s.now()
}

// answerFields is how many integers the script answers for a hit.
const answerFields = 5

func decode(answer []int64, out []limiter.Decision) error {
	if len(answer) != answerFields*len(out) {
		return fmt.Errorf("script answered %d integers for %d hits, want %d each", len(answer), len(out), answerFields)
	}
	for i := range out {
		a := answer[i*answerFields:]
		out[i] = limiter.Decision{
			Allowed:    a[0] == 1,
			Remaining:  a[1],
			RetryAfter: time.Duration(a[2]) * time.Microsecond,
			ResetAfter: time.Duration(a[3]) * time.Microsecond,
			Wait:       time.Duration(a[4]) * time.Microsecond,
		}
		if a[2] < 0 {
			out[i].RetryAfter = limiter.Never
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
