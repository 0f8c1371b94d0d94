package store

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// dialer is go-redis's Options.Dialer.
type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// namedConns sends CLIENT SETNAME while a connection is made. go-redis's OnConnect would send it within the first
// request's time: with a server that is far away, two round trips take longer than a request may, the request ends its
// connection, and so does the next one. Where a password is needed, AUTH has to come first. A server that does not
// answer within the timeout does not answer requests either: a longer wait would only miss its recovery.
func namedConns(dial dialer, timeout time.Duration) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if err := setName(conn, timeout); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}
}

// setName waits for the answer, whatever it is: a user who may not run CLIENT SETNAME can count all the same.
func setName(conn net.Conn, timeout time.Duration) error {
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

// neverFailing returns a connection whose reads and writes fail, in place of an error. After as many failed dials as it
// may have connections, go-redis dials only once a second, and would miss a server's return for longer.
func neverFailing(dial dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			conn = failedConn{err}
		}
		return conn, nil
	}
}

// connectTimedOut reports whether a call failed because no connection was there in time: nothing was sent, and the call
// may be made again.
func connectTimedOut(err error) bool {
	var failed connectError
	var timeout net.Error
	return errors.Is(err, redis.ErrPoolTimeout) || errors.As(err, &failed) && errors.As(failed.error, &timeout) &&
		timeout.Timeout()
}

// connectError is why a connection could not be made.
type connectError struct{ error }

// Unwrap returns a list, since go-redis takes off what errors.Unwrap can.
func (e connectError) Unwrap() []error { return []error{e.error} }

// failedConn is a connection that could not be made.
type failedConn struct{ err error }

func (c failedConn) Read([]byte) (int, error)       { return 0, connectError{c.err} }
func (c failedConn) Write([]byte) (int, error)      { return 0, connectError{c.err} }
func (failedConn) Close() error                     { return nil }
func (failedConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (failedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (failedConn) SetDeadline(time.Time) error      { return nil }
func (failedConn) SetReadDeadline(time.Time) error  { return nil }
func (failedConn) SetWriteDeadline(time.Time) error { return nil }
