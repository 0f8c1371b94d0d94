package guard

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// A Redis that hangs holds each request for its timeout at most, then none at all, piles up no goroutines, and is
// asked again within a second of its return. So is one that is dead.
func TestRedisHangs(t *testing.T) {
	const timeout, callers = 50 * time.Millisecond, 200
	server := redistest.Start(t)
	s, err := redisstore.New(redistest.Client(t, server.URL(), timeout), redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBreaker(BreakerOptions{
		Store: s, Servers: map[string]Server{"": s}, Answered: redisstore.Answered,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { b.Run(ctx) })
	defer func() {
		cancel()
		wg.Wait()
	}()
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1_000_000, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	hit := []limiter.Hit{{Key: "k", Policy: p, N: 1}}
	var longest atomic.Int64 // nanoseconds
	ask := func() error {
		var out [1]limiter.Decision
		begin := time.Now()
		err := b.Take(ctx, hit, out[:])
		if took := int64(time.Since(begin)); took > longest.Load() {
			longest.Store(took)
		}
		return err
	}
	works := func() string {
		if err := ask(); err != nil {
			return err.Error()
		}
		return ""
	}
	waitFor(t, 30*time.Second, works)
	for _, fault := range []struct {
		name        string
		away, again func(*redistest.Server)
	}{
		{"hangs", (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"is dead", (*redistest.Server).Kill, (*redistest.Server).Restart},
	} {
		longest.Store(0)
		before, most := runtime.NumGoroutine(), 0
		fault.away(server)
		var asked sync.WaitGroup
		var notAsked atomic.Int64
		begun := time.Now()
		goesOn := func() bool { // on a machine that stands still, until the breaker is open
			d := time.Since(begun)
			return d < 500*time.Millisecond || notAsked.Load() == 0 && d < 30*time.Second
		}
		for range callers {
			asked.Go(func() {
				for goesOn() {
					if errors.Is(ask(), ErrNotAsked) {
						notAsked.Add(1)
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		for goesOn() {
			most = max(most, runtime.NumGoroutine())
			time.Sleep(10 * time.Millisecond)
		}
		asked.Wait()
		if took := time.Duration(longest.Load()); took > timeout+10*time.Second {
			t.Errorf("%s: a request took %s, want about %s", fault.name, took, timeout)
		}
		if most > before+callers+40 {
			t.Errorf("%s: %d goroutines for %d callers, %d before", fault.name, most, callers, before)
		}
		if notAsked.Load() == 0 {
			t.Errorf("%s: it is asked all the time", fault.name)
		}
		fault.again(server)
		waitFor(t, 30*time.Second, works)
		t.Logf("%s: the longest request took %s, at most %d goroutines for %d callers, %d requests did not wait",
			fault.name, time.Duration(longest.Load()), most, callers, notAsked.Load())
	}
}
