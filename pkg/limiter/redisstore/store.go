// Package redisstore keeps the counters of limits in a Redis server or cluster, so that processes share each limit.
//
// [New] takes your go-redis client of a single server, of a master behind Sentinel, or of a cluster:
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
//	store, err := redisstore.New(client, redisstore.Options{})
//
// The store is a [limiter.Store]: pass it to [limiter.New]. You must close the client yourself.
//
// # How Redis decides
//
// One script call decides a request atomically, in one round trip, on the clock of Redis, so the clocks of the
// processes need not agree. The scripts decide exactly as [storekit.Decide] and the algorithms' steps do. Concurrent
// requests share a call. A request is charged to all of its limits or to none, even on several masters of a cluster.
//
// # Behind a proxy
//
// A proxy such as twemproxy or Envoy's redis_proxy spreads keys over several servers, and sends a script to the server
// of the script's first key. With [Options].Proxy, each script call has one key, and Weir decides a request with
// several keys as in a cluster where each key is in another slot. [Store.Refunds] does not work, because proxies do not
// forward subscriptions.
//
// # When Redis fails
//
// [Store.Take] returns an error that wraps [limiter.ErrUnavailable] within [Options].Timeout (15 ms by default). If
// this process is too late to read the reply of Redis, Take returns within twice that time, and the error also wraps
// [limiter.ErrLate]. The store has neither a failure policy nor a circuit breaker, so the caller must choose what to do
// with the request. [Answered], [TimedOut] and [Failures] classify the error and name the server. [Store.Ping] returns
// the reason for which a server cannot decide requests.
//
// # Several servers
//
// A [Group] holds several stores. The [Route] of a hit names the hit's store.
//
// # Keys
//
// A Redis key consists of [Options].KeyPrefix, [FormatVersion] and the counter's key. Processes of different releases
// share counters if they have the same FormatVersion. Every key has a time to live.
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

// FormatVersion is the version of the format of states. It is part of every key, so each format has its own keys.
const FormatVersion = "1:"

// Options configure a Store. The zero value has useful defaults.
type Options struct {
	// Name is the store's name in routes (Route.Store) and in errors. It is empty for the first store of a Group.
	Name string
	// Server is the server's name in errors and logs, without a password. The default is the client's address.
	Server string
	// KeyPrefix is the beginning of each key, before FormatVersion. The default is DefaultKeyPrefix.
	KeyPrefix string
	// Timeout is the maximum time that Take waits for Redis, unless its context ends earlier. 0 means DefaultTimeout.
	Timeout time.Duration
	// UntilDeadline reserves a tenth of the time until the deadline of Take's context: Take and its script call end after
	// nine tenths, so that the caller can still apply a failure policy. It has no effect if Timeout ends earlier.
	UntilDeadline bool
	// Proxy must be set if the client is connected to a proxy that spreads keys over several servers.
	Proxy bool
	// Now returns the time in microseconds since the Unix epoch. Nil, the default, means the clock of Redis, which all
	// processes share. Tests set a virtual clock. The redis-cell module always uses the server's clock.
	Now func() int64
}

// Store keeps counters in Redis. It is safe for concurrent use.
type Store struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the client of a cluster, else nil
	keyspace
	o       Options // with the defaults
	canLend bool    // the client ends a call at the deadline of the call's context: see queue.lends
	queue   *queue  // nil with a cluster
	sent    sent
	alone   Group // a group with only this store

	lanes         sync.Map    // with a cluster: the *queue of each master, by the master's address
	knowsTopology atomic.Bool // the cluster client has read which master owns which slot
}

// New returns a store on a client of a single server, of a master behind Sentinel, or of a cluster. It does not
// connect: while the server is unreachable, each Take returns an error that wraps limiter.ErrUnavailable.
//
// The caller must close the client. The client's timeouts bound each round trip in addition to Options.Timeout. Set
// its ContextTimeoutEnabled: otherwise a call to a server that hangs occupies a connection until the client's
// ReadTimeout (3 s by default), although Take returns in time. New returns an error for a cluster client that sends to
// replicas (ReadOnly, RouteByLatency, RouteRandomly), and for a redis.Ring.
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
		if c.Options().ReadOnly { // go-redis also sets ReadOnly for RouteByLatency and RouteRandomly
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

// isSpread reports whether the keys are on several servers, so that a script call may have only keys of one scope.
func (s *Store) isSpread() bool { return s.cluster != nil || s.o.Proxy }

// batcher returns a batcher for one queue.
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

// Timeout returns the maximum time that a Take waits for Redis.
func (s *Store) Timeout() time.Duration { return s.o.Timeout }

// String returns Options.Server.
func (s *Store) String() string { return s.o.Server }

// Label returns the store's name for errors and logs: NAME=SERVER, or SERVER if the store has no name.
func (s *Store) Label() string {
	if s.o.Name == "" {
		return s.o.Server
	}
	return s.o.Name + "=" + s.o.Server
}

// Take implements limiter.Store. It decides the request in the next script call, together with the requests that
// arrived during the last call. Weir sends a request again only if Redis did not know the script. If Take returns
// early, because ctx is done or the timeout is over, Redis may still charge a request whose call is in flight. If that
// charge counts the request as in flight, the store refunds the charge if the reply arrives within LateAnswer.
// Take ignores the store that the Route of a hit names.
func (s *Store) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	return s.alone.Take(ctx, hits, out)
}

// TakeAll decides several requests, each as Take does, in as few script calls as possible. It waits for all of them.
func (s *Store) TakeAll(calls []*storekit.Call) { s.alone.TakeAll(calls) }
