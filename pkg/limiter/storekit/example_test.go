package storekit_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// mapStore is a complete limiter.Store. It never frees a counter, so it is good for tests only.
type mapStore struct {
	mu     sync.Mutex
	states map[string]storekit.State
}

// Take implements limiter.Store.
func (s *mapStore) Take(_ context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	counters := make([]storekit.Counter, len(hits))
	if err := storekit.Link(hits, out, counters); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range hits {
		counters[i].State = s.states[hits[i].Key]
	}
	now := time.Now().UnixMicro()
	storekit.Decide(storekit.Clocks{Steady: now, Wall: now}, hits, counters, out)
	for i := range hits {
		if counters[i].Changed { // set only in the first counter of a key
			s.states[hits[i].Key] = counters[i].Next
		}
	}
	return nil
}

// A store of your own loads the states, decides, and writes the states that have changed.
func ExampleDecide() {
	store := &mapStore{states: map[string]storekit.State{}}
	perClient, err := limiter.New(store, "client", limiter.NewFunnel(2, time.Hour, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := perClient.Allow(context.Background(), "ann")
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	// Output:
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}

// A step is a pure function of a state, a time and a cost.
func ExampleStep() {
	policy, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.TokenBucket, Limit: 1, Window: time.Second, Burst: 2,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var state storekit.State
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, after := range []time.Duration{0, 0, 0, time.Second} {
		next, d := storekit.Step(policy, state, start.Add(after).UnixMicro(), 1)
		state = next
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter)
	}
	// Output:
	// true 1 0s 1s
	// true 0 0s 2s
	// false 0 1s 2s
	// true 0 0s 2s
}
