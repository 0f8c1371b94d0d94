package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// A batch that charges at least as much as it refunds publishes no refund.
func TestExchangeIsNoRefund(t *testing.T) {
	s, p := open(t, redistest.Start(t).URL(), redisstore.Options{}), funnel(t, 10, time.Hour)
	heard := make(chan string, 10)
	hears := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go s.Refunds(ctx, func(key string, _ bool) { heard <- key }, func(yes bool, _ error) {
		if yes {
			hears <- struct{}{}
		}
	})
	casetest.Receive(t, hears, "subscription to refunds")
	hit := func(key string, n int64, mode limiter.Mode) limiter.Hit {
		return limiter.Hit{Key: key, Policy: p, N: n, Peek: n == 0, Mode: mode}
	}
	for _, hits := range [][]limiter.Hit{
		{hit("even", -3, limiter.Enforce), hit("even", 1, limiter.Enforce), hit("even", 2, limiter.Shadow)},
		{hit("less", -3, limiter.Enforce), hit("less", 2, limiter.Shadow)},
		{hit("unfit", -3, limiter.Enforce), hit("unfit", p.Capacity()+1, limiter.Shadow)},
		{hit("back", -1, limiter.Enforce)},
	} {
		if err := s.Take(ctx, []limiter.Hit{hit(hits[0].Key, 5, limiter.Enforce)}, make([]limiter.Decision, 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Take(ctx, hits, make([]limiter.Decision, len(hits))); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"less", "unfit", "back"} {
		if got := casetest.Receive(t, heard, "refund of "+want); got != want {
			t.Errorf("heard of %q, want %q", got, want)
		}
	}
}
