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

// probeKey is the counter that a ping charges and refunds. No rule's key is so short. docs/operate/redis.md names it
// where it lists rights.
const probeKey = "ping"

// topologyTimeout is the least time that the nodes of a cluster have to say which master has which slot. Requests that
// wait for that have a deadline of their own.
const topologyTimeout = 250 * time.Millisecond

// longestProbe bounds a probe where requests may take longer: one that hangs must not hide that the server is back.
const longestProbe = 500 * time.Millisecond

// Ping returns why the server cannot decide requests. It has one decided as all are, so it notices a server that is
// full, a replica, and a user who may not run scripts or not write below the prefix. It counts nothing. It may take as
// long as ctx and the client's own timeouts allow, which is longer than a request may. In a cluster it pings each
// master.
func (s *Store) Ping(ctx context.Context) error {
	return s.unavailable(survive(func() error {
		if s.cluster != nil && !strings.Contains(s.prefix, "{") { // which puts all counters into one slot
			return s.pingMasters(ctx)
		}
		return s.ping(ctx, s.client, s.prefix+probeKey)
	}))
}

// ping has a server decide two requests of a counter: one that writes it, and one that refunds. In an hour's window
// nothing of the funnel leaks away between the two, so that the second deletes it; with a counter that is left there,
// the next ping would not try SET. The two are not in the store's statistics, and nobody hears of the refund.
func (s *Store) ping(ctx context.Context, client redis.UniversalClient, key string) error {
	// A step that most stores load anyway.
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
			if ctx.Err() != nil { // a server may claim that there are many masters
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
		return nil // it owns no slot that the keys lie in
	})
}

// PingInTime is Ping within the time that a Take has. Like Probe, it makes connections first.
func (s *Store) PingInTime(ctx context.Context) error { return s.probe(ctx, s.Ping) }

// Probe is Ping within the time that a request has. Before, it makes the connections of the calls that may be under
// way at once: each takes a round trip or more, and requests cannot wait for them when a server is found again.
//
// In a cluster it probes the master that has the counter of a key by now. Without a key it is enough there that a node
// says which master has which slot.
func (s *Store) Probe(ctx context.Context, key string) error {
	switch {
	case s.cluster == nil:
		return s.PingInTime(ctx)
	case key == "":
		return s.unavailable(s.readTopology(ctx, max(topologyTimeout, s.o.Timeout)))
	}
	s.cluster.ReloadState(ctx) // another may have taken over: the next probe knows
	return s.probe(ctx, func(ctx context.Context) error {
		node, err := s.cluster.MasterForKey(ctx, s.key(key))
		if err == nil {
			err = s.ping(ctx, node, s.prefix+probeKey) // MOVED is a sign of life, too
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

// PingRedisCell returns why the server cannot decide hits of Route.RedisCell: it needs the module, and the
// user the right to it. Its time is that of a Take.
func (s *Store) PingRedisCell(ctx context.Context) error {
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Second})
	if err != nil {
		return s.unavailable(err)
	}
	var out [1]limiter.Decision
	return s.Take(ctx, []limiter.Hit{{Key: "ping.redis_cell", Policy: p, Look: true, Route: Route{RedisCell: true}}},
		out[:])
}
