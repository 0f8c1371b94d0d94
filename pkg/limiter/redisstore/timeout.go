package redisstore

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// TimedOut reports whether an error of Take says that an answer, or a connection to ask on, did not come in time. Network
// errors and the connection pool have errors of their own for it.
func TimedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redis.ErrPoolTimeout) ||
		errors.As(err, &timeout) && timeout.Timeout()
}
