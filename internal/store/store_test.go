package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// onLease is the route of a limit whose permits may be on lease for an hour.
type onLease struct{}

func (onLease) LeaseTime() time.Duration { return time.Hour }

// opened is a process's store of a server.
func opened(t *testing.T, url string, log *slog.Logger) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), &store.Options{
		Redis:         connect(t, url, redisstore.Options{Timeout: patient}),
		CachedDenials: true, MemoryMaxCounters: 10, Requests: func() uint64 { return 0 }, Effects: func(string) string { return "" }, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run runs a store until the test ends.
func run(t *testing.T, s *store.Store) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
}

// takeOne decides a hit.
func takeOne(t *testing.T, s *store.Store, h limiter.Hit) limiter.Decision {
	t.Helper()
	var out [1]limiter.Decision
	if err := s.Take(t.Context(), []limiter.Hit{h}, out[:]); err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// A reset ends the cached denials and permits of its own process at once, and of others when they receive it.
func TestResetEndsDenialsAndPermits(t *testing.T) {
	server := redistest.Start(t)
	own, other := opened(t, server.URL(), slog.New(slog.DiscardHandler)),
		opened(t, server.URL(), slog.New(slog.DiscardHandler))
	own.Denials.Believe(true) // nobody releases anything but itself
	run(t, other)
	denied := limiter.Hit{Key: "funnel|denied", Policy: funnel(t, 1), N: 1}
	leased := limiter.Hit{Key: "funnel|leased", Policy: funnel(t, 1_000_000), N: 1, Route: onLease{}}
	isReset := func(s *store.Store) error {
		permits := s.Leases.Stats().Permits
		asked := take.Call{Call: storekit.Call{Hits: []limiter.Hit{denied}, Out: make([]limiter.Decision, 1)}}
		cached := s.Denials.Before(&asked)
		if cached || permits != 0 {
			return fmt.Errorf("%d permits are on lease after the reset, the denial is cached: %t", permits, cached)
		}
		return nil
	}
	for _, s := range []*store.Store{own, other} {
		redistest.Await(t, func() error {
			takeOne(t, s, leased)
			if d := takeOne(t, s, denied); d.Allowed || !d.Cached {
				return fmt.Errorf("%+v, want a cached denial", d)
			}
			if s.Leases.Stats().Permits == 0 {
				return errors.New("no permits are on lease")
			}
			return nil
		})
	}
	for _, h := range []limiter.Hit{denied, leased} {
		if existed, err := own.Reset(t.Context(), h.Key); err != nil || !existed {
			t.Fatalf("reset of %s: %t, %v", h.Key, existed, err)
		}
	}
	if err := isReset(own); err != nil {
		t.Error(err)
	}
	redistest.Await(t, func() error { return isReset(other) })
	if !takeOne(t, other, denied).Allowed {
		t.Error("a counter is denied after its reset")
	}
}

// A process that cannot receive refunds caches no denials.
func TestDeafProcessCachesNothing(t *testing.T) {
	server := redistest.Start(t, strings.Fields("--user deaf on >secret ~* resetchannels +@all")...)
	var log proctest.Buffer
	s := opened(t, strings.Replace(server.URL(), "//", "//deaf:secret@", 1), slog.New(slog.NewTextHandler(&log, nil)))
	run(t, s)
	redistest.Await(t, func() error {
		if !strings.Contains(log.String(), "refunds by other replicas do not arrive") {
			return errors.New(log.String())
		}
		return nil
	})
	for range 3 {
		if d := takeOne(t, s, limiter.Hit{Key: "k", Policy: funnel(t, 1), N: 1}); d.Cached {
			t.Error("a denial is cached, though no refund is heard of")
		}
	}
}

// connect returns the connections of a Redis, which are closed when the test ends.
func connect(tb testing.TB, url string, o redisstore.Options) *store.Redis {
	tb.Helper()
	r, err := store.Connect(tb.Context(), url, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// A failed call may be repeated only if Redis surely has not run it.
func TestUnasked(t *testing.T) {
	server := redistest.Start(t)
	s := opened(t, server.URL(), slog.New(slog.DiscardHandler))
	hit := limiter.Hit{Key: "k", Policy: funnel(t, 10), N: 1}
	check := func(what string, want bool, is func(err error) bool) {
		t.Helper()
		redistest.Await(t, func() error {
			err := s.Take(t.Context(), []limiter.Hit{hit}, make([]limiter.Decision, 1))
			if !is(err) {
				return fmt.Errorf("%s: %w", what, err)
			}
			if got := store.Unasked(err, 1); got != want {
				t.Errorf("%s: %v: %t, want %t", what, err, got, want)
			}
			return nil
		})
	}
	fails := func(err error) bool { return err != nil }
	redistest.Do(t, server, "config", "set", "maxmemory", "1")
	check("error reply", false, fails)
	redistest.Do(t, server, "config", "set", "maxmemory", "0")
	check("no error", false, func(err error) bool { return err == nil })
	server.Kill()
	check("connection refused", true, func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "refused") && !errors.Is(err, guard.ErrBreakerOpen)
	})
	check("breaker open", true, func(err error) bool { return errors.Is(err, guard.ErrBreakerOpen) })

	refused := fmt.Errorf("%w: %w", limiter.ErrUnavailable, limiter.ErrShed)
	if !store.Unasked(refused, 1) || store.Unasked(refused, 2) || store.Unasked(context.DeadlineExceeded, 1) ||
		store.Unasked(fmt.Errorf("%w: %w", limiter.ErrUnavailable, limiter.ErrLate), 1) {
		t.Error("only a shed call of one hit may be repeated, not one that took too long")
	}
}
