package redisstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Answered reports whether an error of Take or Ping is what Redis answered, or is about the request alone. If not,
// there was no answer: Redis cannot be reached, hangs, or takes too long.
func Answered(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// TimedOut reports whether an error of Take says that an answer, or a connection, did not come in time. Network errors
// and the connection pool have errors of their own for it.
func TimedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redis.ErrPoolTimeout) ||
		errors.As(err, &timeout) && timeout.Timeout()
}

// Failures calls each for every server that an error of Store.Take, Group.Take or Ping is about. store is
// Options.Name. shard is the address of a master of a cluster; it is empty outside of clusters, and if the error is not
// about one master. why is the error of that server alone, which names it: see Answered.
func Failures(err error, each func(store, shard string, why error)) {
	for err != nil {
		if e, ok := err.(*serverError); ok { //nolint:errorlint // the loop unwraps, and has to find every one
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

// requestError is what is wrong with one request, though the server answers.
type requestError string

// Error implements error.
func (e requestError) Error() string { return string(e) }

// RedisError implements redis.Error.
func (requestError) RedisError() {}

// serverError names the server that an error comes from.
type serverError struct {
	store *Store
	shard string // the master's address, in a cluster; empty if the error is not about one master
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

// Unwrap returns the reason.
func (e *serverError) Unwrap() error { return e.err }

// named adds to an error that it comes from this store, unless the error names a server already.
func (s *Store) named(shard string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*serverError](err); ok {
		return err
	}
	return &serverError{s, shard, err}
}

// unavailable wraps err as limiter.Store asks for, and names the store.
func (s *Store) unavailable(err error) error { return unavailable(s.named("", err)) }

// unavailable wraps errors that name their stores.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
}

// errPanic is wrapped by an error that stands for a panic.
var errPanic = errors.New("panic while Redis was queried")

// survive calls f, and returns its error or a panic in it as one: what a server replies must not end this process.
func survive(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return f()
}
