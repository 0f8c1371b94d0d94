package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// resets checks that Reset makes a used-up limit fully available again, and that Refunds receives the reset.
func resets(t *testing.T, s *redisstore.Store, key string, p *limiter.Policy, route ...any) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard, hears := make(chan bool, 100), make(chan struct{}, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Refunds(ctx, func(got string, reset bool) {
			if got == key {
				heard <- reset
			}
		}, func(yes bool, _ error) {
			if yes {
				hears <- struct{}{}
			}
		})
	}()
	defer func() { cancel(); <-ended }()
	casetest.Receive(t, hears, "subscription to refunds")
	for range 3 {
		take(t, s, key, p, 1, route...)
	}
	if existed, err := s.Reset(t.Context(), key); err != nil || !existed {
		t.Fatalf("Reset of %s: %t, %v", key, existed, err)
	}
	if d := take(t, s, key, p, 0, route...); d.Remaining != p.Limit() {
		t.Errorf("after Reset %d remain of %d", d.Remaining, p.Limit())
	}
	if reset := casetest.Receive(t, heard, "reset of "+key); !reset {
		t.Errorf("heard a refund of %s, want a reset", key)
	}
	if existed, err := s.Reset(t.Context(), key); err != nil || existed {
		t.Errorf("Reset of a counter without hits: %t, %v", existed, err)
	}
}

func TestReset(t *testing.T) {
	server := redistest.Start(t)
	s, p := open(t, server.URL(), redisstore.Options{}), funnel(t, 3, time.Hour)
	t.Run("a server", func(t *testing.T) { resets(t, s, "funnel|shop|a=b", p) })
	t.Run("a server that is away", func(t *testing.T) {
		server.Stop()
		if _, err := s.Reset(t.Context(), "k"); !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	})
}

func TestKeyOf(t *testing.T) {
	s := open(t, "redis://localhost", redisstore.Options{})
	if key, ok := s.KeyOf("weir:1:funnel|shop|a={b}"); key != "funnel|shop|a={b}" || !ok {
		t.Errorf("%q, %t", key, ok)
	}
	if key, ok := s.KeyOf("other:1:funnel"); ok {
		t.Errorf("%q is below another prefix", key)
	}
	c := open(t, "redis+cluster://localhost", redisstore.Options{})
	if key, ok := c.KeyOf("weir:1:funnel|{shop|a=b}"); key != "funnel|shop|a=b" || !ok {
		t.Errorf("%q, %t in a cluster", key, ok)
	}
}
