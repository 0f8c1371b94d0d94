package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// A batch that charges at least as much as it refunds publishes no refund. With a Reserve, neither does a batch before
// which a request of the largest cost fitted.
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
	reserved := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Window: time.Hour, Reserve: 4})
	hit := func(key string, n int64, mode limiter.Mode) limiter.Hit {
		return limiter.Hit{Key: key, Policy: p, N: n, Peek: n == 0, Mode: mode}
	}
	part := func(key string, n int64) limiter.Hit { return limiter.Hit{Key: key, Policy: reserved, N: n} }
	for _, hits := range [][]limiter.Hit{
		{hit("even", -3, limiter.Enforce), hit("even", 1, limiter.Enforce), hit("even", 2, limiter.Shadow)},
		{hit("less", -3, limiter.Enforce), hit("less", 2, limiter.Shadow)},
		{hit("unfit", -3, limiter.Enforce), hit("unfit", p.Capacity()+1, limiter.Shadow)},
		{part("fits", -1)},
		{part("two fit", -1), part("two fit", -1)},
		{part("did not fit", 2), part("did not fit", -1)},                  // 3 and 4 remain
		{part("net", 2), part("net", -1), part("net", -2), part("net", 2)}, // 3, 4, 6 and 4 remain
		{part("even, reserved", 2), part("even, reserved", -1), part("even, reserved", 1)},
		{hit("back", -1, limiter.Enforce)},
	} {
		first := limiter.Hit{Key: hits[0].Key, Policy: hits[0].Policy, N: 5}
		if err := s.Take(ctx, []limiter.Hit{first}, make([]limiter.Decision, 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Take(ctx, hits, make([]limiter.Decision, len(hits))); err != nil {
			t.Fatal(err)
		}
	}
	for name, p := range map[string]*limiter.Policy{
		"quick": p, "slow": policy(t, limiter.Params{Algorithm: limiter.SlidingLog, Limit: 10, Window: time.Hour}),
	} { // requests that are decided in one batch
		key := "even, " + name
		s.TakeAll([]*storekit.Call{
			callOf(t, limiter.Hit{Key: key, Policy: p, N: 5}), callOf(t, limiter.Hit{Key: key, Policy: p, N: -3}),
			callOf(t, limiter.Hit{Key: key, Policy: p, N: 3}, limiter.Hit{Key: "beside, " + name, Policy: p, N: 1}),
		})
	}
	last := []limiter.Hit{hit("last", 1, limiter.Enforce), hit("last", -1, limiter.Enforce)}
	if err := s.Take(ctx, last, make([]limiter.Decision, 2)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"less", "unfit", "did not fit", "net", "back", "last"} {
		if got := casetest.Receive(t, heard, "refund of "+want); got != want {
			t.Errorf("heard of %q, want %q", got, want)
		}
	}
}
