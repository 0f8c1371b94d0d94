// Package redisstore keeps the counters of limits in Redis: one limit for all processes that use the same server or
// cluster.
//
// [New] takes a go-redis client of yours, of a server, of the master behind sentinels, or of a cluster:
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	store, err := redisstore.New(client, redisstore.Options{})
//
// It is a [limiter.Store]: give it to [limiter.New]. The client stays yours, and you close it.
//
// # How it decides
//
// A request is decided by one script call, so by one round trip and atomically, on Redis's own clock: the clocks of
// the processes need not agree. The scripts do what [storekit.Decide] and the algorithms' steps do, and agree with
// them exactly. Requests that come at the same time share a call. In a cluster a request is charged to all its limits
// or to none, also where their counters lie on several masters.
//
// # Behind a proxy
//
// A proxy such as twemproxy or Envoy's redis_proxy spreads keys over several servers, and sends a script to the server
// of its first key. With [Options].Proxy each script call has one key. A request with several keys is decided as in a
// cluster whose keys are all in different slots. A proxy passes on no subscription, so there is no refunds channel.
//
// # When Redis fails
//
// [Store.Take] returns an error that wraps [limiter.ErrUnavailable], within [Options].Timeout (15 ms by default);
// within twice that, with an error that wraps [limiter.ErrLate], if this process is too late to read what Redis
// answers. The store has no failure policy and no circuit breaker of its own: what a request then gets is the caller's
// choice. [Answered], [TimedOut] and [Failures] say what kind of error it is, and which server it is about.
// [Store.Ping] says why a server cannot decide.
//
// # Several servers
//
// A [Group] is several stores. A hit names its store by [Route].
//
// # Keys
//
// Each key is [Options].KeyPrefix, [FormatVersion] and the counter's key. Processes of different releases share
// counters as long as they have the same FormatVersion. Every key has a time to live.
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

var _ limiter.Store = (*Store)(nil)

// Defaults of Options.
const (
	DefaultKeyPrefix = "weir:"
	DefaultTimeout   = 15 * time.Millisecond
)

// FormatVersion follows the prefix in every key: the states of another version have other keys.
const FormatVersion = "1:"

// Options say how to use the client. The zero value is good.
type Options struct {
	// Name is what routes call the store (Route.Store), for errors. It is empty for the first one of a Group.
	Name string
	// Server names the server in errors and logs, without a password. Empty is the client's address.
	Server string
	// KeyPrefix starts each key; the version of the state's format and the counter's key follow. Empty is
	// DefaultKeyPrefix.
	KeyPrefix string
	// Timeout is how long Redis may take to answer, in a Take that has no earlier deadline. 0 is DefaultTimeout.
	Timeout time.Duration
	// UntilDeadline has a Take whose context has an earlier deadline than Timeout end in nine tenths of the time until
	// then, and its call with it: a failure policy can still answer in the last tenth.
	UntilDeadline bool
	// Proxy says that the client is connected to a proxy that spreads keys over several servers: a script call then has
	// one key.
	Proxy bool
	// Now is the clock, in microseconds since the Unix epoch. Nil, the default, is Redis's own clock, which all processes
	// share; tests set a virtual one. The redis-cell module always uses the server's.
	Now func() int64
}

// Store keeps counters in Redis. It is safe for concurrent use.
type Store struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // client, if that is of a cluster
	keyspace
	o       Options // with the defaults
	canLend bool    // the client ends a call at its deadline: see queue.canLend
	queue   *queue  // nil with a cluster
	sent    sent
	alone   Group // of this store

	lanes         sync.Map    // with a cluster: the *queue of each master, by its address
	knowsTopology atomic.Bool // it is known which master has which slot
}

// New makes a store on a client of a server, of the master behind sentinels, or of a cluster. It does not connect:
// while the server cannot be reached, each Take returns an error that wraps limiter.ErrUnavailable.
//
// The client stays the caller's. Its timeouts bound each round trip beside Options.Timeout. Set its
// ContextTimeoutEnabled: without that, a call to a server that hangs occupies a connection until the client's own
// ReadTimeout (3 s by default), though Take returns in time. A cluster's client that sends to replicas (ReadOnly,
// RouteByLatency, RouteRandomly) is an error, and so is a redis.Ring: its servers cannot decide a request together.
func New(client redis.UniversalClient, o Options) (*Store, error) {
	if client == nil {
		return nil, errors.New("redis store: the client is missing")
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("redis store: the timeout must not be negative, got %s", o.Timeout)
	}
	if !utf8.ValidString(o.KeyPrefix) { // see check
		return nil, fmt.Errorf("redis store: the key prefix must be UTF-8, got %q", o.KeyPrefix)
	}
	o.Timeout, o.KeyPrefix = cmp.Or(o.Timeout, DefaultTimeout), cmp.Or(o.KeyPrefix, DefaultKeyPrefix)
	s := &Store{client: client, keyspace: keyspace{prefix: o.KeyPrefix + FormatVersion}, o: o}
	s.alone.first = s
	address := ""
	switch c := client.(type) {
	case *redis.Client:
		address, s.canLend = c.Options().Addr, c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		if o.Proxy {
			return nil, errors.New("redis store: the client of a cluster itself chooses the server of a key; leave out Proxy")
		}
		if c.Options().ReadOnly { // as it is with RouteByLatency and RouteRandomly, too
			return nil, errors.New("redis store: counters are on masters; leave out ReadOnly, RouteByLatency and RouteRandomly")
		}
		s.cluster, s.slotted = c, true
		address, s.canLend = strings.Join(c.Options().Addrs, ","), c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return nil, errors.New("redis store: the servers of a redis.Ring cannot decide a request together; use a cluster")
	}
	s.o.Server = cmp.Or(o.Server, address)
	if s.cluster == nil {
		s.queue = newQueue(s, "")
	}
	return s, nil
}

// isSpread reports whether the keys are on several servers, so that a script call may not have any keys together.
func (s *Store) isSpread() bool { return s.cluster != nil || s.o.Proxy }

// batcher decides the batches of one queue.
func (s *Store) batcher() *batcher {
	r := &batcher{
		client: s.client, keyspace: s.keyspace, now: s.o.Now, sendsNow: s.o.Now != nil, sent: &s.sent, isSpread: s.isSpread(),
	}
	if r.now == nil {
		r.now = func() int64 { return time.Now().UnixMicro() }
	}
	if !s.o.Proxy {
		r.channel = s.channel()
	}
	return r
}

// Timeout is the longest that a Take waits for Redis.
func (s *Store) Timeout() time.Duration { return s.o.Timeout }

// String returns Options.Server.
func (s *Store) String() string { return s.o.Server }

// Label names the store in errors and logs: NAME=SERVER, or the server alone.
func (s *Store) Label() string {
	if s.o.Name == "" {
		return s.o.Server
	}
	return s.o.Name + "=" + s.o.Server
}

// Take implements limiter.Store. It decides the request in the next script call, together with the requests that came
// while the last call was under way. A request is sent once, except where Redis does not know the script. When Take
// gives up, because ctx is done or the timeout is over, the request may still be charged if its call was under way. If
// that counts it as in flight, Take gives it back as soon as the answer comes. The Route of a hit names no store here.
func (s *Store) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	return s.alone.Take(ctx, hits, out)
}

// TakeAll is Take for several requests, each with its own answer, in as few calls to the server as they fit in. It
// returns when each has one.
func (s *Store) TakeAll(calls []*storekit.Call) { s.alone.TakeAll(calls) }
