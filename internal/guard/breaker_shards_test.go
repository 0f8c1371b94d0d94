package guard

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// sharded is a cluster whose shards are named by the first letters of their keys.
type sharded struct {
	mu     sync.Mutex
	down   map[string]bool
	asked  map[string]int
	probed int
}

type shardError string

func (s shardError) Error() string { return string(s) + " is silent" }

func failedShard(err error, each func(server, shard string, why error)) {
	if s, ok := errors.AsType[shardError](err); ok {
		each("", string(s), s)
	}
}

func (*sharded) Shard(key string) string { return key[:1] }

func (c *sharded) Take(_ context.Context, hits []limiter.Hit, _ []limiter.Decision) error {
	time.Sleep(10 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for _, h := range hits {
		shard := h.Key[:1]
		c.asked[shard]++
		if c.down[shard] && err == nil {
			err = shardError(shard)
		}
	}
	return err
}

func (c *sharded) set(down bool, shards ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range shards {
		c.down[s] = down
	}
}

func (c *sharded) Probe(_ context.Context, key string) error {
	if key == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probed++
	if c.down[key[:1]] {
		return shardError(key[:1])
	}
	return nil
}

func (c *sharded) count(shard string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked[shard]
}

// breakingShards runs the test with a breaker before a cluster, in virtual time.
func breakingShards(t *testing.T, test func(t *testing.T, c *sharded, b breakerStore)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &sharded{down: map[string]bool{}, asked: map[string]int{}}
		b := breakerOf(c, BreakerOptions{
			Servers: map[string]Server{"": c}, Failures: failedShard, Answered: func(error) bool { return false },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() { b.Run(ctx) })
		defer wait.Wait()
		defer cancel()
		test(t, c, b)
	})
}

func askKeys(b breakerStore, keys ...string) error {
	var hits []limiter.Hit
	for _, k := range keys {
		hits = append(hits, limiter.Hit{Key: k})
	}
	return b.Take(context.Background(), hits, nil)
}

// Weir stops querying a silent shard, even for requests that also concern other shards, which it continues to query. It
// queries the shard again once the shard responds.
func TestBreakerOfShards(t *testing.T) {
	for name, failing := range map[string][]string{
		"alone": {"a1"}, "beside another, first": {"a1", "b1"},
		"beside another, last": {"b1", "a1"},
	} {
		t.Run(name, func(t *testing.T) {
			breakingShards(t, func(t *testing.T, c *sharded, b breakerStore) {
				c.set(true, "a")
				for range 10 {
					_ = askKeys(b, failing...)
					if err := askKeys(b, "b2"); err != nil {
						t.Fatalf("a shard that answers: %v", err)
					}
				}
				asked := c.count("a")
				for _, keys := range [][]string{{"a1"}, {"a2"}, {"b1", "a1"}, {"a1", "c1"}} {
					start := time.Now()
					err := askKeys(b, keys...)
					want := "the store was not queried, since it does not respond: the last call: limit store unavailable: a is silent"
					if !errors.Is(err, ErrBreakerOpen) || err.Error() != want {
						t.Errorf("%q: %v, want %s", keys, err, want)
					}
					if time.Since(start) > 0 {
						t.Errorf("%q waits for %s", keys, time.Since(start))
					}
				}
				if err := askKeys(b, "b1", "c1"); err != nil {
					t.Errorf("shards that answer: %v", err)
				}
				if b.Open() != 1 || c.count("a") != asked {
					t.Errorf("%d shards are not asked, want 1, which was asked %d times more", b.Open(), c.count("a")-asked)
				}
				c.set(false, "a")
				time.Sleep(longestPause + time.Millisecond)
				if err := askKeys(b, "a1", "b1"); err != nil || b.Open() != 0 || len(b.watched()) > 0 {
					t.Errorf("after its return: %v, %d not asked, watched %v", err, b.Open(), b.watched())
				}
			})
		})
	}
}

// A shard that responds now and then is still queried, and is watched only between a failure and a response.
func TestBreakerOfShardsStaysClosed(t *testing.T) {
	breakingShards(t, func(t *testing.T, c *sharded, b breakerStore) {
		for range 50 {
			c.set(true, "a")
			for range 3 {
				_ = askKeys(b, "a1")
			}
			if len(b.watched()) != 1 {
				t.Fatal("a shard that fails is not watched")
			}
			c.set(false, "a")
			_ = askKeys(b, "a1", "b1")
			if len(b.watched()) > 0 {
				t.Fatal("a shard that answers is watched")
			}
		}
		if b.Open() != 0 || c.probed > 0 {
			t.Errorf("%d not asked, %d probes", b.Open(), c.probed)
		}
	})
}

// The number of watched shards is bounded, and all are forgotten when they respond.
func TestBreakerWatchesSoManyShards(t *testing.T) {
	breakingShards(t, func(t *testing.T, _ *sharded, b breakerStore) {
		back := make(chan struct{})
		b.o.Servers[""] = aCluster{back: back}
		fail := func() {
			for i := range 2 * mostSilent {
				b.unanswered(Shard{Address: strconv.Itoa(i)}, "", errSilent)
			}
		}
		fail()
		time.Sleep(silence)
		if fail(); b.Open() != mostSilent || len(b.watched()) != mostSilent {
			t.Errorf("%d are not asked, %d watched, want %d", b.Open(), len(b.watched()), mostSilent)
		}
		close(back)
		time.Sleep(time.Second)
		if b.Open() != 0 || len(b.watched()) != 0 {
			t.Errorf("%d are not asked, %d watched, want none", b.Open(), len(b.watched()))
		}
	})
}

// aCluster answers every probe once it has recovered.
type aCluster struct {
	alone
	back <-chan struct{}
}

func (c aCluster) Probe(context.Context, string) error {
	<-c.back
	return nil
}

func TestBreakerAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breakerOf(prompt{}, BreakerOptions{
			Servers:  map[string]Server{"": &sharded{}},
			Answered: func(error) bool { return false },
		})
		for _, what := range []string{"closed", "open"} {
			for _, key := range []string{"a2", "b1"} {
				if n := StageAllocs(b.Breaker, []limiter.Hit{{Key: key}}, 100); n != 0 {
					t.Errorf("%s, %s: %g allocations, want none", what, key, n)
				}
			}
			b.unanswered(Shard{Address: "a"}, "a1", errSilent)
			time.Sleep(silence)
			b.unanswered(Shard{Address: "a"}, "a1", errSilent)
		}
		if b.Open() != 1 {
			t.Errorf("%d are not asked, want 1", b.Open())
		}
	})
}
