package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// probeKey is the counter that Ping takes a hit from and gives it back to. No rule's key is so short, and docs/operations.md
// names it where it lists rights.
const probeKey = "ping"

// newProbePolicy is the limit of the probe's counter, which ends at once. Its step is one that most stores need anyway.
func newProbePolicy() (*limiter.Policy, error) {
	return limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.Funnel, Limit: 1000, Window: time.Second, ChargeDenied: limiter.ChargeNone,
	})
}

// ping has a server decide two requests of a counter by the script that decides all others: one that writes it, and one
// that deletes it. A user who may not run scripts, or not all that they run, learns it here. What is sent is
// not counted in the store's statistics, and nobody hears of the refund.
func (s *Store) ping(ctx context.Context, server redis.UniversalClient, key string) error {
	p, err := newProbePolicy()
	if err != nil {
		return err
	}
	b := &batcher{client: server, now: s.now, wall: s.wall, sent: new(sent)}
	for _, n := range []int64{1, -1} {
		c, t := &call{hits: []limiter.Hit{{Key: key, Policy: p, N: n}}}, new(batch)
		t.add(c)
		b.send(ctx, t)
		if c.err != nil {
			return c.err
		}
	}
	return nil
}
