package redisstore_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// mortal is a store that fails the test if a request leaves a key without a time to live.
type mortal struct {
	limiter.Store

	tb     testing.TB
	client *redis.Client
	found  int // keys that were there
}

func (m *mortal) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	err := m.Store.Take(ctx, hits, out)
	for i := range hits {
		ttl, ttlErr := m.client.PTTL(ctx, "weir:1:"+hits[i].Key).Result()
		if ttlErr != nil {
			m.tb.Fatal(ttlErr)
		}
		switch ttl {
		case -1:
			m.tb.Fatalf("after %+v: the key %s has no time to live", hits, hits[i].Key)
		case -2: // there is no such key
		default:
			m.found++
		}
	}
	return err
}

// No call of any algorithm leaves a key without a time to live, on a virtual clock or on the clock of Redis. The test
// runs the shared histories of difficult cases.
func TestEveryKeyEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := client(t, server)
	t.Run("histories", func(t *testing.T) {
		limitertest.Histories(t, func(t *testing.T, clock *limitertest.Clock) limiter.Store {
			if err := c.FlushDB(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			m := &mortal{Store: open(t, server.SocketURL(), redisstore.Options{Now: clock.Now}), tb: t, client: c}
			t.Cleanup(func() {
				if m.found == 0 {
					t.Error("no request has left a key: this test tests nothing")
				}
			})
			return m
		}, casetest.Pick(50, 300))
	})
	t.Run("server's clock", func(t *testing.T) {
		m := &mortal{Store: open(t, server.SocketURL(), redisstore.Options{}), tb: t, client: c}
		rng := rand.New(rand.NewPCG(6, 5))
		for _, name := range step.Names(limiter.Algorithms()) {
			a, err := limiter.ParseAlgorithm(name)
			if err != nil {
				t.Fatal(err)
			}
			for denied := limiter.ChargeNone; denied <= limiter.ChargeFull; denied++ {
				p := policy(t, limiter.Params{Algorithm: a, Limit: 3, Window: 10 * time.Second, ChargeDenied: denied})
				before := m.found
				for range 60 {
					start, key := time.Now(), strings.Join([]string{name, "key"}, "|")
					d := take(t, m, key, p, []int64{1, 1, 2, -1, 0, 50, -50}[rng.IntN(7)])
					ttl, err := c.PTTL(t.Context(), "weir:1:"+key).Result() // below 0: there is no such key
					if err != nil {
						t.Fatal(err)
					}
					if a == limiter.FixedWindow && d.Remaining == p.Limit() {
						continue // a window that nothing is counted in ends, too
					}
					if least := d.ResetAfter - time.Since(start) - time.Millisecond; ttl < least {
						t.Errorf("%s: a counter that matters for %s longer has a time to live of %s", name, least, ttl)
					}
				}
				if m.found == before {
					t.Errorf("%s has left no key", name)
				}
			}
		}
	})
	var cursor uint64
	for first := true; first || cursor != 0; first = false {
		keys, next, err := c.Scan(t.Context(), cursor, "*", 1000).Result()
		if err != nil {
			t.Fatal(err)
		}
		cursor = next
		for _, key := range keys {
			if ttl := c.PTTL(t.Context(), key).Val(); ttl == -1 {
				t.Errorf("%s has no time to live", key)
			}
		}
	}
}

// A funnel's key lives as long as its state matters, although most hits keep the time to live that an earlier hit has
// set, perhaps with another rule.
func TestTimeToLiveOfFunnelsWhoseRuleChanges(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, c := open(t, server.SocketURL(), redisstore.Options{}), client(t, server)
	var policies []*limiter.Policy
	for _, in := range []limiter.Params{
		{Algorithm: limiter.Funnel, Limit: 10, Window: 20 * time.Second},
		{Algorithm: limiter.Funnel, Limit: 3, Window: 7 * time.Second},
		{Algorithm: limiter.Funnel, Limit: 1_000_000, Window: time.Second},
		{Algorithm: limiter.TokenBucket, Limit: 5, Burst: 50, Window: time.Second, StartsEmpty: true},
		{Algorithm: limiter.TokenBucket, Limit: 10, Burst: 30, Window: 9 * time.Second, ChargeDenied: limiter.ChargeFull},
		{Algorithm: limiter.SmoothBursty, Limit: 10, Window: 10 * time.Second},
		{Algorithm: limiter.LeakyQueue, Limit: 10, Burst: 20, Window: 15 * time.Second},
	} {
		policies = append(policies, policy(t, in))
	}
	rng, alive := rand.New(rand.NewPCG(3, 9)), 0
	for i := range 2000 {
		key, p := string(rune('a'+i%20)), policies[rng.IntN(len(policies))]
		start := time.Now()
		d := take(t, s, key, p, []int64{1, 1, 1, 2, 5, -1, -3}[rng.IntN(7)])
		ttl := c.PTTL(t.Context(), "weir:1:"+key).Val()
		if least := d.ResetAfter - time.Since(start) - time.Millisecond; ttl < least {
			t.Fatalf("step %d, %s: a counter that matters for %s longer has a time to live of %s", i, p.Algorithm(), least, ttl)
		}
		if ttl > 0 {
			alive++
		}
	}
	if alive < 1000 {
		t.Errorf("%d of 2000 hits left a key: this test tests little", alive)
	}
	stats := c.Info(t.Context(), "commandstats").Val()
	for _, command := range []string{"set", "setrange"} {
		if !strings.Contains(stats, "cmdstat_"+command+":") {
			t.Errorf("no %s: this test tests only a part", command)
		}
	}
}
