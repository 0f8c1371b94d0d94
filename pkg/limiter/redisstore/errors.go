package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Answered reports whether an error of Take or Ping is a reply of Redis, or concerns only this request. Otherwise there
// was no reply in time: Redis is unreachable or slow, or this process is overloaded (limiter.ErrLate, ErrShed).
func Answered(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// TimedOut reports whether an error of Take says that a reply or a connection took too long. It also finds the
// timeouts of the network and of the connection pool.
func TimedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redis.ErrPoolTimeout) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

// Failures calls each for every server that an error of Store.Take, Group.Take or Ping names. store is Options.Name.
// shard is the address of a master of a cluster; it is empty without a cluster, or if the error does not concern a
// single master. why is the error of that server; pass it to Answered or TimedOut.
func Failures(err error, each func(store, shard string, why error)) {
	for err != nil {
		if e, ok := err.(*serverError); ok { //nolint:errorlint // the loop unwraps, to find every serverError
			each(e.store.o.Name, e.shard, e)
			return
		}
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range several.Unwrap() {
				Failures(err, each)
			}
			return
		}
		err = errors.Unwrap(err)
	}
}

var _ redis.Error = requestError("")

// requestError is an error of one request. The server itself works.
type requestError string

// Error implements error.
func (e requestError) Error() string { return string(e) }

// RedisError implements redis.Error.
func (requestError) RedisError() {}

// serverError names the server that an error comes from.
type serverError struct {
	store *Store
	shard string // address of the master of a cluster; empty if the error does not concern a single master
	err   error
}

// Error implements error.
func (e *serverError) Error() string {
	text := e.store.Label() + ": "
	if e.shard != "" {
		text += e.shard + ": "
	}
	return text + e.err.Error()
}

// Unwrap returns the server's error.
func (e *serverError) Unwrap() error { return e.err }

// named adds this store's name to an error, unless the error already names a server.
func (s *Store) named(shard string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*serverError](err); ok {
		return err
	}
	return &serverError{s, shard, err}
}

// unavailable makes err wrap limiter.ErrUnavailable, and adds the store's name.
func (s *Store) unavailable(err error) error { return unavailable(s.named("", err)) }

// unavailable makes an error that already names its store wrap limiter.ErrUnavailable.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
}

// errPanic is wrapped by the errors that report a panic.
var errPanic = errors.New("panic while Redis was queried")

// survive calls f and returns its error, or a panic as an error: no reply of a server may end this process.
func survive(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return f()
}
