package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// One limit for all processes that use the same Redis: 100 requests a minute of each client.
func ExampleNew() { //nolint:testableexamples // it needs a Redis
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	store, err := redisstore.New(client, redisstore.Options{Timeout: 50 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	policy, err := limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.TokenBucket, Limit: 100, Window: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	perClient := limiter.New(store, policy)
	d, err := perClient.Allow(context.Background(), "ann")
	if err != nil {
		fmt.Println("Redis did not decide:", err) // it wraps limiter.ErrUnavailable
		return
	}
	fmt.Println(d.Allowed, d.Remaining)
}
