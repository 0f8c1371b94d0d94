package limiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// Each client may send 2 requests at once, and 1 a minute in the long run.
func Example() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	policy, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.TokenBucket, Limit: 1, Window: time.Minute, Burst: 2,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	perClient := limiter.New(store, policy)
	for range 3 {
		d, err := perClient.Allow(context.Background(), "ann")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 1m0s
}

// A burst limit and a daily limit, charged together: what one denies, the other is not charged for.
func ExampleNew_severalPolicies() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	var policies []*limiter.Policy
	for _, params := range []limiter.Params{
		{Algorithm: limiter.Funnel, Limit: 10, Window: time.Second, Burst: 20},
		{Algorithm: limiter.SlidingWindow, Limit: 1000, Window: 24 * time.Hour, Segments: 24},
	} {
		policy, err := limiter.NewPolicy(params)
		if err != nil {
			fmt.Println(err)
			return
		}
		policies = append(policies, policy)
	}
	l := limiter.New(store, policies[0], policies[1:]...)
	d, err := l.AllowN(context.Background(), "ann", 25)
	fmt.Println(d.Allowed, d.RetryAfter == limiter.Never, err)
	// Output: false true <nil>
}

func ExampleLimiter_Wait() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	policy, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	l := limiter.New(store, policy)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(l.Wait(ctx, "ann"))
	fmt.Println(l.Wait(ctx, "ann") != nil) // an hour is longer than the context's minute: it returns at once
	// Output:
	// <nil>
	// true
}
