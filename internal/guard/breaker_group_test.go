package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// A store that hangs trips its own breaker also if every request that asks it asks another store besides, whichever of
// the two it is. Then such requests no longer wait, the error names the right store, and requests on the other store
// alone are decided all the time.
func TestHangingStoreOfTwo(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	names := []string{"", "daily"}
	var stores []*redisstore.Store
	for i, name := range names {
		s, err := redisstore.New(redisstore.Options{Name: name, URL: servers[i].URL(), Timeout: 250 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, s)
	}
	group := redisstore.NewGroup(stores[0], map[string]*redisstore.Store{"daily": stores[1]})
	var spanning atomic.Int64 // requests in both that went beyond the breaker
	b := NewBreaker(BreakerOptions{
		Store: storeFunc(func(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
			if len(hits) > 1 {
				spanning.Add(1)
			}
			return group.Take(ctx, hits, out)
		}),
		Servers:  map[string]Server{"": stores[0], "daily": stores[1]},
		Answered: redisstore.Answered, Failures: redisstore.Failures,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	wait.Go(func() { b.Run(ctx) })
	defer func() {
		cancel()
		wait.Wait()
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	}()
	hit := func(store string) limiter.Hit {
		p, err := limiter.NewPolicy(limiter.Params{
			Algorithm: limiter.Funnel, Limit: 1_000_000, Window: time.Second, Store: store,
		})
		if err != nil {
			t.Fatal(err)
		}
		return limiter.Hit{Key: "k", Policy: p, N: 1}
	}
	hits := []limiter.Hit{hit(""), hit("daily")}
	take := func(hits ...limiter.Hit) error { return b.Take(ctx, hits, make([]limiter.Decision, len(hits))) }
	waitFor(t, 10*time.Second, func() string { return errText(take(hits...)) })

	for i, server := range servers {
		server.Pause()
		waitFor(t, 10*time.Second, func() string {
			if err := take(hits...); !errors.Is(err, ErrNotAsked) {
				return fmt.Sprintf("store %q hangs: a request in both stores waits for it, open %d: %v", names[i], b.Open(), err)
			}
			return ""
		})
		asked := spanning.Load()
		other := hits[1-i]
		for range 100 {
			err := take(hits...)
			if text := errText(err); !errors.Is(err, ErrNotAsked) || !errors.Is(err, limiter.ErrUnavailable) ||
				!strings.Contains(text, server.Addr()) || strings.Contains(text, servers[1-i].Addr()) {
				t.Fatalf("store %q hangs: %v, want ErrNotAsked that names %s", names[i], err, server.Addr())
			}
		}
		waitFor(t, 10*time.Second, func() string { return errText(take(other)) })
		if n := spanning.Load() - asked; n > 0 || b.Open() != 1 {
			t.Errorf("store %q hangs: %d of 100 requests in both were asked, open %d; want none and 1", names[i], n, b.Open())
		}
		server.Resume()
		waitFor(t, 10*time.Second, func() string { return errText(take(hits...)) })
		if b.Open() != 0 {
			t.Errorf("store %q is back: open %d, want none", names[i], b.Open())
		}
	}
}
