package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// shardLoad is callers of each shard of a cluster, and of two at once.
type shardLoad struct {
	breaker  *Breaker
	policy   *limiter.Policy
	keys     []string        // one a shard; keys[0] is the shard that fails
	asked    atomic.Int64    // requests with keys[0] that went beyond the breaker
	admitted []atomic.Int64  // hits, of each key
	unknown  [3]atomic.Int64 // requests without an answer: with keys[0] alone, with it and another, without it
	notAsked [3]atomic.Int64 // of those
	longest  atomic.Int64    // nanoseconds
	stop     chan struct{}
	wait     sync.WaitGroup
}

// begin has four callers each ask keys[0], another key, both, and two others.
func (l *shardLoad) begin(ctx context.Context) {
	for _, who := range []struct {
		kind int
		keys []int
	}{{0, []int{0}}, {1, []int{1, 0}}, {2, []int{1}}, {2, []int{2, 1}}} {
		for range 4 {
			l.wait.Go(func() {
				for {
					select {
					case <-l.stop:
						return
					case <-time.After(time.Millisecond):
						l.ask(ctx, who.kind, who.keys)
					}
				}
			})
		}
	}
}

func (l *shardLoad) ask(ctx context.Context, kind int, keys []int) {
	hits, out := make([]limiter.Hit, len(keys)), make([]limiter.Decision, len(keys))
	for i, k := range keys {
		hits[i] = limiter.Hit{Key: l.keys[k], Policy: l.policy, N: 1}
	}
	start := time.Now()
	err := l.breaker.Take(ctx, hits, out)
	if took := int64(time.Since(start)); took > l.longest.Load() {
		l.longest.Store(took)
	}
	if err == nil {
		for _, k := range keys {
			l.admitted[k].Add(1)
		}
		return
	}
	l.unknown[kind].Add(1)
	if errors.Is(err, ErrNotAsked) {
		l.notAsked[kind].Add(1)
	}
}

// remaining is what a counter lets pass.
func (l *shardLoad) remaining(ctx context.Context, key string) (int64, error) {
	var out [1]limiter.Decision
	err := l.breaker.Take(ctx, []limiter.Hit{{Key: key, Policy: l.policy, Look: true}}, out[:])
	return out[0].Remaining, err
}

// counts fails the test unless key k was charged what was admitted and, as a charge that could not be undone or was not
// heard of stays or is lost, unknown more or lost less.
func (l *shardLoad) counts(ctx context.Context, t *testing.T, what string, k int, unknown, lost int64) {
	t.Helper()
	left, err := l.remaining(ctx, l.keys[k])
	charged, admitted := l.policy.Limit()-left, l.admitted[k].Load()
	if err != nil || charged < admitted-lost || charged > admitted+unknown {
		t.Errorf("%s: key %d: %d charged, %d admitted, up to %d unknown, %d lost (%v)", what, k, charged, admitted, unknown,
			lost, err)
	}
}

// keysOfShards has a key for each master.
func keysOfShards(t *testing.T, s *redisstore.Store, masters []*redistest.Server) []string {
	t.Helper()
	keys := make([]string, len(masters))
	for i := 0; slices.Contains(keys, ""); i++ {
		key := fmt.Sprintf("funnel|shop|user=%d", i)
		at := slices.IndexFunc(masters, func(m *redistest.Server) bool { return m.Addr() == s.Shard(key) })
		if at < 0 {
			t.Fatalf("%s is decided by %q, which is no master", key, s.Shard(key))
		}
		keys[at] = key
	}
	return keys
}

// A master of a cluster that hangs or is dead is not asked any more, and only it: requests with counters on it are
// answered at once, those on other masters are decided and charged exactly. It is asked again when it is back, or when
// another has taken over.
func TestShardFails(t *testing.T) {
	const timeout = 250 * time.Millisecond
	c := redistest.StartCluster(t, 3, "--cluster-require-full-coverage", "no", "--appendonly", "yes", "--appendfsync",
		"no")
	s, err := redisstore.New(redistest.Client(t, c.URL(), timeout), redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	if at := s.Shard("k"); at != "" {
		t.Errorf("before anything was asked, a key is said to be at %s", at)
	}
	redistest.Await(t, func() error { return s.Ping(t.Context()) })
	p, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 10_000_000,
		Window: 365 * 24 * time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	l := &shardLoad{policy: p, admitted: make([]atomic.Int64, 3)}
	l.breaker = NewBreaker(BreakerOptions{
		Store: storeFunc(func(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
			if slices.ContainsFunc(hits, func(h limiter.Hit) bool { return len(l.keys) > 0 && h.Key == l.keys[0] }) {
				l.asked.Add(1)
			}
			return s.Take(ctx, hits, out)
		}),
		Servers: map[string]Server{"": s}, Answered: redisstore.Answered, Failures: redisstore.Failures,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() { l.breaker.Run(ctx) })
	defer func() {
		cancel()
		wait.Wait()
	}()
	redistest.Await(t, func() error { _, err := l.remaining(ctx, "funnel|shop|user=first"); return err })
	l.keys = keysOfShards(t, s, c.Masters)

	c.Replicas[0].Pause() // nobody takes over
	for _, fault := range []struct {
		name        string
		away, again func()
		lost        bool // what was not replicated
	}{
		{"hangs", c.Masters[0].Pause, c.Masters[0].Resume, false},
		{"is dead", c.Masters[0].Kill, c.Masters[0].Restart, false},
		{"fails over", func() { c.Replicas[0].Resume(); c.AwaitOK(); c.Masters[0].Kill() }, func() { c.Promote(0) }, true},
	} {
		for i, key := range l.keys {
			redistest.Await(t, func() error { _, err := l.remaining(ctx, key); return err })
			left, _ := l.remaining(ctx, key)
			l.admitted[i].Store(p.Limit() - left) // with what was charged though nobody heard of it
		}
		l.shardFails(ctx, t, fault.name, timeout, fault.away, fault.again, fault.lost)
	}
}

// shardFails makes one fault under load.
func (l *shardLoad) shardFails(ctx context.Context, t *testing.T, name string, timeout time.Duration, away,
	again func(), loses bool,
) {
	t.Helper()
	l.stop = make(chan struct{})
	for i := range l.unknown {
		l.unknown[i].Store(0)
		l.notAsked[i].Store(0)
	}
	l.begin(ctx)
	away()
	waitFor(t, 30*time.Second, func() string {
		if l.breaker.Open() == 0 {
			return "the shard is asked all the time"
		}
		return ""
	})
	<-time.After(2 * timeout) // those who asked before have been answered
	l.longest.Store(0)
	asked, others, before := l.asked.Load(), l.admitted[1].Load(), l.notAsked[0].Load()
	var notAsked, decided int64
	waitFor(t, 30*time.Second, func() string {
		notAsked, decided = l.notAsked[0].Load()-before, l.admitted[1].Load()-others
		if notAsked < 500 || decided < 500 {
			return fmt.Sprintf("%d requests did not wait, %d were decided elsewhere, want hundreds of both", notAsked, decided)
		}
		return ""
	})
	if n := l.asked.Load() - asked; n > 0 {
		t.Errorf("%s: it was asked %d times, though it is not to be", name, n)
	}
	t.Logf("%s: the longest request took %s, %d requests did not wait, %d were decided elsewhere",
		name, time.Duration(l.longest.Load()), notAsked, decided)
	again()
	waitFor(t, 30*time.Second, func() string {
		_, err := l.remaining(ctx, l.keys[0])
		return errText(err)
	})
	close(l.stop)
	l.wait.Wait()
	slow := l.unknown[2].Load() // on a machine that stands still for so long
	if n := l.notAsked[2].Load(); n > 0 && n == slow {
		t.Errorf("%s: %d requests were not asked of other shards, which had answered all", name, n)
	}
	lost := int64(0)
	if loses {
		lost = l.admitted[0].Load()
	}
	l.counts(ctx, t, name, 0, l.unknown[0].Load()+l.unknown[1].Load(), lost)
	l.counts(ctx, t, name, 1, l.unknown[1].Load()+slow, 0)
	l.counts(ctx, t, name, 2, slow, 0)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// storeFunc is a store that is a function.
type storeFunc func(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error

func (f storeFunc) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	return f(ctx, hits, out)
}
