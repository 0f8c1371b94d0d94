package rlqs

import (
	"context"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// mailbox keeps the newest assignment of each bucket.
type mailbox chan Assignment

func (m mailbox) Send(assignments []Assignment) {
	for _, a := range assignments {
		m <- a
	}
}

// On a real Redis, limits are charged ahead, by themselves and several together, and windows get back what was not
// used.
func TestOnRedis(t *testing.T) {
	const timeout = 10 * time.Second // a busy machine is late
	server := redistest.Start(t)
	store, err := redisstore.New(redistest.Client(t, server.URL(), timeout), redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	window := policyOf(t, limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1_000_000, Window: 24 * time.Hour})
	bucket := policyOf(t, limiter.Params{Algorithm: limiter.TokenBucket, Limit: 1_000_000, Window: 24 * time.Hour})
	limits := map[BucketID][]limiter.Hit{
		"window": {{Key: "w", Policy: window}},
		"bucket": {{Key: "b", Policy: bucket}},
		"both":   {{Key: "w2", Policy: window}, {Key: "b2", Policy: bucket}},
	}
	rules := &fakeRules{resolve: func(_ string, id BucketID) Target { return Target{Hits: limits[id]} }}
	k, err := New(Options{Store: store, Resolver: rules, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	box := make(mailbox, 1000)
	s := k.Open("", "shop", "", box)
	report := func(allowed uint64) {
		var usages []Usage
		for id := range limits {
			usages = append(usages, Usage{ID: id, Allowed: allowed, Elapsed: 5 * time.Second})
		}
		s.Report(usages)
		answered := map[BucketID]bool{}
		for len(answered) < len(limits) {
			a := <-box
			if a.Strategy != TokenBucket || a.MaxTokens == 0 || a.TTL != DefaultTTL {
				t.Errorf("%+v is assigned", a)
			}
			answered[a.ID] = true
		}
	}
	used := func(id BucketID) (most int64) {
		for _, h := range limits[id] {
			h.Look = true
			out := make([]limiter.Decision, 1)
			if err := store.Take(t.Context(), []limiter.Hit{h}, out); err != nil {
				t.Fatal(err)
			}
			most = max(most, 1_000_000-out[0].Remaining)
		}
		return most
	}
	began := time.Now()
	report(3000)
	for id := range limits {
		n := used(id)
		leaked := int64(time.Since(began).Seconds()*rateOf(bucket)) + 1 // of a bucket, on a busy machine
		if n < 3000-leaked {
			t.Errorf("%s: %d were charged, 3,000 passed", id, n)
		}
	}
	time.Sleep(300 * time.Millisecond)
	report(0)
	for deadline := time.Now().Add(timeout); k.Stats().Returned == 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if st := k.Stats(); st.Failures > 0 || st.Returned == 0 {
		t.Errorf("%+v", st)
	}
	s.Close(true)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
