package redisstore

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

var _ redis.Error = failure("")

// failure is what is wrong with one request, though the server answers.
type failure string

// Error implements error.
func (f failure) Error() string { return string(f) }

// RedisError implements redis.Error.
func (failure) RedisError() {}

// Answered says whether an error of Take or Ping is what the server answered, or of the request alone. Otherwise
// there was no answer: the server cannot be reached, hangs, or takes too long.
func Answered(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// dialer is go-redis's Options.Dialer.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// introduced tells the server our name while it connects, which may take longer than a request may wait, and not in the
// first request's time, as OnConnect does: at two round trips that request would be too late on a server that is far
// away, end its connection with that, and so would the next one. Where a password is needed, it goes first. A server
// that does not answer within the timeout does not answer requests either.
func introduced(dial dialer, timeout time.Duration) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := introduce(conn, timeout); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}
}

// introduce waits for the answer, whatever it is: a user who may not have a name can count all the same.
func introduce(conn net.Conn, timeout time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("CLIENT SETNAME weir\r\n")); err != nil {
		return err
	}
	for answer := make([]byte, 1); answer[0] != '\n'; {
		if _, err := conn.Read(answer); err != nil {
			return err
		}
	}
	return conn.SetDeadline(time.Time{})
}

// undaunted never fails: a connection that could not be made fails when it is used. After as many failures to connect
// as it may have connections, go-redis tries only once a second, and a server that is back would be missed for longer.
func undaunted(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			conn = unmade{err}
		}
		return conn, nil
	}
}

// unmade is a connection that could not be made.
type unmade struct{ err error }

func (u unmade) Read([]byte) (int, error)         { return 0, u.err }
func (u unmade) Write([]byte) (int, error)        { return 0, u.err }
func (u unmade) Close() error                     { return nil }
func (u unmade) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (u unmade) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (u unmade) SetDeadline(time.Time) error      { return nil }
func (u unmade) SetReadDeadline(time.Time) error  { return nil }
func (u unmade) SetWriteDeadline(time.Time) error { return nil }
