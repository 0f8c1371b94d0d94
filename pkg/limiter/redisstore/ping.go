package redisstore

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// probeKey is the key of the counter that a ping charges and refunds. No rule's counter has this key.
// docs/operate/redis.md names it among the keys that the Redis user must be allowed to write.
const probeKey = "ping"

// topologyTimeout is the minimum timeout of a Probe that reads the topology of a cluster.
const topologyTimeout = 250 * time.Millisecond

// longestProbe is the maximum time of a probe, even if requests may take longer. A probe that hangs would delay the
// next probe, and so hide that the server has recovered.
const longestProbe = 500 * time.Millisecond

// Ping returns nil if the server can decide requests, else the reason. It sends a request with the script of all
// requests, so it finds a server that is out of memory or a replica, and a user who may not run scripts or not write
// keys with the prefix. Stats do not count it. Its time is limited only by ctx and the client's own timeouts, which may
// be longer than Options.Timeout. In a cluster, Ping tests each master.
func (s *Store) Ping(ctx context.Context) error {
	return s.unavailable(survive(func() error {
		if s.cluster != nil && !strings.Contains(s.prefix, "{") { // a hash tag in the prefix puts all keys into one slot
			return s.pingMasters(ctx)
		}
		return s.ping(ctx, s.client, s.prefix+probeKey)
	}))
}

// ping sends a server two requests for one counter: a charge, which writes the key, and its refund, which deletes the
// key. The window is an hour, so that the funnel does not leak between the two. If the key stayed, the next ping would
// not test SET. The store's Stats do not count the two requests, and the refund is not published.
func (s *Store) ping(ctx context.Context, client redis.UniversalClient, key string) error {
	// Most stores load the funnel's step anyway.
	params := limiter.Params{
		Algorithm: limiter.Funnel, Limit: 1000, Window: time.Hour, ChargeDenied: limiter.ChargeNone,
	}
	p, err := limiter.NewPolicy(params)
	if err != nil {
		return err
	}
	r := s.batcher()
	r.client, r.keyspace, r.channel, r.sent = client, keyspace{}, "", new(sent)
	for _, n := range []int64{1, -1} {
		c, b := &call{hits: []limiter.Hit{{Key: key, Policy: p, N: n}}}, new(batch)
		b.add(c)
		r.send(ctx, b)
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

// pingMasters pings each master with a key that it owns.
func (s *Store) pingMasters(ctx context.Context) error {
	return s.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		addr := node.Options().Addr
		for i := range slots {
			if ctx.Err() != nil { // a faulty server may report many masters
				return ctx.Err()
			}
			key := s.key(probeKey + "|" + strconv.Itoa(i))
			owner, err := s.cluster.MasterForKey(ctx, key)
			if err != nil {
				return err
			}
			if owner.Options().Addr == addr {
				if err := s.ping(ctx, node, key); err != nil {
					return s.named(addr, err)
				}
				return nil
			}
		}
		return nil // the master owns none of these keys' slots
	})
}

// PingInTime is Ping with the timeout of a Take, at most 500 ms. Like Probe, it opens connections first.
func (s *Store) PingInTime(ctx context.Context) error { return s.probe(ctx, s.Ping) }

// Probe is Ping with the timeout of a Take, at most 500 ms. It first opens as many connections as there may be calls in
// flight, because the first requests after an outage have no time for the round trips of new connections.
//
// In a cluster, Probe tests only the master that has the counter with this key, or without a key reads the topology.
func (s *Store) Probe(ctx context.Context, key string) error {
	switch {
	case s.cluster == nil:
		return s.PingInTime(ctx)
	case key == "":
		return s.unavailable(s.readTopology(ctx, max(topologyTimeout, s.o.Timeout)))
	}
	s.cluster.ReloadState(ctx) // in case of a failover: the next probe then uses the new master
	return s.probe(ctx, func(ctx context.Context) error {
		node, err := s.cluster.MasterForKey(ctx, s.key(key))
		if err == nil {
			err = s.ping(ctx, node, s.prefix+probeKey) // the reply MOVED also shows that the master works
		}
		return s.unavailable(err)
	})
}

func (s *Store) probe(ctx context.Context, ping func(ctx context.Context) error) error {
	within := min(s.o.Timeout, longestProbe)
	connect, cancel := context.WithTimeout(ctx, 4*within)
	defer cancel()
	var wait sync.WaitGroup
	for range maxWorkers {
		wait.Go(func() { _ = survive(func() error { return ping(connect) }) })
	}
	wait.Wait()
	ctx, cancel = context.WithTimeout(ctx, within)
	defer cancel()
	return ping(ctx)
}

// PingRedisCell returns nil if the server can decide hits of Route.RedisCell, else the reason, such as a missing module
// or ACL permission. It has the timeout of a Take.
func (s *Store) PingRedisCell(ctx context.Context) error {
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Second})
	if err != nil {
		return s.unavailable(err)
	}
	var out [1]limiter.Decision
	return s.Take(ctx, []limiter.Hit{{Key: "ping.redis_cell", Policy: p, Peek: true, Route: Route{RedisCell: true}}},
		out[:])
}
