package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// A store for a million clients, with a clock that the test controls.
func ExampleNew() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	store, err := memstore.New(memstore.Options{
		MaxCounters: 1_000_000,
		Now:         func() int64 { return now }, // leave it out for the real time
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perClient, err := limiter.New(store, "client", limiter.NewFixedWindow(1, time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := perClient.Allow(context.Background(), "ann")
		fmt.Println(d.Allowed, d.RetryAfter, err)
		now += (40 * time.Second).Microseconds()
	}
	// Output:
	// true 0s <nil>
	// false 20s <nil>
	// true 0s <nil>
}

// Stats counts the counters, and Reset forgets one of them.
func ExampleStore_Reset() {
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
	out := make([]limiter.Decision, 1)
	hits := []limiter.Hit{{Key: "ann", Policy: policy, N: 1}}
	for range 2 {
		if err := store.Take(context.Background(), hits, out); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(out[0].Allowed)
	}
	fmt.Println("held:", store.Stats().Counters)
	fmt.Println("forgotten:", store.Reset("ann"))
	fmt.Println("held:", store.Stats().Counters)
	// Output:
	// true
	// false
	// held: 1
	// forgotten: true
	// held: 0
}
