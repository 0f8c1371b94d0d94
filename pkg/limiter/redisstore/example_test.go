package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// All processes that use the same Redis share one limit: 100 requests per minute per client.
func ExampleNew() { //nolint:testableexamples // it needs a Redis
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	store, err := redisstore.New(client, redisstore.Options{Timeout: 50 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	perClient, err := limiter.New(store, "client", limiter.NewTokenBucket(100, time.Minute, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := perClient.Allow(context.Background(), "ann")
	if err != nil {
		fmt.Println("Redis did not decide:", err) // it wraps limiter.ErrUnavailable
		return
	}
	fmt.Println(d.Allowed, d.Remaining)
}

// With two servers, the Route of a hit names the server with its counter.
func ExampleNewGroup() {
	busy := redis.NewClient(&redis.Options{Addr: "redis:6379", ContextTimeoutEnabled: true})
	busier := redis.NewClient(&redis.Options{Addr: "redis-per-second:6379", ContextTimeoutEnabled: true})
	defer func() { _ = errors.Join(busy.Close(), busier.Close()) }()
	first, err := redisstore.New(busy, redisstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err := redisstore.New(busier, redisstore.Options{Name: "per_second"})
	if err != nil {
		fmt.Println(err)
		return
	}
	group := redisstore.NewGroup(first, map[string]*redisstore.Store{"per_second": second})
	perClient, err := limiter.New(group, "client", limiter.NewFunnel(100, time.Second, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	perClient = perClient.WithRoute(redisstore.Route{Store: "per_second"})
	_ = perClient // perClient.Allow(ctx, "ann") asks redis-per-second
	fmt.Println(first, second)
	// Output: redis:6379 redis-per-second:6379
}
