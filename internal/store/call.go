package store

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// connectPause is the pause between two attempts to get a connection.
const connectPause = 10 * time.Millisecond

// Call calls f with a client for commands on a key that may each take the timeout, which may be far longer than that of
// requests, and returns its error. It calls f again where nothing was sent, since connections are made in the time that
// requests have: until a connection is there or the timeout is over. In a cluster that has moved the key, it calls f a
// second time, with the client of the whole cluster and its timeouts.
func (r *Redis) Call(
	ctx context.Context, key string, timeout time.Duration, f func(c redis.UniversalClient) error,
) (err error) {
	defer func() {
		if p := recover(); p != nil { // what a server replies must not end this process
			err = fmt.Errorf("panic while Redis was asked: %v", p)
		}
	}()
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := r.try(ctx, key, timeout, f)
		if !connectTimedOut(err) || limiter.Sleep(waiting, connectPause) != nil {
			return err
		}
	}
}

func (r *Redis) try(
	ctx context.Context, key string, timeout time.Duration, f func(c redis.UniversalClient) error,
) error {
	switch c := r.Client.(type) {
	case *redis.Client:
		return f(c.WithTimeout(timeout))
	case *redis.ClusterClient:
		master, err := c.MasterForKey(ctx, key)
		if err != nil {
			return err
		}
		err = f(master.WithTimeout(timeout))
		if redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
			return f(c)
		}
		if err != nil {
			c.ReloadState(ctx) // another master may have taken over: the next call knows
		}
		return err
	default:
		return f(c)
	}
}
