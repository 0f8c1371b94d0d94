package guard

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// replica is a process's store and its guard.
type replica struct {
	denialsStore
	mu    sync.Mutex
	hears bool
	why   error
}

// start starts a replica that receives refunds until the test ends.
func start(t *testing.T, url string) *replica {
	t.Helper()
	s, err := redisstore.New(redistest.Client(t, url, 5*time.Second), redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{denialsStore: caching(s, nil)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		s.Refunds(ctx, func(key string, _ bool) { r.Forget(key) }, func(yes bool, why error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.hears, r.why = yes, why
			r.Believe(yes)
		})
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return r
}

// waitFor polls until f says "".
func waitFor(t *testing.T, within time.Duration, f func() string) {
	t.Helper()
	var why string
	for begin := time.Now(); time.Since(begin) < within; time.Sleep(2 * time.Millisecond) {
		if why = f(); why == "" {
			return
		}
	}
	t.Fatalf("after %s: %s", within, why)
}

func (r *replica) heard(t *testing.T, want bool, within time.Duration) {
	t.Helper()
	waitFor(t, within, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.hears != want {
			return fmt.Sprintf("hears of refunds: %t (%v), want %t", r.hears, r.why, want)
		}
		return ""
	})
}

func (r *replica) take(t *testing.T, key string, p *limiter.Policy, n int64) limiter.Decision {
	t.Helper()
	var out [1]limiter.Decision
	if err := r.Take(t.Context(), []limiter.Hit{{Key: key, Policy: p, N: n, Peek: n == 0}}, out[:]); err != nil {
		t.Fatal(err)
	}
	return out[0]
}

func operator(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// While refunds may be missed, Redis decides all requests.
func TestLostConnectionIsNoticed(t *testing.T) {
	server := redistest.Start(t)
	r, c := start(t, server.URL()), operator(t, server)
	r.heard(t, true, 30*time.Second)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	r.take(t, "k", p, 1)
	r.take(t, "k", p, 1)
	if n := r.Answered(); n != 0 {
		t.Fatalf("%d answered without Redis before anything was cached", n)
	}

	for name, lose := range map[string]func(){
		"killed": func() {
			if err := c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
				t.Fatal(err)
			}
			r.heard(t, false, 30*time.Second)
		},
		"hung": func() {
			server.Pause()
			r.heard(t, false, 30*time.Second) // two seconds, and more on a busy machine
			server.Resume()
		},
	} {
		r.take(t, "k", p, 1)
		before := r.Answered()
		r.take(t, "k", p, 1)
		if r.Answered() != before+1 {
			t.Errorf("%s: before, a cached denial was not answered by the guard", name)
		}
		lose()
		r.heard(t, true, 30*time.Second)
		before = r.Answered()
		r.take(t, "k", p, 1)
		if r.Answered() != before {
			t.Errorf("%s: what was cached before is believed afterwards", name)
		}
	}
}
