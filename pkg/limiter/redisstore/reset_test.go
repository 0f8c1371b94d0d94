package redisstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// resetter is a Store or a Group.
type resetter interface {
	limiter.Store
	Reset(ctx context.Context, key string) (bool, error)
	Refunds(ctx context.Context, forget func(key string, reset bool), hears func(yes bool, why error))
}

// resets wants a counter that is used up to be as new, and whoever hears of refunds to be told.
func resets(t *testing.T, s resetter, key string, p *limiter.Policy, route ...any) {
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
	<-hears
	for range 3 {
		take(t, s, key, p, 1, route...)
	}
	if existed, err := s.Reset(t.Context(), key); err != nil || !existed {
		t.Fatalf("Reset of %s: %t, %v", key, existed, err)
	}
	if d := take(t, s, key, p, 0, route...); d.Remaining != p.Limit() {
		t.Errorf("after Reset %d remain of %d", d.Remaining, p.Limit())
	}
	var told []bool
	for len(told) < 2 {
		select {
		case reset := <-heard:
			told = append(told, reset)
		case <-time.After(patient):
			t.Fatalf("heard %v of %s, want a refund and a reset", told, key)
		}
	}
	if told[0] == told[1] { // in any order: a cluster's nodes tell of one each
		t.Errorf("heard %v, want a refund, which all releases know, and a reset", told)
	}
	if existed, err := s.Reset(t.Context(), key); err != nil || existed {
		t.Errorf("Reset of what is as new: %t, %v", existed, err)
	}
}

func TestReset(t *testing.T) {
	server, second := redistest.Start(t), redistest.Start(t)
	s, p := open(t, server.URL(), redisstore.Options{}), funnel(t, 3, time.Hour)
	t.Run("a server", func(t *testing.T) { resets(t, s, "funnel|shop|a=b", p) })
	t.Run("a group", func(t *testing.T) {
		g := redisstore.NewGroup(s, map[string]*redisstore.Store{"second": open(t, second.URL(), redisstore.Options{})})
		resets(t, &oneOf{g}, "funnel|shop|a=b", p, in("second"))
	})
	t.Run("a server that is away", func(t *testing.T) {
		server.Stop()
		if _, err := s.Reset(t.Context(), "k"); !errors.Is(err, limiter.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	})
}

// oneOf is a Group of which each store tells of a reset: the first one's is left out.
type oneOf struct{ *redisstore.Group }

func (o *oneOf) Refunds(ctx context.Context, forget func(key string, reset bool), hears func(yes bool, why error)) {
	seen := map[bool]int{}
	heard := make(chan bool, 10)
	go o.Group.Refunds(ctx, func(_ string, reset bool) { heard <- reset }, hears)
	for {
		select {
		case <-ctx.Done():
			return
		case reset := <-heard:
			if seen[reset]++; seen[reset]%2 == 0 { // both have told
				forget("funnel|shop|a=b", reset)
			}
		}
	}
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
